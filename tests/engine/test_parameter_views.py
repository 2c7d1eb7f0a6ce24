"""Views of parameters, as places in the whole."""

import pytest
import torch
from torch import nn

from anchorhold.engine.rules.base import Part, disjoint, is_parameter, part_of

P = nn.Parameter(torch.arange(24.0).view(4, 6))
NAMES = {id(P): "p"}

VIEWS = {
    "transpose": lambda p: p.T,
    "rows": lambda p: p[1:3],
    "columns": lambda p: p[:, 2:5],
    "steps": lambda p: p[::2, 1::3],
    "a row": lambda p: p[2],
    "flat": lambda p: p.view(-1),
    "folded": lambda p: p.view(2, 2, 6).permute(1, 2, 0),
    "chunk": lambda p: p.chunk(2)[1],
    "unsqueezed": lambda p: p.unsqueeze(1),
}


@pytest.mark.parametrize("view", VIEWS)
def test_the_same_part_of_another_tensor(view):
    part = part_of(VIEWS[view](P), NAMES)
    other = torch.randn(4, 6)
    assert torch.equal(part.within(other), VIEWS[view](other))
    stack = torch.randn(3, 4, 6)
    assert torch.equal(part.within(stack, lead=1)[2], VIEWS[view](stack[2]))
    part.within(other).zero_()
    assert not VIEWS[view](other).any()


@pytest.mark.daily
@pytest.mark.parametrize(
    "tensor",
    [P.detach(), P.detach().T, P + 0, P.expand(2, 4, 6), P[:, :1].expand(4, 3), P.unfold(1, 3, 1), torch.ones(4, 6)],
)
def test_what_is_no_part(tensor):
    assert part_of(tensor, NAMES) is None


def test_the_whole():
    assert part_of(P, NAMES) == Part("p")
    assert part_of(nn.Parameter(torch.ones(2)), NAMES) is None


def test_parts_that_overlap():
    whole, top, middle, bottom = (part_of(x, NAMES) for x in (P, P[:2], P[1:3], P[2:]))
    assert disjoint([top])
    assert disjoint([bottom, top])
    assert not disjoint([top, middle])
    assert not disjoint([top, top])
    assert not disjoint([bottom, whole])
    assert not disjoint([whole, whole])


def test_what_counts_as_a_parameter():
    assert is_parameter(P)
    assert is_parameter(P.T)
    assert not is_parameter(P.detach().T)
    assert not is_parameter(P + 0)
    assert not is_parameter(3.0)
