"""How runs beyond the diagonal differ from the usual ones: the form, the samples, and no re-initialisation.

Each form stands beside the diagonal with the same samples, so that what is compared is the coordinates alone.
"""

from collections.abc import Mapping
from typing import Any

from anchorhold_lab.experiments import SEARCH_SEEDS
from studies.benzing2020.presets.preset import SearchPlan, Variant

Settings = Mapping[str, Any]

ONE_SEED = SEARCH_SEEDS[:1]


def in_two_forms(samples: int, rotated: Settings) -> dict[Variant, Settings]:
    """Return the rotated form and its control, with as many samples.

    Args:
        samples: how many training samples the Fisher information is measured on.
        rotated: the settings of the rotated form.
    """
    return {"diagonal": _diagonal(samples), "rotated": _kept(samples, "rotated", rotated)}


def by_samples(few: int, more: int, whole: int, rotated: Settings, *, damping: float) -> dict[Variant, Settings]:
    """Return both forms with other numbers of samples, and the rotated one with few of them and more damping."""
    return {
        "diagonal, few samples": _diagonal(few),
        "rotated, few samples": _kept(few, "rotated", rotated),
        "rotated, few samples, damped": _kept(few, "rotated", {**rotated, "damping": damping}),
        "diagonal, more samples": _diagonal(more),
        "rotated, more samples": _kept(more, "rotated", rotated),
        "diagonal, all samples": _diagonal(whole),
        "rotated, all samples": _kept(whole, "rotated", rotated),
    }


def over_many_tasks(samples: int, rotated: Settings, kronecker: Settings, changes: Settings) -> dict[Variant, Settings]:
    """Return three forms on many tasks; ``changes`` say how many, and how each is learned."""
    return {
        "diagonal, many tasks": {**_diagonal(samples), **changes},
        "rotated, many tasks": {**_kept(samples, "rotated", rotated), **changes},
        "Kronecker, many tasks": {**_kept(samples, "kronecker", kronecker), **changes},
    }


AROUND: Mapping[tuple[str, Variant], SearchPlan] = {
    ("EWC", "diagonal, few samples"): SearchPlan(around="diagonal", seeds=ONE_SEED),
    ("EWC", "rotated, few samples"): SearchPlan(around="rotated", seeds=ONE_SEED),
    ("EWC", "rotated, few samples, damped"): SearchPlan(around="rotated", seeds=ONE_SEED),
    ("EWC", "diagonal, more samples"): SearchPlan(around="diagonal", seeds=ONE_SEED),
    ("EWC", "rotated, more samples"): SearchPlan(around="rotated", seeds=ONE_SEED),
    ("EWC", "diagonal, all samples"): SearchPlan(around="diagonal", seeds=ONE_SEED),
    ("EWC", "rotated, all samples"): SearchPlan(around="rotated", seeds=ONE_SEED),
}
"""The searches of other numbers of samples, each around what was found for the usual number."""


def _diagonal(samples: int) -> Settings:
    return {"reinitialise": False, "samples": samples}


def _kept(samples: int, form: str, settings: Settings) -> Settings:
    return {**_diagonal(samples), "form": form, "form_settings": settings}
