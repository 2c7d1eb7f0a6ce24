r"""The functions :math:`\varphi` that every measure after training is built on, and that of a plain mean.

All are multiplicative, :math:`\varphi(ab) = \varphi(a)\,\varphi(b)`, and that is what makes the per-sample engine
fast and exact: the importance of a linear layer's weights is one matrix product of :math:`\varphi(\delta)` with
:math:`\varphi(a)`, and a weight :math:`w \ge 0` on a score can be folded into the score's gradient, since
:math:`w\,\varphi(u) = \varphi(\varphi^{-1}(w)\,u)`.
"""

from typing import Protocol

from torch import Tensor


class Phi(Protocol):
    """A multiplicative function of a gradient's element."""

    name: str

    def __call__(self, u: Tensor) -> Tensor:
        """Return φ(u)."""
        ...

    def inverse(self, w: Tensor) -> Tensor:
        """Return the u ≥ 0 with φ(u) = w, for w ≥ 0."""
        ...

    def sum(self, u: Tensor, dim: tuple[int, ...]) -> Tensor:
        """Return φ(u) summed over the dimensions ``dim``."""
        ...

    def add_(self, total: Tensor, u: Tensor) -> None:
        """Add φ(u) to ``total`` in place."""
        ...


class Square:
    r"""``φ(u) = u²``, of the Fisher information."""

    name = "square"

    def __call__(self, u: Tensor) -> Tensor:
        """Return u²."""
        return u.square()

    def inverse(self, w: Tensor) -> Tensor:
        """Return √w."""
        return w.sqrt()

    def sum(self, u: Tensor, dim: tuple[int, ...]) -> Tensor:
        """Return the sum of u² over ``dim``."""
        return u.square().sum(dim)

    def add_(self, total: Tensor, u: Tensor) -> None:
        """Add u² to ``total``."""
        total.addcmul_(u, u)

    def __repr__(self) -> str:
        return "square"


class Absolute:
    r"""``φ(u) = |u|``, of AF and MAS."""

    name = "absolute"

    def __call__(self, u: Tensor) -> Tensor:
        """Return abs(u)."""
        return u.abs()

    def inverse(self, w: Tensor) -> Tensor:
        """Return w."""
        return w

    def sum(self, u: Tensor, dim: tuple[int, ...]) -> Tensor:
        """Return the sum of abs(u) over ``dim``."""
        return u.abs().sum(dim)

    def add_(self, total: Tensor, u: Tensor) -> None:
        """Add abs(u) to ``total``."""
        total.add_(u.abs())

    def __repr__(self) -> str:
        return "absolute"


class Identity:
    r"""``φ(u) = u``, of a plain mean."""

    name = "identity"

    def __call__(self, u: Tensor) -> Tensor:
        """Return a copy of u, which may be added to."""
        return u.clone()

    def inverse(self, w: Tensor) -> Tensor:
        """Return w."""
        return w

    def sum(self, u: Tensor, dim: tuple[int, ...]) -> Tensor:
        """Return the sum of u over ``dim``."""
        return u.sum(dim)

    def add_(self, total: Tensor, u: Tensor) -> None:
        """Add u to ``total``."""
        total.add_(u)

    def __repr__(self) -> str:
        return "identity"


SQUARE = Square()
ABSOLUTE = Absolute()
IDENTITY = Identity()
