"""The exact Fisher of every MNIST training image, where the paper samples 1000."""

import time
from collections.abc import Iterator

import torch

import anchorhold
from anchorhold.tensors.matrices import tf32_allowed
from anchorhold_lab.data.locations import Datasets
from anchorhold_lab.experiments import paper_spec
from anchorhold_lab.experiments.running.engines import start_engine
from anchorhold_lab.training.fast import FastRuns
from benchmarks.gpu.training import SMALL, _synchronise
from benchmarks.harness import Ratio, Report

BATCH = 2000


def run(datasets: Datasets, device: torch.device, quick: bool) -> Iterator[Report]:
    """On the network as it is after one task, in float32 and with TF32."""
    changes = {**SMALL, "hidden": (200,)} if quick else {"tasks": 1}
    engine = start_engine([paper_spec("permuted-mnist", "fine-tune", **changes)], datasets, device)
    for _ in engine.learn():
        pass
    assert isinstance(engine, FastRuns)
    learner = engine.learners[0]
    samples = learner.samples(0)
    images = samples.x[:2000] if quick else samples.x
    batches = list(images.split(BATCH))
    seconds: dict[str, list[float]] = {}
    for name, allowed in (("float32", False), ("TF32", True)):
        with tf32_allowed(allowed, device):
            anchorhold.Fisher().measure(learner.model, batches[:2])  # warm
            seconds[name] = []
            for _ in range(1 if quick else 5):
                _synchronise(device)
                began = time.perf_counter()
                anchorhold.Fisher().measure(learner.model, batches)
                _synchronise(device)
                seconds[name].append(time.perf_counter() - began)
    title = f"Exact Fisher of 784-2000-2000-10 over {len(images):,} MNIST images, all ten labels"
    report = Report("gpu-fisher", title, ["A network that has learned the first task of Permuted MNIST."], seconds)
    for name in seconds:
        report.ratios.append(Ratio(f"seconds, {name}", report.median(name), 1.0, unit=" s"))
    yield report
