"""What captions say about a preset, in its own numbers."""

from collections.abc import Iterable

from studies.benzing2020.algorithms import Algorithm
from studies.benzing2020.presets import BENCHMARKS, Preset


def large_batches(preset: Preset) -> str:
    """Say how large a large batch is, and what the paper's 2048 in names stands for."""
    pairs = []
    for benchmark in BENCHMARKS:
        usual, large = (
            preset.spec(benchmark, "SI", variant).settings.batch_size for variant in ("usual", "large batch")
        )
        pairs.append(f"{large} in place of {usual}")
    sizes = pairs[0] if len(set(pairs)) == 1 else f"{pairs[0]} on the first benchmark, {pairs[1]} on the second"
    return f"SI(2048) and SOS(2048) have large batches: {sizes}."


def found_strengths(preset: Preset, algorithms: Iterable[Algorithm]) -> str:
    """Say what was found for the algorithms whose strength had to be searched for; nothing if there are none."""
    found = []
    for algorithm in algorithms:
        for benchmark in algorithm.benchmarks:
            stage, row = preset.stages[benchmark], (algorithm.measure, algorithm.variant)
            if row in stage.searched and row in stage.chosen:
                chosen = stage.chosen[row]
                how = ", re-initialised," * chosen.reinitialise
                found.append(f"c = {chosen.strength:g}{how} for {algorithm.name} on {stage.title}")
    return f" Found by search: {'; '.join(found)}." if found else ""
