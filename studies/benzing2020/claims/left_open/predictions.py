"""What the paper's Appendix B predicts of SI and leaves to others to test, each as a number; they are no claims of it.

SI is a sum over steps that nothing divides by their number, with the learning rate in every summand. So it should
undervalue small and easy tasks, and be hurt by a rate that decays and by SGD; SOS, an average of squared gradients
alone, should not.
"""

import math
from collections.abc import Callable, Sequence

from anchorhold_lab.experiments import Result, Spec
from anchorhold_lab.training.metrics import forgetting
from studies.benzing2020.claims.claim import Claim
from studies.benzing2020.claims.differences import Statistic, difference
from studies.benzing2020.claims.of_the_paper.performance import ALIKE
from studies.benzing2020.claims.rule import AtLeast, AtMost, BySeed, Measurement, contrast
from studies.benzing2020.findings import NotMeasuredError, Results
from studies.benzing2020.needed_runs import accuracy_runs
from studies.benzing2020.presets import Benchmark

_ITEM = ("predictions",)
_FACTORS = {"a decaying rate": "decaying rate", "SGD": "SGD"}
"""What SI should suffer from and SOS should not, by what it is called in algorithms."""


def over_runs(results: Results, benchmark: Benchmark, algorithm: str, of: Callable[[Result], float]) -> BySeed:
    """Return something in per cent for each seed of an algorithm's runs."""
    runs = results.finished(accuracy_runs(results.preset, benchmark, algorithm))
    if not runs:
        raise NotMeasuredError(f"no run of {algorithm} on {benchmark} has finished")
    return {run.spec.seed: 100 * of(run) for run in runs}


def small_tasks(spec: Spec) -> list[int]:
    """Return the tasks that have fewer samples than the largest, by their numbers from 0."""
    return [task for task, share in enumerate(spec.sizes) if share < max(spec.sizes)]


def last_accuracy(tasks: list[int]) -> Callable[[Result], float]:
    """Return the mean accuracy of some tasks after the last."""
    return lambda run: math.fsum(run.matrix[-1][task] for task in tasks) / len(tasks)


def forgotten(run: Result) -> float:
    """Return how far accuracies fell from their best."""
    return forgetting(run.matrix)


def loses_more(factor: str) -> Statistic:
    """Return by how many points a factor costs SI more than it costs SOS (P-MNIST)."""

    def statistic(results: Results) -> Sequence[Measurement]:
        names = ("SI", f"SI, {factor}", "SOS", f"SOS, {factor}")
        si, si_hurt, sos, sos_hurt = (results.accuracy_by_seed("P-MNIST", name) for name in names)
        return [contrast((1.0, si), (-1.0, si_hurt), (-1.0, sos), (1.0, sos_hurt))]

    return statistic


def _small_tasks_lag(results: Results) -> Sequence[Measurement]:
    """Return how much better SOS keeps small tasks than SI, beyond what it does where they are as large as others."""
    specs = accuracy_runs(results.preset, "P-MNIST", "SI, unequal sizes")
    if not specs:
        raise NotMeasuredError("the strength of SI, unequal sizes on P-MNIST has not been searched for")
    of = last_accuracy(small_tasks(specs[0]))

    names = ("SOS, unequal sizes", "SI, unequal sizes", "SOS", "SI")
    sos_small, si_small, sos, si = (over_runs(results, "P-MNIST", name, of) for name in names)
    return [contrast((1.0, sos_small), (-1.0, si_small), (-1.0, sos), (1.0, si))]


def _order_costs(name: str) -> Statistic:
    """Return by how many points an algorithm is better where hard tasks come first (CIFAR)."""
    return difference("CIFAR", f"{name}, hard first", f"{name}, easy first")


def _order_forgets(results: Results) -> Sequence[Measurement]:
    """Return by how many points SI forgets more where easy tasks come first (CIFAR)."""
    easy, hard = (over_runs(results, "CIFAR", f"SI, {first} first", forgotten) for first in ("easy", "hard"))
    return [contrast((1.0, easy), (-1.0, hard))]


CLAIMS = (
    *(
        Claim(
            f"own-{name.lower().replace(' ', '-')}-hurts-si",
            _ITEM,
            f"As Appendix B expects, {called} costs SI more than SOS (P-MNIST).",
            "what SI loses less what SOS loses",
            loses_more(name),
            AtLeast(0.0),
            own=True,
        )
        for called, name in _FACTORS.items()
    ),
    *(
        Claim(
            f"own-sos-bears-{name.lower().replace(' ', '-')}",
            _ITEM,
            f"SOS bears {called} (P-MNIST).",
            "what SOS loses",
            difference("P-MNIST", "SOS", f"SOS, {name}"),
            AtMost(ALIKE["P-MNIST"]),
            own=True,
        )
        for called, name in _FACTORS.items()
    ),
    Claim(
        "own-small-tasks-hurt-si",
        _ITEM,
        "As Appendix B expects, SI underestimates small tasks: where every other one has a tenth of the samples, it "
        "keeps these worse than SOS does, beyond how both compare where all are alike (P-MNIST).",
        "lead of SOS over SI on the small tasks, less that on the same tasks of full size",
        _small_tasks_lag,
        AtLeast(0.0),
        own=True,
    ),
    Claim(
        "own-easy-first-hurts-si",
        _ITEM,
        "As Appendix B expects, SI is worse where easy tasks come first (CIFAR).",
        "accuracy of SI with hard tasks first less that with easy ones first",
        _order_costs("SI"),
        AtLeast(0.0),
        own=True,
    ),
    Claim(
        "own-easy-first-makes-si-forget",
        _ITEM,
        "And it forgets more then (CIFAR).",
        "forgetting of SI with easy tasks first less that with hard ones first",
        _order_forgets,
        AtLeast(0.0),
        own=True,
    ),
    Claim(
        "own-sos-bears-easy-first",
        _ITEM,
        "SOS bears easy tasks first (CIFAR).",
        "accuracy of SOS with hard tasks first less that with easy ones first",
        _order_costs("SOS"),
        AtMost(ALIKE["CIFAR"]),
        own=True,
    ),
)
