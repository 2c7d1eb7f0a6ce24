"""Strengths that the paper does not give: searched for on validation data, as it did for its own."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from anchorhold.errors import DamagedError
from anchorhold_lab.experiments import SearchOutcome, Spec, Store, best_tried, paper_spec, search
from studies.benzing2020.algorithms import Algorithm
from studies.benzing2020.presets import Benchmark, Chosen, Preset, SearchPlan, Stage
from studies.benzing2020.presets.keeping_variants import chosen_of
from studies.benzing2020.tried_settings import Run

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
) -> tuple[Preset, dict[tuple[str, str], str]]:
    """Return the preset with what was found; a search that was stopped, or found nothing, leaves its place open.

    So does one around a strength that is itself open, and one that needs a damaged run: what is damaged is returned
    beside it, by benchmark and algorithm.
    """
    damaged: dict[tuple[str, str], str] = {}
    for benchmark, algorithm in unknown_strengths(preset, algorithms):
        try:
            chosen = _found(preset, benchmark, algorithm, store, run)
        except DamagedError as error:
            damaged[benchmark, algorithm.name] = str(error)
            continue
        if chosen is not None:
            preset = preset.with_choice(benchmark, algorithm.measure, algorithm.variant, chosen)
    return preset, damaged


def _found(preset: Preset, benchmark: Benchmark, algorithm: Algorithm, store: Store, run: Run) -> Chosen | None:
    """Return what one search has found, if anything."""
    stage, measure, variant = preset.stages[benchmark], algorithm.measure, algorithm.variant
    plan, usual = stage.searched[measure, variant], {**stage.usual, **stage.variants.get(variant, {})}
    if plan.tried:
        make = partial(_tried_spec, stage.scenario, measure, {**usual, **plan.while_trying})
        best = best_tried(plan.tried, make, plan.seeds, store, run)
        return None if best is None else chosen_of(best)
    found = search_of(preset, benchmark, algorithm, store, run)
    if found is None or found.choice is None:
        return None
    return Chosen(found.choice.strength, found.choice.reinitialise)


def search_of(
    preset: Preset, benchmark: Benchmark, algorithm: Algorithm, store: Store, run: Run
) -> SearchOutcome | None:
    """Return one search over a grid of strengths; ``None`` if it begins around a strength that is not known yet."""
    stage, measure, variant = preset.stages[benchmark], algorithm.measure, algorithm.variant
    plan = stage.searched[measure, variant]
    begin = _beginning(plan, stage, measure)
    if begin is None:
        return None
    return search(
        stage.scenario,
        measure,
        store,
        **begin,
        seeds=range(preset.seeds(benchmark, measure, variant)),
        search_seeds=plan.seeds,
        run=run,
        **{**stage.usual, **stage.variants.get(variant, {})},
    )


def _tried_spec(scenario: str, measure: str, usual: Mapping[str, Any], **changes: Any) -> Spec:
    return paper_spec(scenario, measure, **{**usual, **changes})


def _beginning(plan: SearchPlan, stage: Stage, measure: str) -> dict[str, Any] | None:
    """Return where a search begins; ``None`` if that is around a strength that is not known yet."""
    if plan.around is None:
        return {"low": plan.low, "high": plan.high, "coarse": plan.coarse}
    known = stage.chosen.get((measure, plan.around))
    return None if known is None else {"low": known.strength / _NEIGHBOUR, "high": known.strength * _NEIGHBOUR}
