r"""Between what an adapter added before and what it adds after: a mean of merged weights, put into its own parameters.

The mean of two products is not the product of the factors' means: of a fresh adapter, whose B is 0, a share c of both
factors leaves :math:`cB(A^* + c(A - A^*))`, and not cBA. With c of B alone it is just that. Where both factors have
moved from others, :math:`cBA + (1-c)B^*A^*` has twice the rank, and the nearest product of the adapter's own rank takes
its place (Eckart and Young 1936), found in matrices of twice that rank.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from anchorhold.adapters.changes import Product, difference
from anchorhold.tensors.matrices import decomposed

Values = Callable[[nn.Parameter], Tensor]
"""The values of an adapter's parameters at some time."""


class Term(NamedTuple):
    """A part of Δ that is linear in each of the parameters that it is made of."""

    parameters: tuple[nn.Parameter, ...]
    is_product: bool = False
    """Whether it is a multiple of BA, with B and A as its two parameters, in matrices from their second side on."""


class Between(NamedTuple):
    """Values of an adapter's parameters between two times."""

    values: dict[nn.Parameter, Tensor]
    error: float = 0.0
    """By how much what they add is not the mean, as a share of how far apart the two times are."""


def terms_between(terms: Sequence[Term], now: Values, then: Values, share: float) -> Between | None:
    """Return values between two times by which Δ is the mean of both; ``None`` where nobody knows such values."""
    values: dict[nn.Parameter, Tensor] = {}
    errors = []
    for term in terms:
        own, before = [now(p) for p in term.parameters], [then(p) for p in term.parameters]
        if term.is_product:
            ends = [Product(*(each.flatten(1) for each in pair)) for pair in (own, before)]
            made, error = product_between(ends[0], ends[1], share)
            values |= {p: each.view_as(p) for p, each in zip(term.parameters, made, strict=True)}
            errors.append(error)
        else:
            found = _linear_between(own, before, share)
            if found is None:
                return None
            values |= zip(term.parameters, found, strict=True)
            errors.append(0.0)
    return Between(values, max(errors)) if errors else None


def product_between(now: Product, then: Product, share: float) -> tuple[Product, float]:
    """Return factors of now's rank whose product is the mean of both, or the nearest, and by how much it is not."""
    found = _linear_between(now, then, share)
    return (Product(*found), 0.0) if found is not None else _nearest_product(now, then, share)


def _linear_between(now: Sequence[Tensor], then: Sequence[Tensor], share: float) -> list[Tensor] | None:
    """Return factors whose product is the mean, where one factor was 0 or one alone has moved: it goes by the share."""
    blank = next((k for k, each in enumerate(then) if not bool(each.any())), None)
    if blank is not None:
        return [share * each if k == blank else each for k, each in enumerate(now)]
    if sum(not torch.equal(a, b) for a, b in zip(now, then, strict=True)) > 1:
        return None
    return [torch.lerp(a, b, share) for a, b in zip(then, now, strict=True)]


def _nearest_product(now: Product, then: Product, share: float) -> tuple[Product, float]:
    """Return the nearest product to the mean of two, its rows of A turned towards the mean of theirs and as long."""
    rank = now.b.shape[1]
    (left, r_left), (right, r_right) = (
        decomposed(torch.linalg.qr, torch.cat(sides, 1))
        for sides in ((share * now.b, (1 - share) * then.b), (now.a.mT, then.a.mT))
    )
    u, sigma, v = decomposed(torch.linalg.svd, r_left @ r_right.mT, full_matrices=False)
    b, a = left @ (u[:, :rank] * sigma[:rank]), v[:rank] @ right.mT
    like = torch.lerp(then.a, now.a, share)
    x, _, y = decomposed(torch.linalg.svd, like @ a.mT, full_matrices=False)
    turn, size = x @ y, like.norm() / a.norm()
    d = difference(now, then)
    assert isinstance(d, Product)
    way = ((d.b.mT @ d.b) * (d.a @ d.a.mT)).sum().clamp_min(0).sqrt()
    missed = sigma[rank:].norm()
    return Product(b @ turn.mT / size, size * turn @ a), float(missed / way) if bool(missed) else 0.0
