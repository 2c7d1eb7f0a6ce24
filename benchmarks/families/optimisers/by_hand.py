"""Optimisers written out: what people copy from papers, and what does something unusual with weights or gradients."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.families.family import Section
from benchmarks.families.optimisers.judging import Loss, Trained, by_closure

by_hand = Section[Trained]("Optimisers by hand")


class Rule(Optimizer):
    """An optimiser that does one thing to every parameter."""

    def __init__(self, parameters: Iterable[Tensor], lr: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if closure is not None:
            with torch.enable_grad():
                closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.change(p, p.grad, self.state[p], group["lr"])

    def change(self, p: Tensor, g: Tensor, state: dict[str, Any], lr: float) -> None:
        raise NotImplementedError


def average(state: dict[str, Any], name: str, value: Tensor, beta: float) -> Tensor:
    found: Tensor = beta * state.get(name, torch.zeros_like(value)) + (1 - beta) * value
    state[name] = found
    return found


def trained(kind: type[Rule], lr: float = 0.01) -> Trained:
    return Trained(lambda model: kind(model.parameters(), lr), lr=lr)


@by_hand.add("Lion")
def lion() -> Trained:
    """The sign of a blend of momentum and gradient."""

    class Lion(Rule):
        def change(self, p: Tensor, g: Tensor, state: dict[str, Any], lr: float) -> None:
            p.add_((0.9 * state.get("m", torch.zeros_like(p)) + 0.1 * g).sign(), alpha=-lr)
            average(state, "m", g, 0.99)

    return trained(Lion)


@by_hand.add("Muon")
def muon() -> Trained:
    """Momentum made orthogonal by Newton and Schulz, for matrices; momentum for the rest."""

    class Muon(Rule):
        def change(self, p: Tensor, g: Tensor, state: dict[str, Any], lr: float) -> None:
            m = average(state, "m", g, 0.9)
            if m.ndim == 2:
                m = m / (m.norm() + 1e-7)
                for _ in range(5):
                    a = m @ m.T
                    m = 3.4445 * m - 4.7750 * a @ m + 2.0315 * a @ a @ m
            p.add_(m, alpha=-lr)

    return trained(Muon, 0.05)


@by_hand.add("Shampoo")
def shampoo() -> Trained:
    """Preconditioned on both sides by inverse fourth roots."""

    class Shampoo(Rule):
        def change(self, p: Tensor, g: Tensor, state: dict[str, Any], lr: float) -> None:
            m = g if g.ndim == 2 else g[:, None]
            left = state["l"] = state.get("l", 0.1 * torch.eye(len(m), dtype=g.dtype)) + m @ m.T
            right = state["r"] = state.get("r", 0.1 * torch.eye(m.shape[1], dtype=g.dtype)) + m.T @ m
            p.add_((self._root(left) @ m @ self._root(right)).view_as(p), alpha=-lr)

        def _root(self, matrix: Tensor) -> Tensor:
            values, vectors = torch.linalg.eigh(matrix)
            root: Tensor = vectors @ (values.clamp(min=1e-6) ** -0.25).diag() @ vectors.T
            return root

    return trained(Shampoo, 0.05)


@by_hand.add("SOAP")
def soap() -> Trained:
    """Adam in the eigenbasis of Shampoo's preconditioner."""

    class Soap(Rule):
        def change(self, p: Tensor, g: Tensor, state: dict[str, Any], lr: float) -> None:
            m = g if g.ndim == 2 else g[:, None]
            left = average(state, "l", m @ m.T, 0.9)
            basis = torch.linalg.eigh(left)[1]
            turned = basis.T @ m
            v = average(state, "v", turned**2, 0.9)
            p.add_((basis @ (turned / (v.sqrt() + 1e-8))).view_as(p), alpha=-lr)

    return trained(Soap)


@by_hand.add("Sophia")
def sophia() -> Trained:
    """Momentum over a running curvature estimate, clipped."""

    class Sophia(Rule):
        def change(self, p: Tensor, g: Tensor, state: dict[str, Any], lr: float) -> None:
            m, h = average(state, "m", g, 0.9), average(state, "h", g**2, 0.99)
            p.add_((m / (16 * h).clamp(min=1e-12)).clamp(-1, 1), alpha=-lr)

    return trained(Sophia)


