"""Claims about what SI and MAS measure: their correlations with SOS and the square root of the Fisher."""

from functools import partial

import numpy as np

from anchorhold_lab.report import label
from studies.benzing2020.claims.claim import Claim
from studies.benzing2020.claims.differences import FIRST, LATER, on_each_task, over_tasks
from studies.benzing2020.claims.rule import AtLeast, AtMost
from studies.benzing2020.drawing.task_columns import (
    Table,
    control_correlations,
    correlations,
    correlations_without_top,
)
from studies.benzing2020.findings import Results
from studies.benzing2020.needed_runs import CONTROLS
from studies.benzing2020.presets import Benchmark
from studies.benzing2020.published import (
    MAS_WITH_AF,
    MAS_WITH_MASX,
    MAS_WITH_ROOT_FISHER,
    SI_WITH_SOS,
    WITHOUT_TOP,
    Published,
)


def gain_by_rescaling(results: Results, benchmark: Benchmark, name: str) -> Table:
    """Return by how much rescaling raises the correlation of a measure with SOS."""
    before, after = (correlations(results, benchmark, name, "SOS", when=when) for when in ("before", "after"))
    return after - before


def effect_of_rescaling(results: Results, benchmark: Benchmark) -> Table:
    """Return by how much rescaling changes the correlation of SI, SIB or SIU with SOS, where it does most."""
    gains = [gain_by_rescaling(results, benchmark, name) for name in ("SI", "SIB", "SIU")]
    return np.asarray(np.abs(gains).max(axis=0), dtype=np.float64)


def lead_over_siu(results: Results, benchmark: Benchmark, name: str, when: str = "after") -> Table:
    """Return how much closer a measure is to SOS than SIU is."""
    lead, siu = (correlations(results, benchmark, each, "SOS", when=when) for each in (name, "SIU"))
    return lead - siu


def weakest_with_logits(results: Results, benchmark: Benchmark) -> Table:
    """Return the correlation of MAS on logits with MAS, AF or √Fisher, whichever is lowest."""
    found = [correlations(results, benchmark, "MAS-logits", name) for name in ("MAS", "AF", "sqrtFisher")]
    return np.asarray(np.min(found, axis=0), dtype=np.float64)


def drop_after_first(results: Results) -> Table:
    """Return how far the correlation of SI with SOS on later CIFAR tasks is below the first's."""
    found = correlations(results, "CIFAR", "SI", "SOS")
    return found[:, :1] - found[:, 1:]


def _pair(benchmark: Benchmark, a: str, b: str, *, when: str = "after") -> partial[Table]:
    return partial(correlations, benchmark=benchmark, a=a, b=b, when=when)


_MAS_WITH: tuple[tuple[str, str, Benchmark, Published, float, str], ...] = (
    ("B1", "MASX", "P-MNIST", MAS_WITH_MASX, 0.95, "almost equal to 1"),
    ("B1", "MASX", "CIFAR", MAS_WITH_MASX, 0.95, "almost equal to 1"),
    ("B2", "AF", "P-MNIST", MAS_WITH_AF, 0.95, "similarly high"),
    ("B2", "AF", "CIFAR", MAS_WITH_AF, 0.95, "similarly high"),
    ("B3", "sqrtFisher", "P-MNIST", MAS_WITH_ROOT_FISHER["P-MNIST"], 0.85, "around 0.9 for Permuted MNIST"),
    ("B3", "sqrtFisher", "CIFAR", MAS_WITH_ROOT_FISHER["CIFAR"], 0.95, "approximately 1 for all CIFAR task"),
)

_WITH_LOGITS: tuple[tuple[Benchmark, str, float, str], ...] = (
    ("CIFAR", "very close to 1", 0.95, "On CIFAR we found correlations very close to 1 for all pairs"),
    ("P-MNIST", "slightly weaker", 0.8, "on MNIST correlations were slightly weaker"),
)
_MORE_SIMILAR = "SI, SIB are more similar to √v than SIU"
_AGAIN_CLOSE = "the correlation of SI to SOS is again close to one"
_YIELDS = "for SI resp. SIB the same procedure yields 0.9"
_CONTROLS = tuple(zip(("no-re-init", "c-0"), CONTROLS, strict=True))

