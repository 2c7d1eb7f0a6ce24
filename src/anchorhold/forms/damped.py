r"""Q and a multiple of the identity, :math:`Q(D) + \lambda D`: directions that no sample has shown are held too."""

import dataclasses

import torch
from torch import Tensor

from anchorhold.engine.reductions import Block
from anchorhold.forms.base import Displacement, Matrix, pull_share
from anchorhold.forms.diagonal import DiagonalMatrix
from anchorhold.tensors.matrices import products_in


@dataclasses.dataclass(eq=False)
class DampedMatrix(Matrix):
    """Q + λ of one block; its state is Q's."""

    block: Block = dataclasses.field(init=False)
    matrix: Matrix
    damping: float

    def __post_init__(self) -> None:
        self.block = self.matrix.block

    @property
    def description(self) -> str:
        return self.matrix.description

    def apply(self, d: Displacement) -> dict[str, Tensor]:
        """Return Q(D) + λD."""
        return {name: q + self.damping * d[name] for name, q in self.matrix.apply(d).items()}

    def apply_to_product(self, b: Tensor, a: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return Q(BA)Aᵀ + λBAAᵀ and BᵀQ(BA) + λBᵀBA."""
        own = self.matrix.apply_to_product(b, a)
        if own is None:
            return None
        with products_in("float32", b.device):
            return own[0] + self.damping * (b @ (a @ a.mT)), own[1] + self.damping * ((b.mT @ b) @ a)

    def shrink(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        """Return (1 + cλ + cQ)⁻¹D."""
        own = 1 + strength * self.damping
        return {name: shrunk / own for name, shrunk in self.matrix.shrink(d, strength / own).items()}

    def pull(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        """Return cλD/(1 + cλ) and Q's own pull on the rest."""
        # Not as D − (1 + cλ + cQ)⁻¹D: that would turn all of D into Q's coordinates and back at every step, also where
        # next to nothing holds it, and multiply the rounding errors of coordinates that are not quite orthonormal.
        own = 1 + strength * self.damping
        share = float(pull_share(torch.tensor(strength * self.damping, dtype=torch.float64)))
        return {name: share * d[name] + pull / own for name, pull in self.matrix.pull(d, strength / own).items()}

    def solve(self, b: Displacement, damping: float = 0.0) -> dict[str, Tensor]:
        """Return (Q + λ + damping)⁻¹B."""
        return self.matrix.solve(b, self.damping + damping)

    def add(self, earlier: Matrix, decay: float) -> "DampedMatrix":
        """Return the sum of both Q, and of both λ."""
        if isinstance(earlier, DampedMatrix):
            return DampedMatrix(self.matrix.add(earlier.matrix, decay), self.damping + decay * earlier.damping)
        return DampedMatrix(self.matrix.add(earlier, decay), self.damping)

    def scale(self, factor: float) -> "DampedMatrix":
        """Return a multiple of Q and of λ."""
        return DampedMatrix(self.matrix.scale(factor), factor * self.damping)

    def diagonal(self) -> dict[str, Tensor]:
        """Return the diagonal of Q, and λ."""
        return {name: omega + self.damping for name, omega in self.matrix.diagonal().items()}

    def trace(self) -> Tensor:
        """Return the trace of Q, and λ for every weight."""
        weights = sum(omega.numel() for omega in self.matrix.diagonal().values())
        return self.matrix.trace() + self.damping * weights

    def largest_eigenvalue(self) -> Tensor:
        """Return the largest eigenvalue of Q, and λ."""
        return self.matrix.largest_eigenvalue() + self.damping

    def state(self) -> dict[str, Tensor]:
        return self.matrix.state()

    def to_compute(self, d: Displacement) -> "DampedMatrix":
        return DampedMatrix(self.matrix.to_compute(d), self.damping)


def add_damping(matrix: Matrix, damping: float) -> Matrix:
    """Return Q + λ; a diagonal stays a diagonal."""
    if isinstance(matrix, DiagonalMatrix):
        return DiagonalMatrix(matrix.name, matrix.omega + damping)
    return DampedMatrix(matrix, damping)
