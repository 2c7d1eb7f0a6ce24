"""Every optimiser of torch.optim."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.families.family import Section
from benchmarks.families.optimisers.judging import Trained, by_closure

torch_optimisers = Section[Trained]("Optimisers of torch")


def matrices(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.ndim == 2]


def muon(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Muon(matrices(model), lr=0.02)


TABLE: list[tuple[str, str, dict[str, Any]]] = [
    ("SGD", "plain", {"lr": 0.1}),
    ("SGD", "momentum, Nesterov, weight decay", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("SGD", "fused", {"lr": 0.1, "momentum": 0.9, "fused": True}),
    ("Adam", "plain", {"lr": 0.01}),
    ("Adam", "foreach", {"lr": 0.01, "foreach": True}),
    ("Adam", "fused", {"lr": 0.01, "fused": True}),
    ("AdamW", "AMSGrad", {"lr": 0.01, "amsgrad": True}),
    ("Adamax", "", {"lr": 0.01}),
    ("NAdam", "", {"lr": 0.01}),
    ("RAdam", "", {"lr": 0.01}),
    ("Adagrad", "", {"lr": 0.01}),
    ("Adadelta", "", {"lr": 1.0, "strength": 50.0}),
    ("RMSprop", "centred, momentum", {"lr": 0.01, "centered": True, "momentum": 0.5}),
    ("Rprop", "", {"lr": 0.01}),
    ("ASGD", "", {"lr": 0.1}),
    ("Adafactor", "", {"lr": 0.01}),
]


def _maker(name: str, options: dict[str, Any]) -> Callable[[], Trained]:
    strength = options.pop("strength", None)

    def make() -> Trained:
        kind = getattr(torch.optim, name)
        return Trained(lambda model: kind(model.parameters(), **options), lr=options["lr"], strength=strength)

    return make


for _name, _what, _options in TABLE:
    torch_optimisers.enter(_name + (f", {_what}" if _what else ""), _what or "as it is", _maker(_name, _options))


@torch_optimisers.add("LBFGS")
def lbfgs() -> Trained:
    """With a closure and a line search; it evaluates the loss several times a step."""
    return Trained(lambda m: torch.optim.LBFGS(m.parameters(), lr=0.2, line_search_fn="strong_wolfe"), by_closure, 0.2)


@torch_optimisers.add("Adam with a closure")
def with_closure() -> Trained:
    """optimizer.step(closure)."""
    return Trained(lambda m: torch.optim.Adam(m.parameters(), lr=0.01), by_closure)


@torch_optimisers.add("Muon with AdamW")
def muon_and_adam() -> Trained:
    """Matrices by torch.optim.Muon, the rest by AdamW, both attached."""

    class Both:
        def __init__(self, model: nn.Module) -> None:
            rest = [p for p in model.parameters() if p.ndim != 2]
            self.parts = [muon(model), torch.optim.AdamW(rest, lr=0.01)]

        def zero_grad(self) -> None:
            for part in self.parts:
                part.zero_grad()

        def step(self) -> None:
            for part in self.parts:
                part.step()

    if not hasattr(torch.optim, "Muon"):
        raise ImportError(f"torch {torch.__version__} has no Muon")
    return Trained(Both, attach=lambda both: tuple(both.parts))


@torch_optimisers.add("SparseAdam")
def sparse_adam() -> Trained:
    """Takes sparse gradients alone, and a penalty is dense."""

    def step(optimizer: Any, loss: Any) -> None:
        optimizer.zero_grad()
        loss().backward()
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad = p.grad.to_sparse()
        optimizer.step()

    return Trained(lambda m: torch.optim.SparseAdam(m.parameters(), lr=0.01), step, refused=True)


@torch_optimisers.add("maximize")
def maximize() -> Trained:
    """SGD that climbs, and would climb the penalty."""

    def step(optimizer: Any, loss: Any) -> None:
        optimizer.zero_grad()
        (-loss()).backward()
        optimizer.step()

    return Trained(lambda m: torch.optim.SGD(m.parameters(), lr=0.1, maximize=True), step, refused=True)


@torch_optimisers.add("compiled step")
def compiled_step() -> Trained:
    """torch.compile around optimizer.step, through the eager backend."""

    def make(model: nn.Module) -> Any:
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)  # gets an attribute of its own
        optimizer.whole = torch.compile(optimizer.step, backend="eager")
        return optimizer

    def step(optimizer: Any, loss: Any) -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.whole()

    return Trained(make, step, 0.1)


@torch_optimisers.add("in backward, an optimiser for each parameter")
def in_backward() -> Trained:
    """As torch's tutorial has it: a hook steps and clears as soon as a gradient is there."""

    class InBackward:
        def __init__(self, model: nn.Module) -> None:
            self.parts: dict[torch.Tensor, torch.optim.Adam] = {
                p: torch.optim.Adam([p], lr=0.01) for p in model.parameters()
            }
            for p in self.parts:
                p.register_post_accumulate_grad_hook(self._step)

        def _step(self, p: torch.Tensor) -> None:
            self.parts[p].step()
            self.parts[p].zero_grad()

        def zero_grad(self) -> None: ...

        def step(self) -> None: ...

    return Trained(InBackward, attach=lambda whole: tuple(whole.parts.values()))