CLAIMS = (
    Claim(
        "a2-p-mnist",
        ("figure1",),
        f"(A2) SI is almost equal to SOS: correlations {SI_WITH_SOS['P-MNIST']} on Permuted MNIST.",
        "correlation of SI with SOS, each task",
        on_each_task(_pair("P-MNIST", "SI", "SOS")),
        AtLeast(0.95),
        words="Correlations are almost equal to 1 on MNIST",
    ),
    Claim(
        "a2-cifar",
        ("figure1",),
        "(A2) On CIFAR's first task, the correlation of SI with SOS is "
        f"{SI_WITH_SOS['CIFAR, task 1, before rescaling']} before rescaling.",
        "correlation of SI with SOS before rescaling, task 1",
        over_tasks(_pair("CIFAR", "SI", "SOS", when="before"), tasks=FIRST),
        AtLeast(0.97),
        words="around 0.99",
    ),
    Claim(
        "a2-cifar-rescaled",
        ("figure1",),
        "(A2) On CIFAR's first task, the correlation of SI with SOS is "
        f"{SI_WITH_SOS['CIFAR, task 1']} after rescaling.",
        "correlation of SI with SOS, task 1",
        over_tasks(_pair("CIFAR", "SI", "SOS"), tasks=FIRST),
        AtLeast(0.85),  # read off a figure
        words="from around 0.99 to 0.9",
    ),
    *(
        Claim(
            f"bias-explains-second-order-{name.lower()}",
            ("figure1",),
            f"{name} is more similar to SOS than SIU is (Permuted MNIST, every task).",
            f"correlation of {name} with SOS less that of SIU, each task",
            on_each_task(partial(lead_over_siu, benchmark="P-MNIST", name=name)),
            AtLeast(0.0),
            words=_MORE_SIMILAR,
        )
        for name in ("SI", "SIB")
    ),
    Claim(
        "regularisation-weakens-tie",
        ("figure1",),
        "Strong regularisation weakens the tie between SI and SOS on CIFAR's tasks 2-6.",
        "drop of the correlation from task 1, mean of the later tasks",
        over_tasks(drop_after_first),
        AtLeast(0.0),
        words="strong regularisation weakens the tie between SI and SOS on Tasks 2-6",
    ),
    *(
        Claim(
            f"control-restores-tie-{name}",
            ("figure1",),
            f"With less regularisation ({control}) the correlation of SI with SOS is again close to one on every task.",
            "correlation of SI with SOS, each task",
            on_each_task(partial(control_correlations, control=control)),
            AtLeast(0.85),  # after rescaling, which alone costs a tenth on task 1
            words=_AGAIN_CLOSE,
            remark="That it means every task is our reading: on the first, nothing is regularised yet.",
        )
        for name, control in _CONTROLS
    ),
    *(
        # What a run does on task 1, where nothing is regularised yet, decides the claims above, and says nothing about
        # a control.
        Claim(
            f"control-restores-later-tie-{name}",
            ("figure1",),
            f"With less regularisation ({control}) the correlation is close to one on CIFAR's tasks 2-6, where "
            "regularisation acts.",
            "correlation of SI with SOS, each of the later tasks",
            on_each_task(partial(control_correlations, control=control), tasks=LATER),
            AtLeast(0.9),
            words=_AGAIN_CLOSE,
            added_later=control == "no re-init",
        )
        for name, control in _CONTROLS
    ),
    *(
        # "Figure 1 (top middle & right; bottom) show that SI, SIB are more similar to √v than SIU": on CIFAR too.
        Claim(
            f"bias-explains-second-order-{name.lower()}-cifar{suffix}",
            (item,),
            f"{name} is more similar to SOS than SIU is (CIFAR, every task, {when} rescaling).",
            f"correlation of {name} with SOS less that of SIU, each task",
            on_each_task(partial(lead_over_siu, benchmark="CIFAR", name=name, when=when)),
            AtLeast(0.0),
            words=_MORE_SIMILAR,
            added_later=True,
        )
        for name in ("SI", "SIB")
        for when, suffix, item in (("after", "", "figure1"), ("before", "-before-rescaling", "before-rescaling"))
    ),
    Claim(
        "rescaling-strengthens-tie-on-later-cifar-tasks",
        ("before-rescaling",),
        "On CIFAR, rescaling increases the correlation of SI with SOS on tasks 2-5.",
        "correlation after rescaling less that before, each of tasks 2-5",
        on_each_task(partial(gain_by_rescaling, benchmark="CIFAR", name="SI"), tasks=slice(1, 5)),
        AtLeast(0.0),
        words="rescaling increases correlations on Tasks 2-5",
        added_later=True,
    ),
    *(
        Claim(
            f"mas-logits-correlations-{benchmark.lower()}",
            ("mas-logits",),
            f"MAS on logits is tied to MAS, AF and √Fisher: correlations {paper} on {benchmark}.",
            "correlation with the three, lowest of them, each task",
            on_each_task(partial(weakest_with_logits, benchmark=benchmark)),
            AtLeast(bound),
            words=words,
            added_later=True,
        )
        for benchmark, paper, bound, words in _WITH_LOGITS
    ),
    Claim(
        "rescaling-without-effect-on-p-mnist",
        ("before-rescaling",),
        "Rescaling has close to no effect on Permuted MNIST.",
        "change of a correlation with SOS, largest over SI, SIB and SIU, each task",
        on_each_task(partial(effect_of_rescaling, benchmark="P-MNIST")),
        AtMost(0.05),  # what we allow; the paper has no number
        words="rescaling on MNIST has close to no effect",
    ),
    *(
        Claim(
            f"without-top{suffix}-{name.lower()}",
            ("without-top",),
            f"Without the {without} of weights with the highest SIU, the correlation of {name} with SOS is "
            f"{likewise}{WITHOUT_TOP[name]} (CIFAR, task 1, before rescaling).",
            f"correlation of {name} with SOS, task 1",
            over_tasks(partial(correlations_without_top, benchmark="CIFAR", a=name, b="SOS", share=share), tasks=FIRST),
            bound,
            words=f"{words} (results similar for 1%)" if share == "0.01" else words,
            added_later=share == "0.01",
        )
        for share, suffix, without, likewise in (
            ("0.05", "", "5 %", ""),
            ("0.01", "-1", "1 %", "similar to "),
        )
        for name, bound, words in (
            ("SIU", AtMost(0.65), "drops to 0.5"),
            ("SI", AtLeast(0.85), _YIELDS),
            ("SIB", AtLeast(0.85), _YIELDS),
        )
    ),
    *(
        Claim(
            f"{assumption.lower()}-{benchmark.lower()}",
            ("figure2",),
            f"({assumption}) MAS is nearly proportional to {label(other)} on every task of {benchmark}: the paper has "
            f"correlations {paper}.",
            f"correlation of MAS with {label(other)}, each task",
            on_each_task(_pair(benchmark, "MAS", other)),
            AtLeast(least),
            words=words,
        )
        for assumption, other, benchmark, paper, least, words in _MAS_WITH
    ),
)
