r"""A sum over tasks that keeps each part, :math:`Q(D) = \sum_k Q_k(D)`: exact, for as many times the memory.

The parts have no eigenbasis in common, so equations are solved by conjugate gradients (Hestenes and Stiefel 1952).
"""

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from anchorhold.engine.reductions import Block
from anchorhold.errors import AnchorholdWarning, StateError
from anchorhold.forms.base import Displacement, Matrix
from anchorhold.tensors.storage import widest_dtype

Linear = Callable[[Displacement], dict[str, Tensor]]
"""A symmetric and positive semi-definite map of a block's weights."""

MOST_STEPS = 1000
"""The most steps of conjugate gradients, each one application of Q."""

ROUNDINGS = 16
"""The most units in the last place by which rounding alone is taken to change a number."""

UNSETTLED = 1e-3
"""The residual above which a solution is warned of."""


@dataclasses.dataclass(eq=False)
class SumMatrix(Matrix):
    """The sum of several Q of one block."""

    block: Block = dataclasses.field(init=False)
    parts: Sequence[Matrix]

    def __post_init__(self) -> None:
        self.parts = tuple(self.parts)
        self.block = self.parts[0].block

    @property
    def description(self) -> str:
        return self.parts[0].description

    def apply(self, d: Displacement) -> dict[str, Tensor]:
        """Return the sum of all Q_k(D)."""
        found = [part.apply(d) for part in self.parts]
        return {name: torch.stack([each[name] for each in found]).sum(0) for name in found[0]}

    def value(self, d: Displacement) -> Tensor:
        """Return the sum of all ⟨D, Q_k(D)⟩."""
        return torch.stack([part.value(d) for part in self.parts]).sum()

    def apply_to_product(self, b: Tensor, a: Tensor) -> tuple[Tensor, Tensor] | None:
        found = [own for part in self.parts if (own := part.apply_to_product(b, a)) is not None]
        if len(found) < len(self.parts):
            return None
        return torch.stack([own[0] for own in found]).sum(0), torch.stack([own[1] for own in found]).sum(0)

    def shrink(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        """Return (1 + cQ)⁻¹D by conjugate gradients."""
        return self._solved(d, strength, 1.0)

    def pull(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        """Return D − X with X = (1 + cQ)⁻¹D, or the equal cQX if that has more digits."""
        if len(self.parts) == 1:
            return self.parts[0].pull(d, strength)
        # Where c is small, D − X has lost all digits; where c is large, cQ multiplies the rounding of X. Their errors
        # add up to D − X − cQX, so cQX is as good as D − X if that is no more than rounding of D.
        x = self.shrink(d, strength)
        applied = {name: strength * q for name, q in self.apply(x).items()}
        taken = {name: d[name] - each for name, each in x.items()}
        error = {name: taken[name] - applied[name] for name in x}
        rounding = ROUNDINGS * torch.finfo(next(iter(x.values())).dtype).eps
        size = inner(d, {name: d[name] for name in x})
        return applied if bool(inner(error, error) <= rounding**2 * size) else taken

    def solve(self, b: Displacement, damping: float = 0.0) -> dict[str, Tensor]:
        """Return (Q + damping)⁻¹B by conjugate gradients; without damping, 0 along what B does not reach."""
        return self._solved(b, 1.0, damping)

    def _solved(self, b: Displacement, factor: float, shift: float) -> dict[str, Tensor]:
        """Return (factor·Q + shift)⁻¹B, computed in float64: in float32, X is lost where factor·λ ≫ shift.

        Warn if the residual stays above ``UNSETTLED``.
        """
        if len(self.parts) == 1:
            (only,) = self.parts
            return only.shrink(b, factor) if shift == 1.0 else only.solve(b, shift)

        wide = widest_dtype(next(iter(b.values())).device)
        every = self.to(dtype=wide)

        def apply(d: Displacement) -> dict[str, Tensor]:
            return {n: factor * q + shift * d[n] for n, q in every.apply(d).items()}

        found = conjugate_gradients(apply, {name: b[name].to(wide) for name in self.block.parameters})
        if not found.residual <= UNSETTLED:
            warnings.warn(
                f"The sum of {len(self.parts)} tasks' importance of {self.block.name!r} was solved to a residual of "
                f"{found.residual:.1g} alone, in {found.steps} steps: directions of little importance are not settled, "
                "at a strength so large or a damping so small. Give the form a larger damping=, or take another of its "
                "sums=, which have coordinates of their own.",
                AnchorholdWarning,
                stacklevel=2,
            )
        return {name: x.to(b[name].dtype) for name, x in found.x.items()}

    def add(self, earlier: Matrix, decay: float) -> "SumMatrix":
        """Return the parts of both, the earlier ones first and times γ."""
        assert isinstance(earlier, SumMatrix)
        return SumMatrix([*(part.scale(decay) if decay != 1 else part for part in earlier.parts), *self.parts])

    def scale(self, factor: float) -> "SumMatrix":
        return SumMatrix([part.scale(factor) for part in self.parts])

    def diagonal(self) -> dict[str, Tensor]:
        found = [part.diagonal() for part in self.parts]
        return {name: torch.stack([each[name] for each in found]).sum(0) for name in found[0]}

    def trace(self) -> Tensor:
        return torch.stack([part.trace() for part in self.parts]).sum()

    def largest_eigenvalue(self) -> Tensor:
        """Return the largest eigenvalue by the power method, from a random direction."""
        if len(self.parts) == 1:
            return self.parts[0].largest_eigenvalue()
        drawn = torch.Generator().manual_seed(0)
        d = {name: torch.randn(omega.shape, generator=drawn).to(omega) for name, omega in self.diagonal().items()}
        found = torch.zeros((), dtype=next(iter(d.values())).dtype)
        for _ in range(MOST_STEPS):
            length = inner(d, d).sqrt()
            if not bool(length > 0):
                return length
            d = self.apply({name: each / length for name, each in d.items()})
            before, found = found, inner(d, d).sqrt()
            if bool((found - before).abs() <= 1e-12 * found):
                break
        return found

    def state(self) -> dict[str, Tensor]:
        """Return the states of all parts, each name after the part's number."""
        return {f"{k}.{name}": t for k, part in enumerate(self.parts) for name, t in part.state().items()}

    def to_compute(self, d: Displacement) -> "SumMatrix":
        return SumMatrix([part.to_compute(d) for part in self.parts])

    @staticmethod
    def restore(tensors: Mapping[str, Tensor], part: Callable[[Mapping[str, Tensor]], Matrix]) -> "SumMatrix":
        """Return the sum whose :meth:`state` these tensors are, with ``part`` restoring each part."""
        parts: dict[int, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            number, _, name = key.partition(".")
            if not number.isdigit():
                raise StateError(
                    f"An importance has a part {key!r}; expected ones of a sum, such as '0.S'. The state was made with "
                    "another form."
                )
            parts.setdefault(int(number), {})[name] = tensor
        if sorted(parts) != list(range(len(parts))) or not parts:
            raise StateError(f"An importance is the sum of the parts {sorted(parts)}; expected all from 0 on.")
        return SumMatrix([part(parts[number]) for number in sorted(parts)])


class Solution(NamedTuple):
    """A solution, and how well it solves the equations."""

    x: dict[str, Tensor]
    residual: float
    """|B − QX| / |B|, in the preconditioner's norm where there is one."""
    steps: int


def conjugate_gradients(
    apply: Linear,
    b: Displacement,
    *,
    precondition: Linear = dict,
    tolerance: float | None = None,
    most_steps: int = MOST_STEPS,
) -> Solution:
    """Solve Q X = B from X = 0, so that X is 0 along what neither Q nor B reaches.

    Args:
        apply: Q.
        b: B.
        precondition: a map that is near to the inverse of Q; the nearer, the fewer steps it takes.
        tolerance: the residual at which to stop, by default the last digit that B's precision has.
        most_steps: where to stop in any case.
    """
    x = {name: torch.zeros_like(each) for name, each in b.items()}
    residual = {name: each.clone() for name, each in b.items()}
    direction = conditioned = precondition(residual)
    square = first = inner(residual, conditioned)
    smallest = (torch.finfo(square.dtype).eps if tolerance is None else tolerance) ** 2 * first
    steps = 0
    while steps < most_steps and bool(square > smallest):
        applied = apply(direction)
        curvature = inner(direction, applied)
        if not bool(curvature > 0):  # nothing of Q is left along this direction but rounding
            break
        step = square / curvature
        x = {n: x[n] + step * direction[n] for n in x}
        residual = {n: residual[n] - step * applied[n] for n in x}
        conditioned = precondition(residual)
        before, square = square, inner(residual, conditioned)
        direction = {n: conditioned[n] + square / before * direction[n] for n in x}
        steps += 1
    return Solution(x, float((square / first).clamp(min=0).sqrt()) if bool(first > 0) else 0.0, steps)


def inner(one: Displacement, other: Displacement) -> Tensor:
    """Return ⟨D, E⟩, the sum over all parameters of a block."""
    return torch.stack([(one[name] * other[name]).sum() for name in other]).sum()
