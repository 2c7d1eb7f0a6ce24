r"""The functions :math:`\varphi` that every measure after training is built on, and that of a plain mean.

All are multiplicative, :math:`\varphi(ab) = \varphi(a)\,\varphi(b)`, and that is what makes the per-sample engine
fast and exact: the importance of a linear layer's weights is one matrix product of :math:`\varphi(\delta)` with
:math:`\varphi(a)`, and a weight :math:`w \ge 0` on a score can be folded into the score's gradient, since
:math:`w\,\varphi(u) = \varphi(\varphi^{-1}(w)\,u)`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor


@dataclass(frozen=True)
class Phi(ABC):
    """A multiplicative function of a gradient's element; two of one kind are equal."""

    name: ClassVar[str]

    @abstractmethod
    def __call__(self, u: Tensor) -> Tensor:
        """Return φ(u), a tensor of its own."""

    @abstractmethod
    def inverse(self, w: Tensor) -> Tensor:
        """Return the u ≥ 0 with φ(u) = w, for w ≥ 0."""

    def sum(self, u: Tensor, dim: tuple[int, ...]) -> Tensor:
        """Return φ(u) summed over the dimensions ``dim``."""
        return self(u).sum(dim)

    def add_(self, total: Tensor, u: Tensor) -> None:
        """Add φ(u) to ``total`` in place."""
        total.add_(self(u))

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, repr=False)
class Square(Phi):
    r"""``φ(u) = u²``, of the Fisher information."""

    name: ClassVar[str] = "square"

    def __call__(self, u: Tensor) -> Tensor:
        """Return u²."""
        return u.square()

    def inverse(self, w: Tensor) -> Tensor:
        """Return √w."""
        return w.sqrt()

    def add_(self, total: Tensor, u: Tensor) -> None:
        """Add u² to ``total``, without a tensor for it."""
        total.addcmul_(u, u)


@dataclass(frozen=True, repr=False)
class Absolute(Phi):
    r"""``φ(u) = |u|``, of AF and MAS."""

    name: ClassVar[str] = "absolute"

    def __call__(self, u: Tensor) -> Tensor:
        """Return abs(u)."""
        return u.abs()

    def inverse(self, w: Tensor) -> Tensor:
        return w


@dataclass(frozen=True, repr=False)
class Identity(Phi):
    r"""``φ(u) = u``, of a plain mean."""

    name: ClassVar[str] = "identity"

    def __call__(self, u: Tensor) -> Tensor:
        """Return a copy of u, which may be added to."""
        return u.clone()

    def inverse(self, w: Tensor) -> Tensor:
        return w

    def sum(self, u: Tensor, dim: tuple[int, ...]) -> Tensor:
        """Return the sum of u over ``dim``, without a copy."""
        return u.sum(dim)

    def add_(self, total: Tensor, u: Tensor) -> None:
        """Add u to ``total``, without a copy."""
        total.add_(u)


SQUARE = Square()
ABSOLUTE = Absolute()
IDENTITY = Identity()
