r"""Several tasks' Q, each kept as it is: :math:`Q(D) = \sum_k Q_k(D)`, exact, for as many times the memory."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from anchorhold.errors import AnchorholdWarning, StateError
from anchorhold.forms.base import Displacement, Matrix
from anchorhold.tensors.storage import widest_dtype

Linear = Callable[[Displacement], dict[str, Tensor]]
"""A symmetric and positive semi-definite map of a block's weights."""

MOST_STEPS = 1000
"""Each of them is one application of Q."""

ROUNDINGS = 16
"""Of how many units of the last digit mere rounding is, at most."""
UNSETTLED = 1e-3
"""The residual above which it is told of."""


class Summed(Matrix):
    """The sum of some Q of one block."""

    def __init__(self, parts: Sequence[Matrix]) -> None:
        self.parts = tuple(parts)
        self.block = parts[0].block

    @property
    def said(self) -> str:
        """What each part is."""
        return self.parts[0].said

    def apply(self, d: Displacement) -> dict[str, Tensor]:
        """Return the sum of all Q_k(D)."""
        found = [part.apply(d) for part in self.parts]
        return {name: torch.stack([each[name] for each in found]).sum(0) for name in found[0]}

    def at_hand(self, d: Displacement) -> "Summed":
        """Return the same with all parts at hand."""
        return Summed([part.at_hand(d) for part in self.parts])

    def value(self, d: Displacement) -> Tensor:
        """Return the sum of all ⟨D, Q_k(D)⟩."""
        return torch.stack([part.value(d) for part in self.parts]).sum()

    def apply_to_product(self, b: Tensor, a: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the sums of all parts'."""
        found = [own for part in self.parts if (own := part.apply_to_product(b, a)) is not None]
        if len(found) < len(self.parts):
            return None
        return torch.stack([own[0] for own in found]).sum(0), torch.stack([own[1] for own in found]).sum(0)

    def plus(self, earlier: Matrix, decay: float) -> "Summed":
        """Return all parts of both."""
        assert isinstance(earlier, Summed)
        return Summed([*(part.scaled(decay) if decay != 1 else part for part in earlier.parts), *self.parts])

    def scaled(self, factor: float) -> "Summed":
        """Return a multiple of each part."""
        return Summed([part.scaled(factor) for part in self.parts])

    def shrink(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        """Return (1 + cQ)⁻¹D, by conjugate gradients."""
        return self._solved(d, strength, 1.0)

    def pulled(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        """Return what that takes off D: of a single part, as precisely as it finds it.

        Of several it is cQX with X = (1 + cQ)⁻¹D, of which D − X has lost all digits where c is small. Where c is large
        it is the other way round, since cQ multiplies what X was rounded by. Both err by D − X − cQX together, so that
        cQX is no worse a one as long as that is mere rounding of D.
        """
        if len(self.parts) == 1:
            return self.parts[0].pulled(d, strength)
        x = self.shrink(d, strength)
        applied = {name: strength * q for name, q in self.apply(x).items()}
        taken = {name: d[name] - each for name, each in x.items()}
        error = {name: taken[name] - applied[name] for name in x}
        rounding = ROUNDINGS * torch.finfo(next(iter(x.values())).dtype).eps
        size = inner(d, {name: d[name] for name in x})
        return applied if bool(inner(error, error) <= rounding**2 * size) else taken

    def solve(self, b: Displacement, damping: float = 0.0) -> dict[str, Tensor]:
        """Return (Q + damping)⁻¹B, by conjugate gradients: without damping, nothing along what no B reaches."""
        return self._solved(b, 1.0, damping)

    def _solved(self, b: Displacement, factor: float, shift: float) -> dict[str, Tensor]:
        """Solve (factor·Q + shift) X = B in double precision: in single, X is lost where factor·λ ≫ shift."""
        if len(self.parts) == 1:
            (only,) = self.parts
            if shift == 1.0:
                return only.shrink(b, factor)
            return only.solve(b, shift)

        wide = widest_dtype(next(iter(b.values())).device)
        every = self.mapped(lambda tensor: tensor.to(wide))

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

    def diagonal(self) -> dict[str, Tensor]:
        """Return the sum of the diagonals."""
        found = [part.diagonal() for part in self.parts]
        return {name: torch.stack([each[name] for each in found]).sum(0) for name in found[0]}

    def trace(self) -> Tensor:
        """Return the sum of the traces."""
        return torch.stack([part.trace() for part in self.parts]).sum()

    def largest_eigenvalue(self) -> Tensor:
        """Return the largest eigenvalue, by the power method from a direction that is none of their own."""
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

    def tensors(self) -> dict[str, Tensor]:
        """Return those of all parts, with their numbers."""
        return {f"{k}.{name}": t for k, part in enumerate(self.parts) for name, t in part.tensors().items()}

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "Summed":
        """Return the same with all tensors changed."""
        return Summed([part.mapped(change) for part in self.parts])

    @staticmethod
    def restored(tensors: Mapping[str, Tensor], part: Callable[[Mapping[str, Tensor]], Matrix]) -> "Summed":
        """Return the sum of what :meth:`tensors` gave, each part of it restored by ``part``."""
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
        return Summed([part(parts[number]) for number in sorted(parts)])


class Solution(NamedTuple):
    """What was found, and how well it solves the equations."""

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
    """Solve Q X = B from X = 0, so that X is nothing along what neither Q nor B reaches.

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
        if not bool(curvature > 0):
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
    """Return the sum of the products of two blocks' weights."""
    return torch.stack([(one[name] * other[name]).sum() for name in other]).sum()