@by_hand.add("LAMB and LARS")
def lamb() -> Trained:
    """A layer's step as long as a share of its weights."""

    class Lamb(Rule):
        def change(self, p: Tensor, g: Tensor, state: dict[str, Any], lr: float) -> None:
            update = average(state, "m", g, 0.9) / (average(state, "v", g**2, 0.99).sqrt() + 1e-8)
            p.add_(update, alpha=-lr * float(p.norm() / update.norm()))

    return trained(Lamb)


@by_hand.add("AdEMAMix")
def ademamix() -> Trained:
    """Two momenta, one of them slow."""

    class AdEMAMix(Rule):
        def change(self, p: Tensor, g: Tensor, state: dict[str, Any], lr: float) -> None:
            m, slow = average(state, "m", g, 0.9), average(state, "s", g, 0.999)
            p.add_((m + 5 * slow) / (average(state, "v", g**2, 0.99).sqrt() + 1e-8), alpha=-lr)

    return trained(AdEMAMix)


@by_hand.add("D-Adaptation and Prodigy")
def prodigy() -> Trained:
    """A step size that grows with the distance travelled."""

    class Prodigy(Rule):
        def change(self, p: Tensor, g: Tensor, state: dict[str, Any], lr: float) -> None:
            start = state.setdefault("start", p.clone())
            d = state["d"] = max(state.get("d", 1e-2), 0.3 * float((start - p).norm()))
            p.add_(average(state, "m", g, 0.9) / (average(state, "v", g**2, 0.99).sqrt() + 1e-8), alpha=-lr * d)

    return trained(Prodigy, 0.1)


@by_hand.add("gradient centralisation")
def centred() -> Trained:
    """The mean of every row is taken off the gradient, in place."""

    class Centred(Rule):
        def change(self, p: Tensor, g: Tensor, state: dict[str, Any], lr: float) -> None:
            if g.ndim > 1:
                g.sub_(g.mean(1, keepdim=True))
            p.add_(g, alpha=-lr)

    return trained(Centred, 0.1)


@by_hand.add("overwrites gradients")
def overwrites() -> Trained:
    """Weight decay and momentum are written into .grad itself."""

    class Overwrites(Rule):
        def change(self, p: Tensor, g: Tensor, state: dict[str, Any], lr: float) -> None:
            g.add_(p, alpha=0.01)
            state["m"] = g.add_(state.get("m", torch.zeros_like(p)), alpha=0.9).clone()
            p.sub_(g.mul_(lr))

    return trained(Overwrites, 0.1)


@by_hand.add("clears gradients in its step")
def clears() -> Trained:
    """p.grad = None after the update, to save memory."""

    class Clears(Rule):
        def change(self, p: Tensor, g: Tensor, state: dict[str, Any], lr: float) -> None:
            p.add_(g, alpha=-lr)
            p.grad = None

    return trained(Clears, 0.1)


@by_hand.add("8-bit states")
def eight_bit() -> Trained:
    """Adam whose moments are kept as bytes and a scale."""

    class EightBit(Rule):
        def change(self, p: Tensor, g: Tensor, state: dict[str, Any], lr: float) -> None:
            for name, value, beta in (("m", g, 0.9), ("v", g**2, 0.99)):
                code, scale = state.get(name, (torch.zeros_like(p, dtype=torch.int8), 1.0))
                new = beta * code.to(p.dtype) * scale + (1 - beta) * value
                scale = float(new.abs().max()) / 127 + 1e-12
                state[name] = (new / scale).round().to(torch.int8), scale
            m, v = (state[name][0].to(p.dtype) * state[name][1] for name in ("m", "v"))
            p.add_(m / (v.sqrt() + 1e-3), alpha=-lr)

    return trained(EightBit)


