"""The paper's two benchmarks with SI, as the paper sets them: alone and several seeds side by side."""

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from anchorhold_lab.data.locations import Datasets
from anchorhold_lab.experiments import paper_spec
from anchorhold_lab.experiments.running.engines import start_engine
from anchorhold_lab.training.fast import FastRuns
from anchorhold_lab.training.metrics import average_accuracy
from benchmarks.gpu.profiling import kernel_table
from benchmarks.harness import Ratio, Report

SMALL = {"epochs": 1, "tasks": 2}
NOTES = [
    (
        "Times are of training and of the evaluation on every task after each, from the first step to the last "
        "evaluation. Loading (reading files, building tasks, moving them to the GPU, the untrained network's "
        "accuracy) and compiling (with recording) are given beside them."
    ),
    "Accuracy is the average over all tasks' test samples after the last task, ± the standard error over seeds.",
]


@dataclass
class Timed:
    """One group of runs side by side."""

    accuracies: list[float]
    seconds: float
    loading: float
    compiling: float
    steps: int
    profile: list[str]

    @property
    def a_run(self) -> float:
        return self.seconds / len(self.accuracies)

    def describe(self, name: str) -> str:
        mean, runs = statistics.mean(self.accuracies), len(self.accuracies)
        spread = f" ± {statistics.stdev(self.accuracies) / runs**0.5:.2%}" if runs > 1 else ""
        step = self.a_run / self.steps * 1e6
        return (
            f"{name}: {self.seconds:.2f} s for {runs} run{'s' * (runs > 1)}, {self.a_run:.2f} s and {step:.0f} µs a "
            f"step each; loading {self.loading:.1f} s, compiling {self.compiling:.1f} s; accuracy {mean:.2%}{spread} "
            f"({', '.join(f'{accuracy:.2%}' for accuracy in self.accuracies)})"
        )


def train(datasets: Datasets, device: torch.device, quick: bool, scenario: str, precision: str, runs: int) -> Timed:
    """Train SI with so many seeds side by side."""
    changes = SMALL if quick else {}
    specs = [paper_spec(scenario, "SI", seed=seed, precision=precision, **changes) for seed in range(runs)]
    began = time.perf_counter()
    engine = start_engine(specs, datasets, device)
    loading = time.perf_counter() - began
    assert isinstance(engine, FastRuns)
    steps = sum(engine.learners[0].task_steps(task) for task in range(len(engine.learners[0].scenario)))
    _synchronise(device)
    began = time.perf_counter()
    for _ in engine.learn():
        pass
    _synchronise(device)
    seconds = time.perf_counter() - began - engine.preparing_seconds
    accuracies = [average_accuracy(outcome.matrix) for outcome in engine.outcomes]
    return Timed(accuracies, seconds, loading, engine.preparing_seconds, steps, kernel_table(engine))


def permuted_mnist(datasets: Datasets, device: torch.device, quick: bool) -> Iterator[Report]:
    """10 tasks of 20 epochs, at most 9 s alone and 6.5 s a run with eight seeds."""
    cases = {
        f"{runs} seed{'s' * (runs > 1)}, {precision}": train(datasets, device, quick, "permuted-mnist", precision, runs)
        for runs in (1, 2 if quick else 8)
        for precision in ("tf32", "bf16")
    }
    title = "Permuted MNIST with SI: 10 tasks × 20 epochs, 784-2000-2000-10, batch 256, Adam"
    yield _report("gpu-permuted-mnist", title, cases, {1: 9.0, 8: 6.5}, (0.972, 0.003))


def split_cifar(datasets: Datasets, device: torch.device, quick: bool) -> Iterator[Report]:
    """6 tasks of 60 epochs, at most 22 s a run."""
    cases = {
        f"{runs} seeds, {precision}": train(datasets, device, quick, "split-cifar", precision, runs)
        for runs in (2 if quick else 8,)
        for precision in ("bf16", "tf32")
    }
    title = "Split CIFAR with SI: 6 tasks × 60 epochs, the paper's CNN, batch 256, Adam"
    yield _report("gpu-split-cifar", title, cases, {8: 22.0}, (0.744, 0.010))


def _report(
    name: str, title: str, cases: dict[str, Timed], limits: dict[int, float], expected: tuple[float, float]
) -> Report:
    report = Report(name, title, NOTES + [timed.describe(case) for case, timed in cases.items()], {})
    for case, timed in cases.items():
        report.ratios.append(Ratio(f"seconds a run, {case}", timed.a_run, limits.get(len(timed.accuracies)), unit=" s"))
        off = abs(statistics.mean(timed.accuracies) - expected[0])
        said = f"points between mean accuracy and {expected[0]:.1%}, {case}"
        report.ratios.append(Ratio(said, 100 * off, 100 * expected[1]))
        report.details[f"Where a step's time goes, {case}"] = timed.profile
    return report


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
