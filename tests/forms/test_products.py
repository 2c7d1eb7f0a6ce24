"""Products in rows that begin on boundaries are those of ``x @ y``, and so is all that is made of them."""

import pytest
import torch
from torch import nn

import anchorhold
from anchorhold.forms import Kronecker, Rotated, coordinates, factors
from anchorhold.tensors import products
from anchorhold.tensors.products import LONG, product, product_on_boundaries, product_padded

SHAPES = [(3, LONG + 1, LONG + 1), (LONG + 5, 7, LONG + 3), (LONG + 1, LONG + 1, 2), (1, 1, 1), (0, 5, 3)]


def two(shape, dtype=torch.float64):
    rows, terms, columns = shape
    drawn = torch.Generator().manual_seed(0)
    return (
        torch.randn(*size, dtype=torch.float64, generator=drawn).to(dtype) for size in ((rows, terms), (terms, columns))
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("way", [product, product_on_boundaries, product_padded])
@pytest.mark.parametrize("turned", [False, True])
def test_it_is_the_product(shape, way, turned):
    x, y = two(shape)
    if turned:  # as a basis is read by its columns
        x, y = x.mT.contiguous().mT, y.mT.contiguous().mT
    found = way(x, y)
    torch.testing.assert_close(found, x @ y, rtol=0, atol=1e-12 * (1 + float((x @ y).abs().max() if x.numel() else 0)))
    assert found.shape == (x @ y).shape


def test_long_rows_begin_on_boundaries_and_the_bits_are_the_same():
    x, y = two((40, LONG + 1, LONG + 1), torch.float32)
    found = product(x, y)
    assert found.stride() == (LONG + 16, 1) and found.data_ptr() % products.BOUNDARY == 0
    torch.testing.assert_close(found, x @ y, rtol=1e-6, atol=1e-5)
    if torch.backends.mkl.is_available():
        assert torch.equal(found, x @ y)


def test_what_autograd_follows_is_made_as_it_is_written():
    x, y = two((4, 3, LONG + 1))
    x.requires_grad_()
    product(x, y).sum().backward()
    torch.testing.assert_close(x.grad, y.sum(1).expand(4, 3))
    slope = torch.func.grad(lambda x: product(x, y).sum())(x.detach())
    assert torch.equal(slope, x.grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_gpus_way_rounds_no_more_than_the_plain_one(dtype):
    x, y = two((70, 1025, 65))
    exact = x @ y
    plain, padded = (way(x.to(dtype), y.to(dtype)).double() - exact for way in (torch.matmul, product_padded))
    assert float(padded.norm()) <= 1.5 * float(plain.norm()) > 0


@pytest.mark.parametrize(
    "form", [Rotated(), Kronecker(), Rotated(outputs="lowrank", rank=3), Kronecker(bits=16)], ids=str
)
def test_a_pull_by_them_is_that_by_plain_products(form, monkeypatch):
    torch.manual_seed(0)
    model = nn.Linear(LONG + 2, 6)
    guard = anchorhold.Guard(model, "EWC", strength=1.0, form=form, from_scratch=True)
    guard.consolidate([torch.randn(8, LONG + 2)])
    (matrix,) = guard.held.matrices.values()
    matrix = matrix.map(torch.Tensor.double)
    d = {name: torch.randn_like(p).double() for name, p in model.named_parameters()}
    calls = []

    def counted(x, y):
        calls.append(x.shape)
        return product(x, y)

    for where in (coordinates, factors):
        monkeypatch.setattr(where, "product", counted)
    fast = matrix.apply(d), matrix.pull(d, 0.3)
    assert calls
    for where in (coordinates, factors):
        monkeypatch.setattr(where, "product", torch.matmul)
    for found, expected in zip(fast, (matrix.apply(d), matrix.pull(d, 0.3)), strict=True):
        for name in d:
            torch.testing.assert_close(found[name], expected[name], rtol=1e-12, atol=1e-14)
