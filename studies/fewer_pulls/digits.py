"""Permuted digits: how well all tasks are known in the end, by each way."""

import itertools
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Optimizer

from anchorhold_lab.training.relative_guard import RelativeGuard
from studies import permuted_digits
from studies.fewer_pulls.ways import Puller, Way, multiplications

TASKS, STEPS, BATCH, WIDTH = 3, permuted_digits.STEPS, permuted_digits.BATCH, permuted_digits.WIDTH
RATES = {"SGD": 0.3, "momentum": 0.03, "Adam": 3e-3}


def new_optimizer(name: str, model: nn.Module) -> Optimizer:
    """Return a new optimizer of a model."""
    if name == "Adam":
        return torch.optim.Adam(model.parameters(), lr=RATES[name])
    return torch.optim.SGD(model.parameters(), lr=RATES[name], momentum=0.9 if name == "momentum" else 0.0)


def run(optimizer_name: str, way: Way, strength: float, seed: int) -> dict[str, Any]:
    """Learn all tasks, and return how well they are known at the end; ``strength`` is a relative one."""
    data = permuted_digits.Data(seed)
    torch.manual_seed(seed)
    layers = [nn.Linear(*sizes) for sizes in itertools.pairwise((data.train[0].shape[1], WIDTH, WIDTH, 10))]
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    guard = RelativeGuard(model, "EWC", relative_strength=strength, form="rotated", monitors=())
    began = time.perf_counter()
    for task, permutation in enumerate(data.permutations[:TASKS]):
        x, y = data.train[0][:, permutation], data.train[1]
        optimizer = new_optimizer(optimizer_name, model)
        puller = Puller(guard, optimizer, way)  # which has nothing to pull by in the first task
        generator = torch.Generator().manual_seed(1000 * seed + task)
        for _ in range(STEPS):
            chosen = torch.randint(len(x), (BATCH,), generator=generator)
            optimizer.zero_grad()
            F.cross_entropy(model(x[chosen]), y[chosen]).backward()
            puller.before_step()
            optimizer.step()
            puller.after_step()
        puller.finish()
        if not all(bool(p.isfinite().all()) for p in model.parameters()):
            return {"diverged": True, "seconds": time.perf_counter() - began}
        guard.consolidate([x])
    found: dict[str, Any] = {"seconds": time.perf_counter() - began}
    found["multiplications"] = multiplications(guard.held.matrices.values(), way)
    with torch.no_grad():
        for what, (x, y) in (("validation", data.validation), ("test", data.test)):
            right = [float((model(x[:, p]).argmax(1) == y).float().mean()) for p in data.permutations[:TASKS]]
            found[what] = 100 * statistics.mean(right)
    return found


@dataclass(frozen=True)
class Trial:
    """One run on permuted digits."""

    optimizer: str
    way: Way
    strength: float
    seed: int

    def run(self) -> dict[str, Any]:
        """Make the run."""
        found = run(self.optimizer, self.way, self.strength, self.seed)
        about = {"optimizer": self.optimizer, "way": self.way._asdict(), "strength": self.strength, "seed": self.seed}
        return {**about, **found}


SGD_WAYS = (
    *(Way("every", k) for k in (1, 4, 16, 2, 8, 32, 64)),
    Way("turns", 4),
    Way("turns", 16),
    *(Way("leading", share=share) for share in (0.99, 0.9)),
    Way("gradient"),
    Way("reused", 4),
)
ADAM_WAYS = (
    Way("gradient"),
    *(Way("conjugate", k, products=10) for k in (4, 1, 8, 16, 64)),
    *(Way("conjugate", k, products=3) for k in (4, 1, 16)),
    Way("reused", 4),
)
STRENGTHS = {"SGD": (0.03, 0.1, 0.3), "momentum": (0.03, 0.1, 0.3), "Adam": (0.003, 0.01, 0.03, 0.1, 0.3)}
SEEDS = range(5)


def trials() -> Iterator[Trial]:
    """Yield all runs, a seed of all ways after the other, and plain SGD last."""
    for optimizers in (("Adam", "momentum"), ("SGD",)):
        for seed, optimizer in itertools.product(SEEDS, optimizers):
            ways = ADAM_WAYS if optimizer == "Adam" else SGD_WAYS
            for way, strength in itertools.product(ways, STRENGTHS[optimizer]):
                yield Trial(optimizer, way, strength, seed)
