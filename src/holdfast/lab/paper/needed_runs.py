"""The runs that items share. Each is declared once, so that it is made once, whoever asks for it."""

from collections.abc import Sequence

from holdfast.lab.experiments import Spec
from holdfast.lab.paper.algorithms import ALGORITHMS, Algorithm
from holdfast.lab.paper.presets import Benchmark, Preset, Variant

WATCHED = ("SIU", "SIB", "SOS", "EWC", "sqrtFisher", "AF", "MAS", "MASX", "MAS-logits")
MANY_SAMPLES = "AF:many"
"""AF once more, from many samples."""

CONTROLS: tuple[Variant, ...] = ("no re-init", "c = 0")
"""What Figure 1 compares SI with on CIFAR: less regularisation."""


def accuracy_runs(preset: Preset, benchmark: Benchmark, algorithm: str | Algorithm) -> list[Spec]:
    """Return the runs of an algorithm, or none if its strength is not known yet."""
    row = ALGORITHMS[algorithm] if isinstance(algorithm, str) else algorithm
    if benchmark not in row.benchmarks or not preset.is_known(benchmark, row.measure, row.variant):
        return []
    seeds = range(preset.seeds(benchmark, row.measure, row.variant))
    return [preset.spec(benchmark, row.measure, row.variant, seed=seed) for seed in seeds]


def rows_of_runs(preset: Preset, algorithms: Sequence[Algorithm]) -> list[Spec]:
    """Return the runs of several rows, on every benchmark that they have."""
    return [
        spec
        for algorithm in algorithms
        for benchmark in algorithm.benchmarks
        for spec in accuracy_runs(preset, benchmark, algorithm)
    ]


def correlation_runs(preset: Preset, benchmark: Benchmark) -> list[Spec]:
    """Return the runs that train with SI, while every other measure watches."""
    stage = preset.stages[benchmark]
    # All look at the same samples, in the same order: those with a limit at the first of them.
    limits = {name: {"samples": stage.samples} for name in WATCHED if name not in ("SIU", "SIB", "SOS")}
    return [
        preset.spec(
            benchmark,
            "SI",
            seed=seed,
            samples=stage.many_samples,
            watch=(*WATCHED, MANY_SAMPLES),
            watch_settings={**limits, MANY_SAMPLES: {}},
            probes=("importances", "scatter", f"path:{stage.path_steps}"),
        )
        for seed in range(preset.repetitions)
    ]


def control_runs(preset: Preset, control: Variant) -> list[Spec]:
    """Return the runs of one control of Figure 1, which are on CIFAR alone."""
    return [
        preset.spec("CIFAR", "SI", control, seed=seed, watch=("SOS",), probes=("importances",))
        for seed in range(preset.repetitions)
    ]


def noise_runs(preset: Preset) -> list[Spec]:
    """Return a run on a single task, whose gradients are looked at step by step."""
    return [preset.spec("P-MNIST", "fine-tune", "noise", probes=(preset.stages["P-MNIST"].noise,))]
