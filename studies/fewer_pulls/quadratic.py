"""Each way on a quadratic, in double precision: how far it ends from the minimum, and from the exact path.

A layer of m × n weights has the loss ½⟨D − B, H(D − B)⟩ and the hold c⟨D, QD⟩, with D from the anchor. Both H and Q are
diagonals in Kronecker-factored bases, and their bases differ. Steps are those of SGD at the rate h without noise, so
that the exact way converges to the minimum of both, (H + 2cQ)⁻¹HB.
"""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from anchorhold.engine.reductions import Basis, Block
from anchorhold.forms.rotated import RotatedMatrix
from anchorhold.holds.of_weights.quadratic import pulled
from studies.fewer_pulls.ways import Way, leading

OUTPUTS, INPUTS = 12, 20
RATE, STEPS = 0.1, 2048
DECADES = 4.0
"""Over how many decades the eigenvalues of Q spread along each side; those of H by half a decade."""
WAYS = (
    *(Way("every", k) for k in (1, 2, 4, 8, 16, 32, 64)),
    *(Way("leading", share=share) for share in (0.9, 0.99, 0.999, 1.0)),
    Way("gradient"),
    *(Way("reused", k) for k in (2, 4, 8)),
)
DIVERGED = 1e6
STRENGTHS = (0.1, 1.0, 10.0, 1e3, 1e6)


class Quadratic:
    """A loss and a hold, both quadratic, of one layer."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        size = OUTPUTS * INPUTS
        block = Block("layer", ("weight",), (OUTPUTS, INPUTS))
        outputs, inputs = _spectrum(OUTPUTS, DECADES), _spectrum(INPUTS, DECADES)
        bases, spectra = Basis(_rotation(OUTPUTS), _rotation(INPUTS)), Basis(outputs, inputs)
        self.q = RotatedMatrix(block, torch.outer(outputs, inputs), bases, spectra)
        u = torch.kron(_rotation(OUTPUTS), _rotation(INPUTS))
        self.h = (u * torch.outer(_spectrum(OUTPUTS, 0.5), _spectrum(INPUTS, 0.5)).flatten()) @ u.mT
        self.best = torch.randn(OUTPUTS, INPUTS, dtype=torch.float64)
        identity = torch.eye(size, dtype=torch.float64)
        self.dense = torch.stack([self.apply(row.view(OUTPUTS, INPUTS)).flatten() for row in identity])

    def apply(self, d: Tensor) -> Tensor:
        """Return QD."""
        return self.q.apply({"weight": d})["weight"]

    def gradient(self, d: Tensor) -> Tensor:
        """Return the loss's own gradient."""
        return (self.h @ (d - self.best).flatten()).view_as(d)

    def minimum(self, strength: float) -> Tensor:
        """Return where loss and hold together are least."""
        solved: Tensor = torch.linalg.solve(self.h + 2 * strength * self.dense, self.h @ self.best.flatten())
        return solved.view_as(self.best)

    def fixed_point(self, strength: float, every: int) -> Tensor:
        """Return where k steps and a pull for k steps lead back to, in closed form: D = P(A D + (1 − A)B)."""
        identity = torch.eye(self.h.shape[0], dtype=torch.float64)
        a = torch.linalg.matrix_power(identity - RATE * self.h, every)
        p = torch.linalg.inv(identity + 2 * strength * RATE * every * self.dense)
        solved: Tensor = torch.linalg.solve(identity - p @ a, p @ (identity - a) @ self.best.flatten())
        return solved.view_as(self.best)

    def ends(self, way: Way, strength: float) -> Tensor:
        """Return where a way ends after many steps from the anchor."""
        d = torch.zeros_like(self.best)
        q = leading(self.q, way.share) if way.kind == "leading" else self.q
        reused = torch.zeros_like(d)
        for step in range(STEPS):
            gradient = self.gradient(d)
            if way.kind in ("gradient", "reused"):
                if step % way.every == 0:
                    reused = 2 * strength * self.apply(d)
                gradient = gradient + reused
            d = d - RATE * gradient
            if way.kind in ("every", "leading") and (step + 1) % way.every == 0:
                d = d - pulled(q, {"weight": d}, 2 * strength * RATE * way.every)["weight"]
            if not bool(d.isfinite().all()):
                break
        return d

    def regret(self, d: Tensor, strength: float) -> float:
        """Return by how much loss and hold together lie above their least value, as a share of what it is at B."""

        def value(x: Tensor) -> Tensor:
            away = (x - self.best).flatten()
            return away @ self.h @ away / 2 + strength * (x * self.apply(x)).sum()

        least = value(self.minimum(strength))
        return float((value(d) - least) / least)


def _spectrum(size: int, decades: float) -> Tensor:
    """Return eigenvalues from 1 down over so many decades, the largest ones last."""
    return torch.logspace(-decades, 0, size, dtype=torch.float64)


def _rotation(size: int) -> Tensor:
    q, _ = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64))
    rotation: Tensor = q.contiguous()
    return rotation


def wanted() -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Yield each way at each strength, with what makes its row."""
    problem = Quadratic()
    for way, strength in itertools.product(WAYS, STRENGTHS):
        yield f"{way.text}, c = {strength:g}", partial(row, problem, way, strength)


def row(problem: Quadratic, way: Way, strength: float) -> dict[str, Any]:
    """Return how far a way ends from the minimum, and from the closed form where there is one."""
    end, least, size = problem.ends(way, strength), problem.minimum(strength), problem.best.norm()
    away = float((end - least).norm() / size)
    is_finite = bool(end.isfinite().all()) and away < DIVERGED
    found = {"way": way.text, "strength": strength, "away": away if is_finite else None}
    found["regret"] = problem.regret(end, strength) if is_finite else None
    if way.kind == "every":
        found["from closed form"] = float((end - problem.fixed_point(strength, way.every)).norm() / size)
    return found