@by_hand.add("a flat copy of the weights")
def flat_copy() -> Trained:
    """All parameters become views of one vector, and so do their gradients (apex, fairscale)."""

    class Flat(Optimizer):
        def __init__(self, model: nn.Module) -> None:
            self.shown = list(model.parameters())
            self.flat = torch.cat([p.detach().flatten() for p in self.shown])
            start = 0
            for p in self.shown:
                p.data = self.flat[start : start + p.numel()].view_as(p)
                start += p.numel()
            super().__init__(self.shown, {"lr": 0.1})

        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            self.flat.sub_(0.1 * torch.cat([p.grad.flatten() for p in self.shown if p.grad is not None]))

    return Trained(Flat, lr=0.1)


@by_hand.add("master weights of its own")
def master() -> Trained:
    """Steps are taken by copies in double precision, and copied back."""

    class Master(Optimizer):
        def __init__(self, model: nn.Module) -> None:
            super().__init__(model.parameters(), {"lr": 0.01})
            self.copies = {p: p.detach().double().clone() for g in self.param_groups for p in g["params"]}

        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            for p, copy in self.copies.items():
                copy.sub_(0.1 * p.grad.double())
                p.copy_(copy)

    return Trained(Master, lr=0.1, dtype=torch.float32)


@by_hand.add("Lookahead")
def lookahead() -> Trained:
    """An optimiser around another, which goes half of the way back every five steps."""

    class Lookahead(Optimizer):
        def __init__(self, model: nn.Module) -> None:
            self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            super().__init__(model.parameters(), {"lr": 0.1})
            self.slow = {p: p.detach().clone() for p in model.parameters()}
            self.count = 0

        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            self.optimizer.step()
            self.count += 1
            if self.count % 5 == 0:
                for p, slow in self.slow.items():
                    p.copy_(slow.add_(p - slow, alpha=0.5))

    return Trained(Lookahead, lr=0.1)


@by_hand.add("a wrapper that is no Optimizer")
def wrapper() -> Trained:
    """Has .optimizer inside and steps it, as Accelerate's and schedulers' wrappers do."""

    class Wrapper:
        def __init__(self, model: nn.Module) -> None:
            self.optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

        def zero_grad(self) -> None:
            self.optimizer.zero_grad()

        def step(self) -> None:
            self.optimizer.step()

    return Trained(Wrapper)


class Sam(Optimizer):
    """Sharpness-aware minimisation around SGD, in the form with two steps and in that with a closure."""

    def __init__(self, model: nn.Module, lr: float = 0.1, rho: float = 0.05) -> None:
        super().__init__(model.parameters(), {"lr": lr, "rho": rho})
        self.base = torch.optim.SGD(self.param_groups, lr=lr)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        group = self.param_groups[0]
        norm = torch.stack([p.grad.norm() for p in group["params"]]).norm()
        for p in group["params"]:
            self.state[p]["old"] = p.detach().clone()
            p.add_(p.grad * (group["rho"] / (norm + 1e-12)))
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for p in self.param_groups[0]["params"]:
            p.copy_(self.state[p]["old"])
        self.base.step()
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        closure = torch.enable_grad()(closure)
        closure()
        self.first_step()
        closure()
        self.second_step()


@by_hand.add("SAM, closure")
def sam() -> Trained:
    """step(closure): up the slope, the gradient there, back, and a step of the base optimiser."""
    return Trained(Sam, by_closure, 0.1)


@by_hand.add("SAM, two steps")
def sam_two_steps() -> Trained:
    """first_step and second_step, with a backward pass before each: step() is never called."""

    def step(optimizer: Sam, loss: Loss) -> None:
        loss().backward()
        optimizer.first_step()
        loss().backward()
        optimizer.second_step()

    return Trained(Sam, step, 0.1)


@by_hand.add("SAM, two steps, its base attached")
def sam_base() -> Trained:
    """The same, with the guard attached to the optimiser inside, which gets the gradient of the perturbed weights."""

    def step(optimizer: Sam, loss: Loss) -> None:
        loss().backward()
        optimizer.first_step()
        loss().backward()
        optimizer.second_step()

    return Trained(Sam, step, 0.1, attach=lambda sam: (sam.base,), handed=True)


