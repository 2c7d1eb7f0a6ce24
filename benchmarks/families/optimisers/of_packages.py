"""Optimisers of packages that may be installed."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import nn

from benchmarks.families.family import Section
from benchmarks.families.optimisers.judging import Loss, Trained, by_closure, plain

packages = Section[Trained]("Optimisers of packages")

NAMES = (
    "adabelief", "adabound", "adahessian", "adalomo", "adammini", "adamp", "adan", "adopt", "aggmo", "amos", "apollo",
    "came", "dadaptadam", "dadaptsgd", "diffgrad", "fira", "fromage", "galore", "grams", "kron", "lamb", "laprop",
    "lars", "lion", "lomo", "madgrad", "mars", "muon", "nero", "novograd", "pid", "prodigy", "qhadam", "racs",
    "ranger", "ranger21", "scalableshampoo", "schedulefreeadamw", "schedulefreesgd", "scion", "sgdp", "shampoo",
    "signsgd", "sm3", "soap", "sophiah", "splus", "stableadamw", "swats", "tiger", "yogi",
)  # fmt: skip


LEARNED_RATE = {"prodigy", "dadaptadam", "dadaptsgd"}
IN_BACKWARD = {"lomo", "adalomo"}
CURVATURE = {"adahessian", "sophiah"}
"""These differentiate the gradient again, and see the curvature of the loss, not of what holds."""


def _of_collection(name: str) -> Callable[[], Trained]:
    def make() -> Trained:
        kind = import_module("pytorch_optimizer").load_optimizer(name)

        def built(model: nn.Module) -> Any:
            if name in IN_BACKWARD | {"adammini"}:
                return kind(model, lr=0.05 if name in IN_BACKWARD else 0.01)
            given: Any = (
                [{"params": list(model.parameters()), "use_muon": False}] if name == "muon" else model.parameters()
            )
            options = {"num_iterations": 100} if name == "ranger21" else {}
            optimizer = kind(given, lr=0.5 if name in LEARNED_RATE else 0.01, **options)
            if name.startswith("schedulefree"):
                optimizer.train()
            return optimizer

        step = _in_backward if name in IN_BACKWARD else _keeping_graph if name in CURVATURE else plain
        return Trained(built, step, strength=5.0 if name == "adahessian" else None)

    return make


def _keeping_graph(optimizer: Any, loss: Loss) -> None:
    optimizer.zero_grad()
    loss().backward(create_graph=True)
    optimizer.step()


def _in_backward(optimizer: Any, loss: Loss) -> None:
    optimizer.fused_backward(loss(), lr=0.05)


for _name in NAMES:
    packages.enter(f"pytorch_optimizer, {_name}", "as it is", _of_collection(_name))


@packages.add("pytorch_optimizer, SAM")
def sam() -> Trained:
    """Around SGD, with a closure."""
    kind = import_module("pytorch_optimizer").SAM

    def step(optimizer: Any, loss: Loss) -> None:
        def closure() -> torch.Tensor:
            value = loss()
            value.backward()
            return value

        loss().backward()
        optimizer.step(closure)
        optimizer.zero_grad()

    return Trained(lambda m: kind(m.parameters(), torch.optim.SGD, lr=0.1), step, 0.1)


@packages.add("pytorch_optimizer, Lookahead")
def lookahead() -> Trained:
    """Around Adam."""
    kind = import_module("pytorch_optimizer").Lookahead
    return Trained(lambda m: kind(torch.optim.Adam(m.parameters(), lr=0.01)))


@packages.add("schedulefree, AdamW")
def schedule_free() -> Trained:
    """The authors' package, in train mode."""
    kind = import_module("schedulefree").AdamWScheduleFree

    def built(model: nn.Module) -> Any:
        optimizer = kind(model.parameters(), lr=0.01)
        optimizer.train()
        return optimizer

    return Trained(built)


@packages.add("schedulefree, SGD with a closure")
def schedule_free_closure() -> Trained:
    """SGDScheduleFreeClosure, which moves to where the gradient is taken by itself."""
    kind = import_module("schedulefree").SGDScheduleFreeClosure
    return Trained(lambda m: kind(m.parameters(), lr=0.1), by_closure, 0.1)


@packages.add("lomo-optim, Lomo")
def lomo() -> Trained:
    """The authors' package: fused_backward in place of backward and step."""
    kind = import_module("lomo_optim").Lomo
    return Trained(lambda m: kind(m, lr=0.05), lambda optimizer, loss: optimizer.fused_backward(loss(), 0.05), 0.05)


@packages.add("lomo-optim, AdaLomo")
def adalomo() -> Trained:
    """Likewise, with a factored second moment."""
    kind = import_module("lomo_optim").AdaLomo
    return Trained(lambda m: kind(m, lr=0.05), lambda optimizer, loss: optimizer.fused_backward(loss(), 0.05), 0.05)


@packages.add("galore-torch, GaLoreAdamW")
def galore() -> Trained:
    """Adam in a low-rank projection of the gradient."""
    kind = import_module("galore_torch").GaLoreAdamW

    def built(model: nn.Module) -> Any:
        matrices = [p for p in model.parameters() if p.ndim == 2]
        rest = [p for p in model.parameters() if p.ndim != 2]
        low = {"params": matrices, "rank": 2, "update_proj_gap": 10, "scale": 1.0, "proj_type": "std"}
        return kind([{"params": rest}, low], lr=0.01)

    return Trained(built)
