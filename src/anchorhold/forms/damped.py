r"""Q and a little of every direction, :math:`Q(D) + \lambda D`: what no sample has shown is held too."""

from collections.abc import Callable

import torch
from torch import Tensor

from anchorhold.forms.base import Displacement, Matrix, pulled_share
from anchorhold.forms.diagonal import DiagonalMatrix
from anchorhold.tensors.matrices import products_in


class Damped(Matrix):
    """Q + λ of one block."""

    def __init__(self, matrix: Matrix, damping: float) -> None:
        self.matrix = matrix
        self.damping = damping
        self.block = matrix.block

    @property
    def said(self) -> str:
        """What Q is."""
        return self.matrix.said

    def apply(self, d: Displacement) -> dict[str, Tensor]:
        """Return Q(D) + λD."""
        return {name: q + self.damping * d[name] for name, q in self.matrix.apply(d).items()}

    def at_hand(self, d: Displacement) -> "Damped":
        """Return the same with Q at hand."""
        return Damped(self.matrix.at_hand(d), self.damping)

    def apply_to_product(self, b: Tensor, a: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return those of Q, and λBAAᵀ and λBᵀBA."""
        own = self.matrix.apply_to_product(b, a)
        if own is None:
            return None
        with products_in("float32", b.device):
            return own[0] + self.damping * (b @ (a @ a.mT)), own[1] + self.damping * ((b.mT @ b) @ a)

    def plus(self, earlier: Matrix, decay: float) -> "Damped":
        """Return the sum of both, and of their dampings."""
        if isinstance(earlier, Damped):
            return Damped(self.matrix.plus(earlier.matrix, decay), self.damping + decay * earlier.damping)
        return Damped(self.matrix.plus(earlier, decay), self.damping)

    def scaled(self, factor: float) -> "Damped":
        """Return a multiple of both."""
        return Damped(self.matrix.scaled(factor), factor * self.damping)

    def shrink(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        """Return (1 + cλ + cQ)⁻¹D."""
        own = 1 + strength * self.damping
        return {name: shrunk / own for name, shrunk in self.matrix.shrink(d, strength / own).items()}

    def pulled(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        """Return what that takes off D, cλD/(1 + cλ) and Q's own part of the rest.

        Not as D − (1 + cλ + cQ)⁻¹D: that turns all of D into Q's coordinates and back at every step, also where next to
        nothing holds it, and what those lack of being orthonormal would multiply from step to step.
        """
        own = 1 + strength * self.damping
        share = float(pulled_share(torch.tensor(strength * self.damping, dtype=torch.float64)))
        return {name: share * d[name] + pull / own for name, pull in self.matrix.pulled(d, strength / own).items()}

    def solve(self, b: Displacement, damping: float = 0.0) -> dict[str, Tensor]:
        """Return (Q + λ + damping)⁻¹B."""
        return self.matrix.solve(b, self.damping + damping)

    def diagonal(self) -> dict[str, Tensor]:
        """Return that of Q, and λ."""
        return {name: omega + self.damping for name, omega in self.matrix.diagonal().items()}

    def trace(self) -> Tensor:
        """Return the sum of all eigenvalues."""
        weights = sum(omega.numel() for omega in self.matrix.diagonal().values())
        return self.matrix.trace() + self.damping * weights

    def largest_eigenvalue(self) -> Tensor:
        """Return the largest, and λ."""
        return self.matrix.largest_eigenvalue() + self.damping

    def tensors(self) -> dict[str, Tensor]:
        """Return what Q is made of."""
        return self.matrix.tensors()

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "Damped":
        """Return the same with Q's tensors changed."""
        return Damped(self.matrix.mapped(change), self.damping)


def damped_by(matrix: Matrix, damping: float) -> Matrix:
    """Return Q + λ: of a diagonal, another one."""
    if isinstance(matrix, DiagonalMatrix):
        return DiagonalMatrix(matrix.name, matrix.omega + damping)
    return Damped(matrix, damping)
