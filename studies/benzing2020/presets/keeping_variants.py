"""How runs differ that keep old tasks in another way than by importance, and what is tried for each of them.

Every way has as many tries, on validation data and by the same seeds: EWC beside them too, in place of the strength
that the paper found by a longer search. None is re-initialised.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from anchorhold_lab.experiments import SEARCH_SEEDS
from studies.benzing2020.presets.preset import Chosen, SearchPlan, Variant
from studies.benzing2020.tried_settings import DARK, DISTILLED, SHARES, as_changes

Settings = Mapping[str, Any]


def keeping(few: int, several: int, size: int, jointly: Settings) -> dict[Variant, Settings]:
    """Return what each way changes.

    Args:
        few: how many samples the smallest memory holds in all, one of each class of every task in the end.
        several: how many a larger one holds.
        size: how many are replayed at a step.
        jointly: how joint training differs from learning a task.
    """
    return {
        "tried alike": {"reinitialise": False},
        "replay, one a class": _held("replay", source=few, size=size),
        "replay, several a class": _held("replay", source=several, size=size),
        "LwF": _held("distillation", temperature=2.0),
        "DER++": _held("DER++", source=several, size=size),
        "jointly": {"trains": "jointly", **jointly},
        "anew": {"trains": "anew"},
    }


def tries(
    variants: Mapping[Variant, Settings],
    ewc: Sequence[float],
    while_trying: Settings,
    seeds: Sequence[int] = SEARCH_SEEDS,
) -> dict[tuple[str, Variant], SearchPlan]:
    """Return what is tried for each way, where it has anything to choose.

    Args:
        variants: those of :func:`keeping`.
        ewc: strengths of EWC, as many as the others have tries.
        while_trying: what is different while settings are tried, such as fewer epochs.
        seeds: by which they are judged.
    """
    tried: dict[tuple[str, Variant], list[Settings]] = {
        ("EWC", "tried alike"): [{"strength": strength} for strength in ewc],
        ("fine-tune", "replay, one a class"): [{"share": share} for share in SHARES],
        ("fine-tune", "replay, several a class"): [{"share": share} for share in SHARES],
        ("fine-tune", "LwF"): [{"strength": strength} for strength in DISTILLED],
        ("fine-tune", "DER++"): [{"alpha": alpha, "beta": beta} for alpha, beta in DARK],
    }
    return {
        row: SearchPlan(
            tried=[as_changes(variants[row[1]], each) for each in found], while_trying=while_trying, seeds=seeds
        )
        for row, found in tried.items()
    }


def choices(plans: Mapping[tuple[str, Variant], SearchPlan], *numbers: int) -> dict[tuple[str, Variant], Chosen]:
    """Return one try of each plan as what is chosen, counted from 0."""
    return {row: chosen_of(plan.tried[number]) for (row, plan), number in zip(plans.items(), numbers, strict=True)}


def chosen_of(tried: Settings) -> Chosen:
    """Return a try as what is chosen."""
    return Chosen(tried.get("strength", 0.0), reinitialise=False, changes=tried)


def _held(hold: str, **settings: Any) -> Settings:
    return {"holds": (hold,), "hold_settings": {hold: settings}}
