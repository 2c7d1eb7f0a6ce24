r"""The quadratic hold of merged weights, :math:`c\,\langle D, Q(D)\rangle` with :math:`D = \Delta - \Delta^*`.

Δ is what an adapter adds to the weight of its layer, s·BA in LoRA, and Δ* what it added at the anchor: 0 for a fresh
one. Q is the form of the weight itself, so that what is held is what the network computes with: A is held as soon as B
is not 0, and the hold is the same for BM and M⁻¹A. With Kronecker factors and D = BA,

.. math:: \langle D, Q(D)\rangle = \operatorname{tr}[(B^T G B)(A\,C A^T)],

with C the factor of the inputs: no product is larger than the adapter's and the form's own factors. Others make one
product of the weight's size. The gradient goes on to whatever Δ is made of.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from anchorhold.adapters import Adapter, Change, Product, difference, mapped, whole
from anchorhold.engine.reductions import Block, joined, taken_apart
from anchorhold.errors import ConfigurationError
from anchorhold.forms.base import Matrix
from anchorhold.holds.base import TOO_LARGE, Held, Hold
from anchorhold.tensors.matrices import products_in
from anchorhold.tensors.storage import running_dtype, to_compute


class MergedWeights(Hold):
    """The guard's own hold, of what adapters add to weights.

    Args:
        adapters: by the name of the weight that each changes.
        blocks: how each weight lies.
        anchor: Δ* of each.
    """

    name: ClassVar[str] = "merged weights"
    why_not_finite: ClassVar[str] = TOO_LARGE

    def __init__(
        self, adapters: Mapping[str, Adapter], blocks: Mapping[str, Block], anchor: Mapping[str, Change]
    ) -> None:
        super().__init__()
        self.adapters = {name: adapter for name, adapter in adapters.items() if name in anchor}
        self.blocks = blocks
        self.anchor = anchor

    def gradient(self, held: Held) -> Mapping[str, Tensor]:
        """Return the gradient with respect to the adapters' parameters that move."""
        moving = {id(p): name for name, p in held.parameters.items() if p.requires_grad}
        found: dict[str, Tensor] = {}
        products: list[Tensor] = []
        with torch.enable_grad():
            for weight in self._held_by(held.importance):
                value = self._value_at(weight, held.importance[weight])
                if value.is_of_product:
                    products.append(value.term)  # of which little is kept until all of them go back together
                else:  # before the next one is made: what is kept of each is as large as its weight
                    _add_gradients(found, held.strength * value.term, self._named([weight], moving))
                del value
            if products:
                _add_gradients(found, held.strength * _added_up(products), self._named(self.adapters, moving))
        return found

    def _held_by(self, importance: Mapping[str, Matrix]) -> list[str]:
        return [weight for weight in self.adapters if weight in importance]

    def _named(self, weights: Iterable[str], moving: Mapping[int, str]) -> dict[str, Tensor]:
        """Return the parameters of some adapters that move, by name."""
        parameters = [p for weight in weights for p in self.adapters[weight].parameters()]
        return {moving[id(p)]: p for p in parameters if id(p) in moving}

    def value(self, held: Held) -> Tensor | None:
        """Return c⟨D, Q(D)⟩, differentiable in the adapters' parameters."""
        return self.value_of(held.importance, held.strength)

    def value_of(self, importance: Mapping[str, Matrix], strength: float) -> Tensor | None:
        """Return c⟨D, Q(D)⟩ by some importance; ``None`` where it has nothing of any adapter."""
        named = self._held_by(importance)
        terms = [self._value_at(weight, importance[weight]).term for weight in named]
        return strength * _added_up(terms) if terms else None

    def displacement(self, weight: str) -> Change:
        """Return D of a weight, in single precision at least."""
        like = self.adapters[weight].parameters()[0]
        then = _at_hand(self.anchor[weight], like)
        with products_in("float32", like.device):
            now = self.adapters[weight].change()
            return whole(then).neg() if now is None else difference(_at_hand(now, like), then)

    def _value_at(self, weight: str, matrix: Matrix) -> "_Term":
        d = self.displacement(weight)
        tensors = tuple(d) if isinstance(d, Product) else (d,)
        value: Tensor = _Value.apply(matrix.to_compute({weight: tensors[0]}), self.blocks[weight], *tensors)  # type: ignore[no-untyped-call]
        return _Term(value, len(tensors) > 1)


class _Term(NamedTuple):
    """What one adapter adds to the value."""

    term: Tensor
    """⟨D, Q(D)⟩, differentiable in D."""
    is_of_product: bool


def _added_up(terms: Sequence[Tensor]) -> Tensor:
    return torch.stack([term.to(terms[0].device) for term in terms]).sum()


def _add_gradients(found: dict[str, Tensor], value: Tensor, parameters: Mapping[str, Tensor]) -> None:
    """Add the gradients of a value to what was found for some parameters."""
    if not parameters or not value.requires_grad:
        return
    pulls = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
    for name, pull in zip(parameters, pulls, strict=True):
        if pull is not None:
            found[name] = found[name] + pull if name in found else pull


class _Value(torch.autograd.Function):
    """⟨D, Q(D)⟩ with the gradient 2Q(D), or 2Q(BA)Aᵀ and 2BᵀQ(BA): computed once, in Q's own precision."""

    @staticmethod
    def forward(ctx: Any, matrix: Matrix, block: Block, *d: Tensor) -> Tensor:
        pulls = pulls_on(matrix, block, *d)
        ctx.save_for_backward(*pulls)
        return (d[0] * pulls[0]).sum()  # ⟨B, Q(BA)Aᵀ⟩ is ⟨BA, Q(BA)⟩

    @staticmethod
    def backward(ctx: Any, *arrived: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # its own would be missing without a word
            raise ConfigurationError(
                "The penalty of space='merged' was differentiated with create_graph=True, and has no second "
                "derivatives. Attach the guard, or add the penalty to a loss that is differentiated once; "
                "space='weights' has them."
            )
        return None, None, *(2 * arrived[0] * pull for pull in ctx.saved_tensors)


def pulls_on(matrix: Matrix, block: Block, *d: Tensor) -> tuple[Tensor, ...]:
    """Return Q(D) for D as one matrix, or Q(BA)Aᵀ and BᵀQ(BA) for B and A.

    Args:
        matrix: Q.
        block: how the weight lies.
        d: D, or B and A, of outputs × inputs.
    """
    if len(d) == 1:
        return (joined(block, matrix.apply(taken_apart(block, d[0]))),)
    b, a = d
    found = matrix.apply_to_product(b, a)
    if found is None:
        with products_in("float32", b.device):
            (q,) = pulls_on(matrix, block, b @ a)
            found = q @ a.mT, b.mT @ q
    return found


def _at_hand(change: Change, like: Tensor) -> Change:
    """Return a change where a parameter is, in single precision at least."""
    return mapped(change, lambda each: to_compute(each, like).to(running_dtype(like)))
