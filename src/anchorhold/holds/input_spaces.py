r"""The space that a layer's old inputs lie in, and what is left of a step D = [ΔW Δb] beside it.

Hard (GPM: Saha et al. 2021, arXiv 2103.09762): directions M that carry most of the inputs are closed,
:math:`D \mapsto D(1 - MM^T)`. Soft (OWM: Zeng et al. 2019, arXiv 1810.01256): each is left by how little of the inputs
it carries, :math:`D \mapsto D\,(1 + S/\alpha)^{-1}`, which by Woodbury's identity is their
:math:`1 - A(A^TA + \alpha)^{-1}A^T` with :math:`S = AA^T`.
"""

from abc import ABC, abstractmethod
from functools import cached_property

import torch
from torch import Tensor

from anchorhold.forms.factors import eigenbasis, trace_of
from anchorhold.tensors.matrices import decomposed
from anchorhold.tensors.storage import widest_dtype


class InputSpace(ABC):
    """What is known of a layer's old inputs.

    Args:
        kept: all of it, to be saved: a matrix, or a vector where inputs are rows that are looked up.
    """

    def __init__(self, kept: Tensor) -> None:
        self.kept = kept
        self._parts: dict[tuple[int | None, int | None], InputSpace] = {}

    @property
    def size(self) -> int:
        """How many inputs the layer has."""
        return len(self.kept)

    @property
    @abstractmethod
    def free(self) -> float:
        """How many dimensions are left to learn in; between whole numbers where the projection is soft."""

    @abstractmethod
    def left_of(self, d: Tensor) -> Tensor:
        """Return what is left of a step ``[outputs, inputs]``."""

    def of_some(self, inputs: slice) -> "InputSpace":
        """Return the space for a step that moves the weights of these inputs alone: worked out once."""
        place = inputs.start, inputs.stop
        if place not in self._parts:
            self._parts[place] = self._of_some(inputs)
        return self._parts[place]

    @abstractmethod
    def _of_some(self, inputs: slice) -> "InputSpace": ...


class HardSpace(InputSpace):
    """Directions that are closed: M, orthonormal columns; of rows that are looked up, 1 for each that is."""

    @classmethod
    def nothing(cls, a: Tensor, dtype: torch.dtype) -> "HardSpace":
        """Return the space before anything is closed, for inputs of this correlation."""
        return cls(a.new_zeros(len(a), dtype=dtype) if a.ndim == 1 else a.new_zeros(len(a), 0, dtype=dtype))

    @property
    def closed(self) -> int:
        """How many directions are."""
        return int(self.kept.sum()) if self.kept.ndim == 1 else self.kept.shape[1]

    @property
    def free(self) -> int:
        return self.size - self.closed

    def grown(self, a: Tensor, threshold: float) -> "HardSpace":
        r"""Return the space with as few directions more as hold the wanted share of a task's inputs.

        These are eigenvectors of what :math:`A = E[\bar a\bar a^T]` has beside the space, which are the singular
        vectors of :math:`R - MM^TR` for inputs R, until :math:`\|R_{proj}\|^2 + \|\hat R_k\|^2` is that share of
        :math:`\|R\|^2`.
        """
        exact = widest_dtype(a.device)
        a, m = a.to(exact), self.kept.to(exact)
        missing = (1 - threshold) * trace_of(a) + 10 * len(a) * torch.finfo(exact).eps * trace_of(a)
        if m.ndim == 1:
            values, order = (a * (1 - m)).sort(descending=True)
            m = m.index_fill(0, order[: _needed(values, missing)], 1.0)
            return HardSpace(m.to(self.kept.dtype))
        beside = a - m @ (m.mT @ a)
        beside = beside - (beside @ m) @ m.mT
        vectors, found = eigenbasis((beside + beside.mT) / 2)
        assert vectors is not None and found is not None
        count = min(_needed(found.flip(0), missing), self.free)
        new = vectors.flip(1)[:, :count]
        new = decomposed(torch.linalg.qr, new - m @ (m.mT @ new))[0]
        return HardSpace(torch.cat([m, new], 1).to(self.kept.dtype).contiguous())

    @cached_property
    def _open(self) -> Tensor:
        """The directions that are free, in columns."""
        exact = self.kept.to(widest_dtype(self.kept.device))
        whole: Tensor = decomposed(torch.linalg.qr, exact, mode="complete")[0]
        return whole[:, self.closed :].to(self.kept.dtype).contiguous()

    def left_of(self, d: Tensor) -> Tensor:
        """Return D(1 − MMᵀ), by the closed directions or by the free ones, whichever are fewer."""
        if self.kept.ndim == 1:
            return d * (1 - self.kept)
        if not self.free:
            return torch.zeros_like(d)
        if 2 * self.closed <= self.size:
            return d - (d @ self.kept) @ self.kept.mT
        return (d @ self._open) @ self._open.mT

    def _of_some(self, inputs: slice) -> "HardSpace":
        """Return the span of what the directions have there."""
        part = self.kept[inputs]
        if part.ndim == 1 or not part.shape[1]:
            return HardSpace(part)
        exact = part.to(widest_dtype(part.device))
        u, s, _ = decomposed(torch.linalg.svd, exact, full_matrices=False)
        return HardSpace(u[:, s > len(self.kept) * torch.finfo(self.kept.dtype).eps].to(part.dtype).contiguous())


class SoftSpace(InputSpace):
    """S, the sum of all tasks' E[āāᵀ], and α, the share of it below which a direction is more free than held."""

    def __init__(self, kept: Tensor, alpha: float) -> None:
        super().__init__(kept)
        self.alpha = alpha

    @classmethod
    def nothing(cls, a: Tensor, dtype: torch.dtype, alpha: float) -> "SoftSpace":
        """Return the space before any input was seen."""
        return cls(torch.zeros_like(a, dtype=dtype), alpha)

    def grown(self, a: Tensor) -> "SoftSpace":
        """Return the space with a task's inputs."""
        return SoftSpace((self.kept.to(a.dtype) + a).to(self.kept.dtype), self.alpha)

    @cached_property
    def _factor(self) -> Tensor:
        """(1 + S/α)⁻¹."""
        exact = self.kept.to(widest_dtype(self.kept.device)) / self.alpha
        if exact.ndim == 1:
            return (1 / (1 + exact)).to(self.kept.dtype)
        one = torch.eye(len(exact), dtype=exact.dtype, device=exact.device)
        root = decomposed(torch.linalg.cholesky, one + exact)
        inverse: Tensor = decomposed(torch.cholesky_inverse, root)
        return inverse.to(self.kept.dtype)

    @property
    def free(self) -> float:
        """The sum of what is left of all directions."""
        return float(trace_of(self._factor))

    def left_of(self, d: Tensor) -> Tensor:
        """Return D(1 + S/α)⁻¹."""
        return d * self._factor if self._factor.ndim == 1 else d @ self._factor

    def _of_some(self, inputs: slice) -> "SoftSpace":
        """Return the correlation of those."""
        return SoftSpace(self.kept[inputs] if self.kept.ndim == 1 else self.kept[inputs, inputs], self.alpha)


def _needed(values: Tensor, missing: Tensor) -> int:
    """Return how many of some values, largest first, leave no more than this to the others."""
    tails = values.flip(0).cumsum(0).flip(0)
    return int((tails > missing).sum())
