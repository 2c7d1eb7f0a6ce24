"""The runs that items share. Each is declared once, so that it is made once, whoever asks for it."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from anchorhold_lab.experiments import SCENARIOS, Spec
from studies.benzing2020.algorithms import ALGORITHMS, Algorithm
from studies.benzing2020.presets import Benchmark, Preset, Variant

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


AVERAGES: tuple[str, ...] = (
    "long window",
    "middle window",
    "short window",
    "window of ten steps",
    "tied window",
    "first steps left out",
)
"""How far SOS's average reaches, from the paper's β₂ on; that of ten steps is read off, and protects nothing."""
_WITHOUT_CELLS = {"long window": {}, "window of ten steps": {"beta2": 0.9}}


def average_settings(preset: Preset, benchmark: Benchmark, average: str) -> Mapping[str, Any]:
    """Return the settings of SOS that an average stands for, α apart."""
    if average in _WITHOUT_CELLS:
        return _WITHOUT_CELLS[average]
    changes = preset.stages[benchmark].variants[cast("Variant", f"large batch, {average}, α = 0")]
    return {name: value for name, value in changes["measure_settings"].items() if name != "alpha"}


def large_batch_rates(preset: Preset, benchmark: Benchmark) -> dict[str, float]:
    """Return the learning rates of large batches: the paper's, and another."""
    paper = preset.spec(benchmark, "SOS", "large batch").settings.learning_rate
    other = preset.stages[benchmark].variants["large batch, another rate"]["learning_rate"]
    return {"its rate": paper, "another rate": other}


def watched_average(average: str, alpha: float) -> str:
    """Return what SOS with an average and an α goes by in :func:`reading_runs`."""
    return "SOS" if (average, alpha) == ("long window", 1.0) else f"SOS:{average}, α = {alpha:g}"


def reading_runs(preset: Preset, benchmark: Benchmark, rate: str) -> list[Spec]:
    """Return runs of large batches in which SOS of every average watches beside √Fisher; a rate goes by its name.

    What is read off is the first task, which no strength has a part in, so that they are as short as runs can be.
    """
    watched = {
        watched_average(average, alpha): {**average_settings(preset, benchmark, average), "alpha": alpha}
        for average in AVERAGES
        for alpha in (0.0, 1.0)
    }
    del watched["SOS"]  # which protects
    stage = preset.stages[benchmark]
    return [
        preset.spec(
            benchmark,
            "SOS",
            "large batch",
            seed=seed,
            tasks=SCENARIOS[stage.scenario].possible_tasks[0],
            learning_rate=large_batch_rates(preset, benchmark)[rate],
            samples=stage.many_samples,
            watch=(*watched, "sqrtFisher"),
            watch_settings=watched,
            probes=("importances",),
        )
        for seed in range(preset.repetitions)
    ]


UNCLAMPED = ("SI", "SIU", "SIB")
"""The measures that the authors' scripts compare on CIFAR as they are before they are clamped."""
LOGITS = ("MAS-logits", "MASX-logits", "AF", "sqrtFisher")
FROM_DATA = ("MAS", "AF", "sqrtFisher", "EWC")
"""The measures of Table 1 that look at data after training."""
_SETS = 30


def unclamped_runs(preset: Preset, benchmark: Benchmark) -> list[Spec]:
    """Return runs that train with SI, watched as the authors' figures have it: on CIFAR by what is not clamped too."""
    damping = preset.spec(benchmark, "SI").measure_settings["damping"]
    unclamped = {f"{name}:unclamped": {"damping": damping, "clamp": "total"} for name in UNCLAMPED}
    watched = {**unclamped, "SOS": {}} if benchmark == "CIFAR" else {}
    return [
        preset.spec(
            benchmark, "SI", seed=seed, watch=(*watched, *LOGITS), watch_settings=watched, probes=("importances",)
        )
        for seed in range(preset.repetitions)
    ]


def runs_at_their_rate(preset: Preset) -> list[Spec]:
    """Return the runs of the sums on CIFAR, with the learning rate that the authors' script has there."""
    probes = ("importances", f"path:{preset.stages['CIFAR'].path_steps}")
    return [
        preset.spec("CIFAR", "SI", "rate of their sums", seed=seed, watch=("SIU",), probes=probes)
        for seed in range(preset.repetitions)
    ]


def curve_runs(preset: Preset) -> list[Spec]:
    """Return runs on P-MNIST's first task, whose sums are followed step by step."""
    probes = (f"curves:{preset.stages['P-MNIST'].path_steps}",)
    return [preset.spec("P-MNIST", "SI", seed=seed, tasks=1, probes=probes) for seed in range(preset.repetitions)]


def sample_set_runs(preset: Preset) -> list[Spec]:
    """Return one run on P-MNIST's first task, after which MAS and AF are measured from many sets of samples."""
    stage = preset.stages["P-MNIST"]
    return [preset.spec("P-MNIST", "SI", tasks=1, samples=stage.samples, probes=(f"sample-sets:{_SETS}",))]


def second_runs(preset: Preset, measure: str) -> list[Spec]:
    """Return as many runs of a measure on CIFAR as its row has, with the seeds that follow."""
    seeds = preset.seeds("CIFAR", measure)
    return [preset.spec("CIFAR", measure, seed=seed) for seed in range(seeds, 2 * seeds)]


def noise_runs(preset: Preset) -> list[Spec]:
    """Return a run on a single task, whose gradients are looked at step by step."""
    return [preset.spec("P-MNIST", "fine-tune", "noise", probes=(preset.stages["P-MNIST"].noise,))]
