"""Strengths that the paper does not give: searched for on validation data, as it did for its own."""

from collections.abc import Callable, Iterable, Sequence

from holdfast.errors import DamagedError
from holdfast.lab.experiments import Spec, Store, Summary, search
from holdfast.lab.experiments.strengths.strength_search import SEARCH_SEEDS
from holdfast.lab.paper.algorithms import Algorithm
from holdfast.lab.paper.presets import Benchmark, Chosen, Preset

Run = Callable[[Sequence[Spec], Store], Summary]
"""Makes runs into a store, such as :func:`holdfast.lab.experiments.execute`."""


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

    So does one that needs a damaged run: what is damaged is returned beside it, by benchmark and algorithm.
    """
    damaged = {}
    for benchmark, algorithm in unknown_strengths(preset, algorithms):
        stage = preset.stages[benchmark]
        try:
            found = search(
                stage.scenario,
                algorithm.measure,
                store,
                seeds=range(stage.seeds),
                search_seeds=SEARCH_SEEDS,
                run=run,
                **{**stage.usual, **stage.variants.get(algorithm.variant, {})},
            )
        except DamagedError as error:
            damaged[benchmark, algorithm.name] = str(error)
            continue
        if found.choice is not None:
            chosen = Chosen(found.choice.strength, found.choice.reinitialise)
            preset = preset.with_choice(benchmark, algorithm.measure, algorithm.variant, chosen)
    return preset, damaged
