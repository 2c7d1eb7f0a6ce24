"""What α does for SOS at large batches, by a rule: window, noise or rate.

α takes the mean gradient out of v. Three things may make that worth while: that the average's window reaches back to a
task's first steps, where the mean gradient is large; that the mean gradient outweighs the noise at all steps; or that a
high learning rate does either. Beside the rule stand claims of our own, each about one of them.

The rule was written down before the runs, and knew a window that is tied to the task's length alone. That a shorter one
of a fixed length counts as well was added when the runs on Permuted MNIST had been seen, and so were its claims. So was
that α has a strength searched for there, as everything else has: the paper's own was chosen by other means.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from anchorhold_lab.analysis import Estimate, difference_between
from studies.benzing2020.algorithms import ALGORITHMS
from studies.benzing2020.claims.claim import Claim
from studies.benzing2020.claims.differences import difference
from studies.benzing2020.claims.of_the_paper.performance import ALIKE, WITHOUT_MARGIN
from studies.benzing2020.claims.rule import AtLeast, AtMost, Measurement, mean_of
from studies.benzing2020.drawing.task_columns import Table, first_task_correlations
from studies.benzing2020.findings import NotMeasuredError, Results
from studies.benzing2020.needed_runs import reading_runs, watched_average
from studies.benzing2020.presets import BENCHMARKS, Benchmark

_ERRORS = 2.0
"""A difference is one where it is larger than so many standard errors, those of both sides counted."""
_MOST = 0.5
"""What does at least so much of what α does, does the same thing."""
_WITH_ALPHA: dict[Benchmark, str] = {"P-MNIST": "SOS(2048), long window", "CIFAR": "SOS(2048)"}
_CELL = {
    "without α": "SOS(2048, α=0)",
    "tied, without α": "SOS(2048), tied window, α = 0",
    "tied, with α": "SOS(2048), tied window",
    "first steps left out, without α": "SOS(2048), first steps left out, α = 0",
    "short, without α": "SOS(2048), short window, α = 0",
    "short, with α": "SOS(2048), short window",
    "another rate, with α": "SOS(2048), another rate",
    "another rate, without α": "SOS(2048), another rate, α = 0",
}
"""The algorithms that decide, by what is different about them."""
_WINDOWS = ("tied", "first steps left out", "short")
"""The averages that do not reach back to a task's first steps."""


@dataclass(frozen=True)
class Finding:
    """What was found on one benchmark."""

    verdict: str
    """In a few words: ``the window``, ``noise``, and so on."""
    says: str
    """The numbers that it comes from."""


def finding(results: Results, benchmark: Benchmark) -> Finding:
    """Return what α is for on a benchmark; raises where runs that decide are missing."""
    gain = _less(results, benchmark, "with α", "without α")
    elsewhere = _less(results, benchmark, "another rate, with α", "another rate, without α")
    rates = f"At the other learning rate α brings {_said(elsewhere)}."
    if not _is_more(gain):
        verdict = "something at the other rate alone" if _is_more(elsewhere) else "nothing"
        return Finding(verdict, f"α brings {_said(gain)}, which is nothing to explain. {rates}")
    windows = [_less(results, benchmark, f"{name}, without α", "without α") for name in _WINDOWS]
    beyond = _less(results, benchmark, "tied, with α", "tied, without α")
    tied, skipped, short = map(_said, windows)
    says = (
        f"α brings {_said(gain)}. Without it, a window tied to the task's length brings {tied}, leaving out the first "
        f"steps {skipped}, and a shorter window of a fixed length {short}; with the tied window, α brings "
        f"{_said(beyond)} more. {rates}"
    )
    window, noise = any(_does_most(brings, gain) for brings in windows), _is_more(beyond)
    found = {(True, False): "the window", (False, True): "noise", (True, True): "the window and noise"}
    verdict = found.get((window, noise), "neither the window nor noise")
    if _is_more(difference_between(gain, elsewhere)) and elsewhere.mean < _MOST * gain.mean:
        verdict += ", at the paper's rate alone"
    if _is_more(_less(results, benchmark, "short, without α", "with α")):
        verdict += ": a shorter one without α keeps more than α"
    return Finding(verdict, says)


def reading(results: Results, benchmark: Benchmark, rate: str, average: str, alpha: float) -> Table:
    """Return the correlation of √v with √Fisher after the first task, for an average and an α by their names."""
    specs = reading_runs(results.preset, benchmark, rate)
    return first_task_correlations(results, specs, watched_average(average, alpha), "sqrtFisher")


