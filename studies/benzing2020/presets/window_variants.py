"""How runs differ that ask what α is for at large batches: the reach of SOS's average, the rate, and α itself.

With batches of 2048, a task of Permuted MNIST has fewer steps than the average's window of 1/(1 − β₂), so that most of
v comes from the task's first steps, where gradients are largest; α takes the mean gradient out of all steps, these too.
So each way to leave the first steps behind stands beside α, with a strength of its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast, get_args

from studies.benzing2020.presets.preset import Chosen, SearchPlan, Variant, WindowVariant

Settings = Mapping[str, Any]

CELLS: tuple[WindowVariant, ...] = get_args(WindowVariant)


def windows(
    large: Settings, *, middle: float, short: float, tied: float, skip: int, rate: float
) -> dict[Variant, Settings]:
    """Return what each cell changes.

    Args:
        large: what large batches change.
        middle: β₂ of a window shorter than a task.
        short: that of one much shorter.
        tied: the share of a task that a window tied to its length reaches over.
        skip: how many of a task's first steps are left out, with β₂ as it is.
        rate: another learning rate than that of ``large``.
    """
    averages: dict[str, Settings] = {
        "middle window": {"beta2": middle},
        "short window": {"beta2": short},
        "tied window": {"window": tied},
        "first steps left out": {"skip": skip},
    }
    found: dict[Variant, Settings] = {}
    for cell in CELLS:
        parts = cell.split(", ")[1:]
        alpha = 0.0 if "α = 0" in parts else 1.0
        average = next((settings for name, settings in averages.items() if name in parts), {})
        rates = {"learning_rate": rate} if "another rate" in parts else {}
        found[cast("Variant", cell)] = {**large, **rates, "measure_settings": {**average, "alpha": alpha}}
    return found


def searches(plan: SearchPlan) -> dict[tuple[str, Variant], SearchPlan]:
    """Return one way to search for the strength of every cell."""
    return {("SOS", cell): plan for cell in CELLS}


def strengths(found: Sequence[float], *, reinitialise: bool) -> dict[tuple[str, Variant], Chosen]:
    """Return what was found for each cell, in their order."""
    return {("SOS", cell): Chosen(c, reinitialise) for cell, c in zip(CELLS, found, strict=True)}
