"""What captions say about a preset, in its own numbers."""

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


def strengths(preset: Preset) -> str:
    """Say where the strengths of a table come from."""
    if preset.name == "quick":
        return "Strengths that nobody has published are guesses of the right order here."
    if preset.name == "digits":
        return "Strengths are the best found for digits on validation data, or of the right order where little matters."
    searched = sorted({pair for stage in preset.stages.values() for pair in stage.searched})
    named = ", ".join(measure if variant == "usual" else f"{measure} with {variant}" for measure, variant in searched)
    return (
        f"Strengths that nobody has published are searched for on validation data ({named}). MASX on P-MNIST has that "
        "of MAS, and SOS(2048, α=0) on CIFAR that of SOS(2048)."
    )