def _nearer(results: Results, benchmark: Benchmark) -> Sequence[Measurement]:
    """Return by how much nearer √v is to √Fisher with a tied window than with a long one, run by run, without α."""
    tied, long = (reading(results, benchmark, "its rate", name, 0.0) for name in ("tied window", "long window"))
    return [mean_of((tied - long)[:, 0].tolist())]


def _less(results: Results, benchmark: Benchmark, better: str, worse: str) -> Estimate:
    """Return by how many points one cell is more accurate than another."""
    a, b = (_accuracy(results, benchmark, name) for name in (better, worse))
    return difference_between(a, b)


def _accuracy(results: Results, benchmark: Benchmark, cell: str) -> Estimate:
    algorithm = ALGORITHMS[_named(benchmark, cell)]
    if not results.preset.is_known(benchmark, algorithm.measure, algorithm.variant):
        raise NotMeasuredError(f"the strength of {algorithm.name} on {benchmark} has not been searched for")
    return results.accuracy(benchmark, algorithm.name)


def _named(benchmark: Benchmark, cell: str) -> str:
    return _WITH_ALPHA[benchmark] if cell == "with α" else _CELL[cell]


def _is_more(found: Estimate) -> bool:
    """Whether a difference is above 0, and no chance; one whose error is not known is not."""
    return found.mean > _ERRORS * found.error


def _does_most(found: Estimate, gain: Estimate) -> bool:
    return _is_more(found) and found.mean >= _MOST * gain.mean


def _said(found: Estimate) -> str:
    error = "" if math.isnan(found.error) else f" ± {found.error:.2f}"
    return f"{found.mean:.2f}{error} points"


CLAIMS = (
    Claim(
        "own-window-helps-p-mnist",
        ("window-p-mnist",),
        "Without α, SOS(2048) keeps more where its average is tied to the task's length (P-MNIST).",
        "accuracy of SOS(2048) without α, with a tied window less that with β₂ = 0.999",
        difference("P-MNIST", _CELL["tied, without α"], _CELL["without α"]),
        AtLeast(0.0),
        own=True,
    ),
    *(
        claim
        for benchmark in BENCHMARKS
        for claim in (
            Claim(
                f"own-window-serves-{benchmark.lower()}",
                (f"window-{benchmark.lower()}",),
                f"A window that is tied to the task's length does without a second batch what α does ({benchmark}).",
                "accuracy of SOS(2048) with α less that with a tied window and without α",
                difference(benchmark, _WITH_ALPHA[benchmark], _CELL["tied, without α"]),
                AtMost(ALIKE[benchmark]),
                own=True,
            ),
            Claim(
                f"own-alpha-adds-nothing-{benchmark.lower()}",
                (f"window-{benchmark.lower()}",),
                f"With such a window, α adds nothing ({benchmark}).",
                "accuracy of SOS(2048) with a tied window, with α less that without",
                difference(benchmark, _CELL["tied, with α"], _CELL["tied, without α"]),
                AtMost(ALIKE[benchmark]),
                own=True,
                remark=WITHOUT_MARGIN.format("α may bring no more than two standard errors"),
            ),
            Claim(
                f"own-window-nearer-fisher-{benchmark.lower()}",
                (f"window-{benchmark.lower()}",),
                f"With large batches and without α, √v comes nearer to √Fisher with such a window ({benchmark}).",
                "correlation with √Fisher after the first task, with a tied window less that with β₂ = 0.999",
                partial(_nearer, benchmark=benchmark),
                AtLeast(0.0),
                own=True,
            ),
            Claim(
                f"own-short-window-keeps-more-{benchmark.lower()}",
                (f"window-{benchmark.lower()}",),
                f"A shorter window of a fixed length keeps more without α than β₂ = 0.999 does with it ({benchmark}).",
                "accuracy of SOS(2048) with a short window and without α less that with β₂ = 0.999 and α",
                difference(benchmark, _CELL["short, without α"], _WITH_ALPHA[benchmark]),
                AtLeast(0.0),
                added_later=benchmark == "P-MNIST",  # no run on CIFAR had been made
                own=True,
            ),
        )
    ),
    Claim(
        "own-alpha-adds-little-to-short-window",
        ("window-p-mnist",),
        "With that window, α adds next to nothing (P-MNIST).",
        "accuracy of SOS(2048) with a short window, with α less that without",
        difference("P-MNIST", _CELL["short, with α"], _CELL["short, without α"]),
        AtMost(ALIKE["P-MNIST"]),
        added_later=True,
        own=True,
    ),
)
