r"""The quadratic hold :math:`c\,\langle\theta-\theta^*, Q(\theta-\theta^*)\rangle`, its value and its gradient.

It is that of EWC (Kirkpatrick et al. 2017, arXiv 1612.00796), around the last task's solution alone (Huszár 2018, arXiv
1712.03847). There is no ½, as in the paper, so the gradient is :math:`2c\,Q(\theta-\theta^*)`. The diagonal,
:math:`Q = \Omega`, is written for tensors of any shape, so that weights can be walked through in pieces; other forms go
block by block.
"""

from collections.abc import Container, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from anchorhold.forms.base import Matrix
from anchorhold.forms.diagonal import DiagonalMatrix
from anchorhold.holds.base import Held, Hold, displacement
from anchorhold.tensors.pieces import in_pieces
from anchorhold.tensors.sharding import is_sharded, whole_sums
from anchorhold.tensors.storage import to_compute


class Quadratic(Hold):
    """The guard's own hold, in a form that is not element by element."""

    def gradient(self, held: Held) -> Mapping[str, Tensor]:
        """Return 2c·Q(θ − θ*): in 16 bits where Q's products are made in these, since more would be made up."""
        return {name: pull for part in self.parts(held, held.parameters) for name, pull in part.items()}

    def parts(self, held: Held, names: Container[str]) -> Iterator[dict[str, Tensor]]:
        """Yield the same block by block, of some parameters, and keep none of it while the next one is made."""
        for matrix in held.importance.values():
            if any(name in held.parameters for name in matrix.block.parameters):
                yield {
                    name: 2 * held.strength * pull
                    for name, pull in applied(matrix, held.parameters, held.anchor, rounded=True).items()
                    if name in names
                }


def applied(
    matrix: Matrix, parameters: Mapping[str, Tensor], anchor: Mapping[str, Tensor], *, rounded: bool = False
) -> dict[str, Tensor]:
    """Return Q(θ − θ*) of a block, where the parameters are; ``rounded`` as :func:`displacement` is."""
    d = displacement(matrix, parameters, anchor, rounded=rounded)
    return matrix.to_compute(d).apply(d)


def penalty_value(
    parameters: Mapping[str, Tensor],
    importance: Mapping[str, Matrix],
    anchor: Mapping[str, Tensor],
    strength: float,
) -> Tensor:
    """Return the penalty, differentiable in the parameters; for sharded ones, that of all processes' parts."""
    # In the order of the parameters, whatever order a state was read in, since sums are rounded.
    blocks = {name: matrix for matrix in importance.values() for name in matrix.block.parameters}
    matrices = {id(blocks[name]): blocks[name] for name in parameters if name in blocks}
    terms = [_term(matrix, parameters, anchor) for matrix in matrices.values()]
    device = next((parameter.device for parameter in parameters.values()), torch.device("cpu"))
    if not terms:
        return torch.zeros((), device=device)
    # Parameters may lie on several devices; the few sums meet on the first one's.
    return strength * torch.stack([term.to(device) for term in whole_sums(terms)]).sum()


def _term(matrix: Matrix, parameters: Mapping[str, Tensor], anchor: Mapping[str, Tensor]) -> Tensor:
    if not isinstance(matrix, DiagonalMatrix):
        d = displacement(matrix, parameters, anchor)
        matrix = matrix.to_compute(d)
        if not torch.is_grad_enabled():
            return matrix.value(d)
        value: Tensor = _Value.apply(matrix, *(d[name] for name in matrix.block.parameters))  # type: ignore[no-untyped-call]
        return value
    parameter = parameters[matrix.name]
    omega, theta_star = to_compute(matrix.omega, parameter), to_compute(anchor[matrix.name], parameter)
    if torch.is_grad_enabled() or is_sharded(parameter):
        return _weighted_squares(parameter, omega, theta_star)
    # Closures want the value at every step, and whole temporaries would be new memory every time.
    pieces = in_pieces([parameter.detach(), omega, theta_star])
    return torch.stack([_weighted_squares(*piece) for piece in pieces]).sum()


class _Value(torch.autograd.Function):
    """⟨D, Q(D)⟩ with the gradient 2Q(D), computed as Q is: in its own precision, whoever goes backward."""

    @staticmethod
    def forward(ctx: Any, matrix: Matrix, *d: Tensor) -> Tensor:
        ctx.matrix = matrix
        ctx.save_for_backward(*d)
        return matrix.value(dict(zip(matrix.block.parameters, d, strict=True)))

    @staticmethod
    def backward(ctx: Any, *arrived: Tensor) -> tuple[Tensor | None, ...]:
        names = ctx.matrix.block.parameters
        applied = ctx.matrix.apply(dict(zip(names, ctx.saved_tensors, strict=True)))
        return None, *(2 * arrived[0] * applied[name] for name in names)


def _weighted_squares(theta: Tensor, omega: Tensor, theta_star: Tensor) -> Tensor:
    return (omega * (theta - theta_star).square()).sum()


def penalty_gradient(theta: Tensor, omega: Tensor, theta_star: Tensor, factor: float | Tensor) -> Tensor:
    """Return ``factor · Ω (θ − θ*)``; ``factor`` is 2c."""
    return factor * omega * (theta - theta_star)


def add_penalty_gradient(
    gradient: Tensor, theta: Tensor, omega: Tensor, theta_star: Tensor, *, factor: float, out: Tensor
) -> None:
    """Write a gradient and the penalty's to ``out``, which may be ``gradient`` itself."""
    # A temporary would be new memory every time, and touching new pages costs more than the arithmetic.
    spare = out if out.data_ptr() != gradient.data_ptr() and out.dtype == theta_star.dtype else None
    distance = torch.sub(theta, theta_star, out=spare)
    if distance.dtype == gradient.dtype:
        torch.addcmul(gradient, omega, distance, value=factor, out=out)
    else:  # low-precision parameters are held with importances of full precision
        largest = torch.finfo(out.dtype).max  # beyond which float16, soon reached at a scaler's scale, is infinite
        out.copy_((gradient + penalty_gradient(theta, omega, theta_star, factor)).clamp_(-largest, largest))


def add_pull(gradient: Tensor, pull: Tensor, factor: float) -> None:
    """Add a hold's gradient, times the loss scale, in place."""
    if pull.dtype.itemsize > gradient.dtype.itemsize >= 4:
        pull = pull.to(gradient.dtype)
    if factor != 1 and pull.dtype.itemsize < 4:  # by which a CPU would multiply in 16 bits
        pull = pull.float()
    gradient.add_(pull, alpha=factor)  # in single precision at least, and rounded once
    if gradient.dtype == torch.float16:  # soon beyond its largest number at a scaler's scale
        largest = torch.finfo(gradient.dtype).max
        gradient.clamp_(-largest, largest)
