"""Permuted digits, and permuted MNIST with less of everything: how well all tasks are known in the end, by each way."""

import itertools
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from anchorhold_lab.data import Dataset
from anchorhold_lab.training.relative_guard import RelativeGuard
from studies import permuted_digits
from studies.fewer_pulls.ways import Puller, Way

Samples = tuple[Tensor, Tensor]

OPTIMIZERS = ("SGD", "momentum", "Adam")
RATES = {"SGD": 0.3, "momentum": 0.03, "Adam": 3e-3}


def new_optimizer(name: str, model: nn.Module) -> Optimizer:
    """Return a new optimizer of a model."""
    if name == "Adam":
        return torch.optim.Adam(model.parameters(), lr=RATES[name])
    return torch.optim.SGD(model.parameters(), lr=RATES[name], momentum=0.9 if name == "momentum" else 0.0)


@dataclass(frozen=True)
class Setting:
    """Tasks of permuted pictures, and the network that learns them."""

    name: str
    tasks: int
    steps: int
    batch: int
    hidden: tuple[int, ...]
    measured: int | None = None
    """Of how many pictures of each task the importance is; ``None`` for all."""


DIGITS = Setting("digits", 5, 300, 64, (64, 64))


@dataclass(frozen=True)
class Pictures:
    """The pictures of one seed, and a permutation for each task."""

    train: Samples
    validation: Samples
    test: Samples
    permutations: list[Tensor] = field(default_factory=list)


def digits(seed: int) -> Pictures:
    """Return permuted digits."""
    data = permuted_digits.Data(seed)
    return Pictures(data.train, data.validation, data.test, data.permutations)


def run(setting: Setting, data: Pictures, optimizer_name: str, way: Way, strength: float, seed: int) -> dict[str, Any]:
    """Learn all tasks, and return how well they are known at the end; ``strength`` is a relative one."""
    torch.manual_seed(seed)
    device = data.train[0].device
    sizes = (data.train[0].shape[1], *setting.hidden, 10)
    layers = [nn.Linear(inputs, outputs) for inputs, outputs in itertools.pairwise(sizes)]
    model = nn.Sequential(*_layers(layers)).to(device)
    guard = RelativeGuard(model, "EWC", relative_strength=strength, form="rotated", from_scratch=True)
    began, first = time.perf_counter(), True
    for task, permutation in enumerate(data.permutations[: setting.tasks]):
        x, y = data.train[0][:, permutation], data.train[1]
        optimizer = new_optimizer(optimizer_name, model)
        puller = None if first else Puller(guard, optimizer, way)
        generator = torch.Generator().manual_seed(1000 * seed + task)
        for _ in range(setting.steps):
            chosen = torch.randint(len(x), (setting.batch,), generator=generator).to(device)
            optimizer.zero_grad()
            F.cross_entropy(model(x[chosen]), y[chosen]).backward()
            if puller is not None:
                puller.before_step()
            optimizer.step()
            if puller is not None:
                puller.after_step()
        if puller is not None:
            puller.finish()
        if not all(bool(p.isfinite().all()) for p in model.parameters()):
            return {"diverged": True, "seconds": time.perf_counter() - began}
        guard.consolidate([x[: setting.measured]])
        first = False
    found: dict[str, Any] = {"seconds": time.perf_counter() - began}
    with torch.no_grad():
        for what, (x, y) in (("validation", data.validation), ("test", data.test)):
            right = [float((model(x[:, p]).argmax(1) == y).float().mean()) for p in data.permutations[: setting.tasks]]
            found[what] = 100 * statistics.mean(right)
            found[f"{what} of each"] = [100 * each for each in right]
    return found


def _layers(linear: list[nn.Linear]) -> list[nn.Module]:
    """Return the layers of a network with ReLU between them."""
    found: list[nn.Module] = []
    for layer in linear:
        found += [layer, nn.ReLU()]
    return found[:-1]


def mnist(dataset: Dataset, seed: int, tasks: int, samples: int, device: torch.device) -> Pictures:
    """Return permuted MNIST: some of the training set to learn from, others to choose by, some of the test set."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(dataset.train.labels), generator=generator)
    chosen, others = order[:samples], order[samples : samples + 3000]
    permutations = [torch.randperm(28 * 28, generator=generator).to(device) for _ in range(tasks)]
    parts = ((dataset.train, chosen), (dataset.train, others), (dataset.test, torch.arange(6000)))
    own = [
        (images.pixels[i].flatten(1).float().div(255).to(device), images.labels[i].to(device)) for images, i in parts
    ]
    return Pictures(*own, permutations)
