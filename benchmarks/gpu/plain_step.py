"""The same step of Permuted MNIST with SI, in the plain loop and in the fast engine."""

import time
from collections.abc import Iterator

import torch

from anchorhold_lab.data.locations import Datasets
from anchorhold_lab.experiments import paper_spec
from anchorhold_lab.experiments.running.engines import start_engine
from benchmarks.gpu.training import _synchronise
from benchmarks.harness import Report

NOTES = [
    (
        "Seconds of one epoch (234 steps) of the second task, when the first one's importance is in force; no "
        "evaluation. Fused Adam in the plain loop. Both with TF32."
    )
]


def run(datasets: Datasets, device: torch.device, quick: bool) -> Iterator[Report]:
    """Three epochs each, in turn."""
    engines = {
        engine: start_engine(
            [paper_spec("permuted-mnist", "SI", precision="tf32", engine=engine, tasks=2, epochs=1, later_epochs=4)]
            if not quick
            else [paper_spec("permuted-digits", "SI", engine=engine, tasks=2, epochs=1, later_epochs=4)],
            datasets,
            device,
        )
        for engine in ("plain", "fast")
    }
    pauses = {}
    for name, engine in engines.items():
        pauses[name] = engine.learn()
        for progress in pauses[name]:
            if progress.task == 1 and progress.step * 4 >= progress.steps:  # the first task, and a warm epoch
                break
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for epoch in (2, 3, 4):
        for name in engines:
            _synchronise(device)
            began = time.perf_counter()
            for progress in pauses[name]:
                if progress.step * 4 >= progress.steps * epoch:
                    break
            _synchronise(device)
            seconds[name].append(time.perf_counter() - began)
    report = Report("gpu-plain-step", "A step of Permuted MNIST with SI on a GPU: plain and fast", NOTES, seconds)
    report.ratio("plain loop / fast engine", "plain", "fast")
    yield report