class ScheduleFree(Optimizer):
    """Schedule-free SGD: gradients at a blend of an iterate and its average, which are both kept here."""

    def __init__(self, model: nn.Module, lr: float = 0.1) -> None:
        super().__init__(model.parameters(), {"lr": lr})
        self.count = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        self.count += 1
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                z, x = state.setdefault("z", p.clone()), state.setdefault("x", p.clone())
                z.sub_(p.grad, alpha=group["lr"])
                x.lerp_(z, 1 / self.count)
                p.copy_(0.1 * z + 0.9 * x)


@by_hand.add("schedule-free")
def schedule_free() -> Trained:
    """The weights are a blend of an iterate and its average."""
    return Trained(ScheduleFree, lr=0.1)


class Lomo:
    """Updates in hooks, while gradients arrive, and frees them: there is no step."""

    def __init__(self, model: nn.Module, lr: float = 0.1) -> None:
        self.lr = lr
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(self._update)

    @torch.no_grad()
    def _update(self, p: Tensor) -> None:
        assert p.grad is not None
        p.sub_(p.grad, alpha=self.lr)
        p.grad = None

    def zero_grad(self, set_to_none: bool = True) -> None: ...

    def step(self, closure: Any = None) -> Any: ...


@by_hand.add("LOMO, no Optimizer")
def lomo() -> Trained:
    """Updates in hooks of the backward pass, by an object that is no Optimizer."""
    return Trained(Lomo, lr=0.1, refused=True)


class LomoOptimizer(Lomo, Optimizer):
    def __init__(self, model: nn.Module, lr: float = 0.1) -> None:
        Optimizer.__init__(self, model.parameters(), {"lr": lr})
        Lomo.__init__(self, model, lr)


@by_hand.add("LOMO, an Optimizer")
def lomo_optimizer() -> Trained:
    """The same by an Optimizer whose step() does nothing, as PyTorch wrappers of it have it."""
    return Trained(LomoOptimizer, lr=0.1)


@by_hand.add("evolution strategy")
def evolution() -> Trained:
    """Weights are moved by random trials, without gradients, inside step(closure)."""

    class Evolution(Optimizer):
        def __init__(self, model: nn.Module) -> None:
            super().__init__(model.parameters(), {"lr": 0.1})
            self.generator = torch.Generator().manual_seed(0)

        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            for p in self.param_groups[0]["params"]:
                noise = 0.05 * torch.randn(p.shape, dtype=p.dtype, generator=self.generator)
                before = closure()
                p.add_(noise)
                if closure() > before:
                    p.sub_(noise)

    def step(optimizer: Any, loss: Loss) -> None:
        optimizer.step(lambda: loss().detach())

    return Trained(Evolution, step, 0.1)


@by_hand.add("differential privacy, SGLD")
def noisy() -> Trained:
    """Clipped gradients, and noise in the step."""

    class Noisy(Rule):
        def change(self, p: Tensor, g: Tensor, state: dict[str, Any], lr: float) -> None:
            generator = state.setdefault("g", torch.Generator().manual_seed(p.numel()))
            noise = torch.randn(p.shape, dtype=p.dtype, generator=generator)
            p.add_(g / max(1.0, float(g.norm())) + 0.1 * noise, alpha=-lr)

    return trained(Noisy, 0.1)


@by_hand.add("projected steps")
def projected() -> Trained:
    """Weights are clamped after every step."""

    class Projected(Rule):
        def change(self, p: Tensor, g: Tensor, state: dict[str, Any], lr: float) -> None:
            p.add_(g, alpha=-lr).clamp_(-1, 1)

    return trained(Projected, 0.1)


@by_hand.add("replaces .data")
def replaces_data() -> Trained:
    """p.data becomes a new tensor at every step."""

    class Replaces(Rule):
        def change(self, p: Tensor, g: Tensor, state: dict[str, Any], lr: float) -> None:
            p.data = p.data - lr * g

    return trained(Replaces, 0.1)
