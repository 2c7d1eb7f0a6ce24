"""What captions say about large batches, in a preset's own numbers."""

from holdfast.paper.presets import BENCHMARKS, Preset


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
