"""Strengths that the paper does not give: searched for on validation data, as it did for its own."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from holdfast.errors import DamagedError
from holdfast.lab.experiments import Spec, Store, Summary, search
from holdfast.lab.paper.algorithms import Algorithm
from holdfast.lab.paper.presets import Benchmark, Chosen, Preset, SearchPlan, Stage

Run = Callable[[Sequence[Spec], Store], Summary]
"""Makes runs into a store, such as :func:`holdfast.lab.experiments.execute`."""

_NEIGHBOUR = 3.0
"""By how much a strength is multiplied or divided to pass its neighbour on the grid, and not the next one."""


def unknown_strengths(preset: Preset, algorithms: Iterable[Algorithm]) -> list[tuple[Benchmark, Algorithm]]:
    """Return the algorithms whose strength is still to be searched for, with their benchmarks."""
    return [
        (benchmark, algorithm)
        for algorithm in algorithms
        for benchmark in algorithm.benchmarks
        if not preset.is_known(benchmark, algorithm.measure, algorithm.variant)
    ]


def find_strengths(
    preset: Preset, algorithms: Sequence[Algorithm], store: Store, run: Run
) -> tuple[Preset, dict[tuple[Benchmark, str], str]]:
    """Return the preset with what was found; a search that was stopped, or found nothing, leaves its place open.

    So does one around a strength that is itself open, and one that needs a damaged run: what is damaged is returned
    beside it, by benchmark and algorithm.
    """
    damaged = {}
    for benchmark, algorithm in unknown_strengths(preset, algorithms):
        stage, variant = preset.stages[benchmark], algorithm.variant
        plan = stage.searched[algorithm.measure, variant]
        begin = _beginning(plan, stage, algorithm.measure)
        if begin is None:
            continue
        try:
            found = search(
                stage.scenario,
                algorithm.measure,
                store,
                **begin,
                seeds=range(preset.seeds(benchmark, algorithm.measure, variant)),
                search_seeds=plan.seeds,
                run=run,
                **{**stage.usual, **stage.variants.get(variant, {})},
            )
        except DamagedError as error:
            damaged[benchmark, algorithm.name] = str(error)
            continue
        if found.choice is not None:
            chosen = Chosen(found.choice.strength, found.choice.reinitialise)
            preset = preset.with_choice(benchmark, algorithm.measure, variant, chosen)
    return preset, damaged


def _beginning(plan: SearchPlan, stage: Stage, measure: str) -> dict[str, Any] | None:
    """Return where a search begins; ``None`` if that is around a strength that is not known yet."""
    if plan.around is None:
        return {"low": plan.low, "high": plan.high, "coarse": plan.coarse}
    known = stage.chosen.get((measure, plan.around))
    return None if known is None else {"low": known.strength / _NEIGHBOUR, "high": known.strength * _NEIGHBOUR}
