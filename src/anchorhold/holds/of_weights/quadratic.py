r"""The quadratic hold :math:`c\,\langle\theta-\theta^*, Q(\theta-\theta^*)\rangle`, its value and its gradient.

It is that of EWC (Kirkpatrick et al. 2017, arXiv 1612.00796), around the last task's solution alone (Huszár 2018, arXiv
1712.03847). There is no ½, as in the paper, so the gradient is :math:`2c\,Q(\theta-\theta^*)`. The diagonal,
:math:`Q = \Omega`, is written for tensors of any shape, so that weights can be walked through in pieces; other forms go
block by block.

Where the hold's centre is not the anchor θ*, it has a linear term beside it, :math:`-2c\,\langle\theta-\theta^*,
r\rangle`: see :mod:`anchorhold.guard.anchors`, where r is from.

The hold may also act after a step instead of before it, by a pull that no strength can make overshoot. An optimizer's
step takes a weight from θ to θ′. Let h be its rate: how far a weight goes for a unit of a gradient that stays, and
:math:`P = \mathrm{diag}(1/h)`. The pull then goes to where the hold's own gradient, there and not here, accounts for
the way,

.. math:: P\,(\theta^+ - \theta') + 2c\,Q(\theta^+ - \theta^*) - 2c\,r = 0,

the proximal point of the penalty (Rockafellar 1976), or its implicit Euler step. Each direction of D = θ′ − θ* is
divided by a number above 1, and at any strength the weights end between where they were and the anchor. Together with
the step it is forward-backward splitting (Lions and Mercier 1979), with momentum or an adaptive P the proximal form of
that optimizer. Where neither moves a weight any more the step is :math:`\theta' - \theta = -h\,g`, so
:math:`g + 2cQ(\theta - \theta^*) - 2cr = 0`: the stationary points are those of loss and penalty together, at any rate.
"""

from collections.abc import Container, Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from anchorhold.forms.base import Displacement, Matrix, pull_share
from anchorhold.forms.diagonal import DiagonalMatrix
from anchorhold.forms.diagonals import pulls_of_diagonals
from anchorhold.holds.base import TOO_LARGE, Held, Hold, displacement
from anchorhold.tensors.pieces import in_pieces
from anchorhold.tensors.sharding import is_sharded, whole_sums
from anchorhold.tensors.storage import running_dtype, to_compute


class Quadratic(Hold):
    """The guard's own hold, in a form that is not element by element."""

    why_not_finite: ClassVar[str] = TOO_LARGE

    def gradient(self, held: Held) -> Mapping[str, Tensor]:
        """Return 2c·Q(θ − θ*): in 16 bits where Q's products are made in these, since more would be made up."""
        pulls = {name: pull for part in self.parts(held, held.parameters) for name, pull in part.items()}
        blocks = (matrix.block.parameters for matrix in held.importance.values())
        return {name: pulls[name] for block in blocks for name in block if name in pulls}

    def parts(self, held: Held, names: Container[str]) -> Iterator[dict[str, Tensor]]:
        """Yield the same block by block, of some parameters, and keep none of it while the next one is made."""
        wanted = {name: parameter for name, parameter in held.parameters.items() if name in names}
        small = pulls_of_diagonals(held.importance.values(), wanted, held.anchor, 2 * held.strength)
        together = set(small)  # each part is emptied as it is added
        yield small
        for matrix in held.importance.values():
            own = matrix.block.parameters
            if together.isdisjoint(own) and any(name in held.parameters for name in own):
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


class LinearTerm(Hold):
    """What the guard's own hold has beside its quadratic.

    What does not depend on θ is left out, so the value is 0 at the anchor, and may be negative elsewhere.

    Args:
        linear_term: r, by parameter.
        factors: by what a parameter's strength differs from the guard's own c, where it does.
    """

    name: ClassVar[str] = "tilt"

    def __init__(self, linear_term: Mapping[str, Tensor], factors: Mapping[str, float] = MappingProxyType({})) -> None:
        super().__init__()
        self.linear_term = linear_term
        self.factors = factors

    def gradient(self, held: Held) -> Mapping[str, Tensor]:
        """Return −2c·r."""
        own = {name: p for name, p in held.parameters.items() if name in self.linear_term}
        c = {name: held.strength * self.factors.get(name, 1.0) for name in own}
        return {name: -2 * c[name] * to_compute(self.linear_term[name], p) for name, p in own.items()}

    def value(self, held: Held) -> Tensor | None:
        """Return −2c⟨θ − θ*, r⟩; of sharded parameters, that of all processes' parts."""
        terms = []
        for name, parameter in held.parameters.items():
            if name in self.linear_term:
                dtype = running_dtype(parameter)
                r, theta_star = (
                    to_compute(kept[name], parameter).to(dtype) for kept in (self.linear_term, held.anchor)
                )
                lean = ((parameter.to(dtype) - theta_star) * r).sum()
                terms.append(self.factors.get(name, 1.0) * lean)
        if not terms:
            return None
        device = next(iter(held.parameters.values())).device
        return -2 * held.strength * torch.stack([term.to(device) for term in whole_sums(terms)]).sum()


def pull_implicitly_(
    theta: Tensor,
    omega: Tensor,
    theta_star: Tensor,
    factor: float | Tensor,
    rate: float | Tensor,
    linear_term: Tensor | None = None,
) -> None:
    r"""Take weights that are held one by one to :math:`\theta^* + (D + 2chr)/(1 + 2ch\Omega)`, in place.

    Args:
        theta: θ′, after the step.
        omega: Ω.
        theta_star: θ*.
        factor: 2c.
        rate: h.
        linear_term: r, where the hold has one.
    """
    largest = torch.finfo(theta.dtype).max
    # What is beyond all numbers must not meet an Ω of 0 before it has met h.
    together = min(factor * rate, largest) if isinstance(factor, float) and isinstance(rate, float) else None
    pull = (omega * factor).mul_(rate) if together is None else omega * together
    # At both ends this is exact: weights that nothing holds stay as they are, and others are the anchor's.
    theta.lerp_(theta_star, pull_share(pull))
    if linear_term is not None:
        way = torch.as_tensor(factor * rate if together is None else together, dtype=theta.dtype)
        theta.add_(linear_term * way.clamp(max=largest) / (1 + pull.clamp(max=largest)))


def pulled(
    matrix: Matrix, d: Displacement, factor: float, linear_term: Displacement | None = None
) -> dict[str, Tensor]:
    r"""Return what to take off weights that go equally far: :math:`D - (1 + 2chQ)^{-1}(D + 2chr)`.

    Args:
        matrix: Q.
        d: D, after the step.
        factor: 2ch.
        linear_term: r, where the hold has one.
    """
    found = matrix.pull(d, factor)
    if linear_term is None:
        return found
    leaning = matrix.shrink(linear_term, factor)
    return {name: pull - factor * leaning[name] for name, pull in found.items()}
