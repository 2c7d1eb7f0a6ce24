"""Where samples lie in a tensor, told from one sample and from two."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anchorhold.engine.tracing.samples import SampleLayout, layout_of, layout_of_shapes, same_values

BATCH = torch.randn(5, 3, 4)

ARRANGEMENTS = {
    "first": (lambda x: x, SampleLayout(0)),
    "second": (lambda x: x.transpose(0, 1), SampleLayout(1)),
    "last": (lambda x: x.permute(1, 2, 0), SampleLayout(2)),
    "merged": (lambda x: x.reshape(-1, 4), SampleLayout(0, 3)),
    "merged, interleaved": (lambda x: x.transpose(0, 1).reshape(-1, 4), SampleLayout(0, 3, interleaved=True)),
    "merged, second": (lambda x: x.reshape(-1, 4).T, SampleLayout(1, 3)),
    "merged with all": (lambda x: x.flatten(), SampleLayout(0, 12)),
}


@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_samples_are_found_and_put_first(name):
    arrange, expected = ARRANGEMENTS[name]
    layout = layout_of(arrange(BATCH[:1]), arrange(BATCH[:2]))
    assert layout == expected
    assert layout.shape(arrange(BATCH[:1]).shape, 5) == arrange(BATCH).shape
    first = layout.samples_first(arrange(BATCH))
    for n in range(5):
        own = arrange(BATCH[n : n + 1])
        assert torch.equal(first[n].flatten().sort().values, own.flatten().sort().values)
    rows = torch.stack([arrange(BATCH), 2 * arrange(BATCH)])
    assert torch.equal(layout.samples_first(rows, lead=1)[1], 2 * first)


@pytest.mark.daily
@pytest.mark.parametrize(
    ("one", "two"),
    [((1, 3), (1, 3)), ((1, 3), (2, 6)), ((1, 3), (3, 3)), ((1, 3), (2, 3, 1)), ((3,), (5,))],
    ids=str,
)
def test_unclear_shapes(one, two):
    assert layout_of_shapes(torch.Size(one), torch.Size(two)) is None


def test_merged_samples_that_are_alike_are_unclear():
    one = torch.ones(3, 2)
    assert layout_of(one, torch.ones(6, 2)) is None
    assert layout_of(one, torch.zeros(6, 2)) is None


@given(st.integers(0, 2), st.sampled_from([(3, 4), (4,), (1, 4), (3, 1), ()]))
def test_unbroadcast_undoes_an_addition_sample_by_sample(dim, shape):
    torch.manual_seed(0)
    layout = SampleLayout(dim)
    sizes = torch.Size([*(3, 4)[:dim], 5, *(3, 4)[dim:]])
    aligned = torch.Size([1] * (2 - len(shape)) + list(shape))
    small = torch.randn([*aligned[:dim], 1, *aligned[dim:]], dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(2, *sizes, dtype=torch.float64)
    found = layout.unbroadcast(upstream, small.shape, 1)
    for v in range(2):
        for n in range(5):
            own = torch.zeros(sizes, dtype=torch.float64)
            own.select(dim, n).copy_(upstream[v].select(dim, n))
            (expected,) = torch.autograd.grad((small + torch.zeros(sizes)), small, own)
            torch.testing.assert_close(found[v, n], expected)


def test_values_that_differ_by_rounding_are_the_same():
    x = torch.randn(100)
    assert same_values(x, x * (1 + 1e-6))
    assert not same_values(x, x * 1.1)
    assert not same_values(x, x[:50])
    assert same_values(torch.tensor([1.0, -torch.inf]), torch.tensor([1.0, -torch.inf]))
    assert same_values(torch.empty(0), torch.empty(0))
    assert not same_values(torch.tensor([1, 2]), torch.tensor([1, 3]))
