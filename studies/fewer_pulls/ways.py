"""Ways to take work away from a hold's pull: each pulls a guard's layers after an optimizer's steps, or in them.

With h the rate of SGD and Q a layer's importance, the exact way is D ← (1 + 2chQ)⁻¹D after every step. The others:

- *every*: after every k-th step, for k steps at once: D ← (1 + 2ckhQ)⁻¹D, as Lie splitting has it;
- *turns*: the same, of another part of the layers at each step;
- *leading*: after every step, along the directions that hold a share of the trace, all others by their mean;
- *gradient*: 2cQD joins the gradient of every step; *reused*: that of the last k-th step does;
- *conjugate*: after every k-th step of Adam, (P + 2ckQ)D′ = PD with P = 1/h for each weight, by conjugate gradients.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from anchorhold import Guard
from anchorhold.forms.base import Matrix
from anchorhold.forms.rotated import RotatedMatrix
from anchorhold.holds.of_weights.quadratic import pulled
from studies.conjugate_steps.study import correction, root_of

AFTER = ("every", "turns", "leading", "conjugate")
"""The kinds that act after a step."""


class Way(NamedTuple):
    """One way to pull."""

    kind: str
    every: int = 1
    """k."""
    share: float = 1.0
    """Of the trace, in leading directions."""
    products: int = 0
    """Of Q, in a solution by conjugate gradients, beside one for its right-hand side."""

    @property
    def text(self) -> str:
        """The way in a few words."""
        more = f", {self.share:.1%} of the trace" if self.kind == "leading" else ""
        more += f", {self.products} products" if self.kind == "conjugate" else ""
        return f"{self.kind}, k = {self.every}{more}" if self.kind != "leading" else f"{self.kind}{more}"


class Puller:
    """Pull a guard's layers beside an optimizer that the guard itself does not hold back.

    Args:
        guard: with its importance and strength.
        optimizer: SGD, or Adam for the kinds that act by gradients or conjugate gradients.
        way: how to pull.
    """

    def __init__(self, guard: Guard, optimizer: Optimizer, way: Way) -> None:
        assert isinstance(guard.strength, float)
        self.guard, self.optimizer, self.way, self.c = guard, optimizer, way, guard.strength
        matrices = guard.held.matrices
        self.matrices = {
            name: leading(matrix, way.share) if way.kind == "leading" else matrix for name, matrix in matrices.items()
        }
        self.layers = list(self.matrices)
        self.taken = 0
        self.waiting = dict.fromkeys(self.layers, 0.0)
        """The sum of the learning rates of each layer's steps since it was pulled."""
        self.reused: dict[str, Tensor] = {}

    @torch.no_grad()
    def before_step(self) -> None:
        """Add the pull to the gradients, where it is one that joins them."""
        if self.way.kind not in ("gradient", "reused"):
            return
        if self.taken % self.way.every == 0:
            self.reused = {
                name: 2 * self.c * pull
                for matrix in self.matrices.values()
                for name, pull in matrix.apply(self._displacement(matrix)).items()
            }
        for name, pull in self.reused.items():
            gradient = self.guard.parameters[name].grad
            assert gradient is not None
            gradient.add_(pull)
        self.taken += 1

    @torch.no_grad()
    def after_step(self) -> None:
        """Pull the layers that are due."""
        if self.way.kind not in AFTER:
            return
        self.taken += 1
        for number, layer in enumerate(self.layers):
            self.waiting[layer] += float(self.optimizer.param_groups[0]["lr"])
            # In turns, each layer's own steps lie as far from the others' as can be.
            phase = number * self.way.every // len(self.layers) if self.way.kind == "turns" else 0
            if (self.taken + phase) % self.way.every == 0:
                self._pull(layer)

    @torch.no_grad()
    def finish(self) -> None:
        """Pull all layers for the steps that they still wait for."""
        for layer in self.layers:
            if self.waiting[layer]:
                self._pull(layer)

    def _pull(self, layer: str) -> None:
        matrix, rate = self.matrices[layer], self.waiting[layer]
        weights = {name: self.guard.parameters[name] for name in matrix.block.parameters}
        d = self._displacement(matrix)
        if self.way.kind == "conjugate":
            roots = {name: root_of(self.optimizer, weight) for name, weight in weights.items()}
            change, _ = correction(matrix, d, roots, rate * self.c, self.way.products)
        else:
            group = self.optimizer.param_groups[0]
            settled = (1 - group["dampening"]) / (1 - group["momentum"])
            change = {n: -pull for n, pull in pulled(matrix, d, 2 * self.c * rate * settled).items()}
        for name, weight in weights.items():
            weight.add_(change[name])
        self.waiting[layer] = 0.0

    def _displacement(self, matrix: Matrix) -> dict[str, Tensor]:
        anchor = self.guard.anchor
        return {name: self.guard.parameters[name].detach() - anchor[name] for name in matrix.block.parameters}


def leading(matrix: Matrix, share: float) -> Matrix:
    """Return a rotated Q along the fewest directions of each side that hold a share of the trace."""
    if not isinstance(matrix, RotatedMatrix):  # a bias by itself, or the scale of a norm
        return matrix
    return matrix if share >= 1 else matrix.truncate(ranks_for(matrix, share))


def ranks_for(matrix: RotatedMatrix, share: float) -> list[int | None]:
    """Return how many directions of the outputs and of the inputs hold a share of the trace."""
    ranks: list[int | None] = []
    for u, of_each in zip(matrix.basis, (matrix.s.sum(1), matrix.s.sum(0)), strict=True):
        if u is None:
            ranks.append(None)
            continue
        sums = of_each.flip(0).cumsum(0)  # the factor's eigenvalues ascend
        ranks.append(int((sums < share * sums[-1]).sum()) + 1)
    return ranks


def multiplications(matrices: Iterable[Matrix], way: Way) -> float:
    """Return the multiplications of a pull, on average over steps, as a share of those of one after each step.

    Along leading directions they are those of a thin basis, by which each product is made twice, if that is less.
    """
    whole = own = 0
    for matrix in matrices:
        assert isinstance(matrix, RotatedMatrix)
        sizes = matrix.block.size
        ranks = ranks_for(matrix, way.share) if way.kind == "leading" else [None, None]
        columns = sum(size if rank is None else min(2 * rank, size) for rank, size in zip(ranks, sizes, strict=True))
        own += math.prod(sizes) * columns
        whole += math.prod(sizes) * sum(sizes)
    times = 1 + way.products if way.kind == "conjugate" else 1
    return times * own / whole / way.every
