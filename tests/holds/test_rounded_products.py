"""Holds whose products are made in 16 bits: D is rounded once, as from single precision, and so is the pull."""

import pytest
import torch
from torch import nn

import anchorhold
from anchorhold.forms import Kronecker16, Rotated, Rotated16
from anchorhold.holds.base import displacement
from anchorhold.holds.of_weights.quadratic import add_pull

STRENGTH = 0.37213  # which 16 bits cannot hold


def held(dtype, form=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)
    guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=STRENGTH, form=form or Rotated16())
    guard.consolidate([(torch.randn(16, 6, dtype=dtype), torch.randint(0, 3, (16,)))])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn(parameter.shape).to(dtype))
    return model, guard


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("kept", [None, torch.bfloat16])
def test_d_is_rounded_once(dtype, kept):
    model, guard = held(dtype)
    own = {name: parameter.detach() for name, parameter in model.named_parameters()}
    anchor = {name: tensor if kept is None else tensor.to(kept) for name, tensor in guard.anchor.items()}
    for matrix in guard.held.matrices.values():
        exact = displacement(matrix, own, anchor)
        rounded = displacement(matrix, own, anchor, rounded=True)
        for name in exact:
            assert exact[name].dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
            assert rounded[name].dtype == torch.bfloat16
            assert torch.equal(rounded[name], exact[name].to(torch.bfloat16))
            assert exact[name].any()


def test_other_forms_are_not_rounded():
    model, guard = held(torch.float32, Rotated())
    own = dict(model.named_parameters())
    for matrix in guard.held.matrices.values():
        for d in displacement(matrix, own, guard.anchor, rounded=True).values():
            assert d.dtype == torch.float32


@pytest.mark.parametrize("form", [Rotated16(), Kronecker16()], ids=["rotated", "kronecker"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_gradient_is_that_of_the_same_q_in_single_precision(dtype, form):
    model, guard = held(dtype, form)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    guard.options.implicit = False
    guard.attach(optimizer)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    expected = {}
    for matrix in guard.held.matrices.values():
        d = displacement(matrix, dict(model.named_parameters()), guard.anchor)
        exact = matrix.map(lambda tensor: tensor.float())
        exact.precision = "float32"
        expected |= {name: 2 * STRENGTH * pull for name, pull in exact.apply(d).items()}
    optimizer.step()
    for name, parameter in model.named_parameters():
        error = (parameter.grad.float() - expected[name]).norm() / expected[name].norm()
        assert error < 0.02


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("of_pull", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("factor", [1.0, STRENGTH, 1024.0])
def test_a_pull_is_added_in_single_precision_and_rounded_once(dtype, of_pull, factor):
    torch.manual_seed(1)
    gradient, pull = torch.randn(500).to(dtype), torch.randn(500).to(of_pull)
    expected = (gradient.double() + factor * pull.double()).to(dtype)
    add_pull(gradient, pull, factor)
    # Where single precision lies just between two numbers of 16 bits, it may round to the other one.
    assert (gradient != expected).sum() <= 2
    assert torch.allclose(gradient.double(), expected.double(), rtol=2 * torch.finfo(dtype).eps, atol=0)


def test_what_half_precision_cannot_hold_is_its_largest_number():
    gradient = torch.tensor([6e4, -6e4, 1.0], dtype=torch.float16)
    add_pull(gradient, torch.tensor([6e4, -6e4, 1.0]), 1.0)
    assert gradient.tolist() == [65504.0, -65504.0, 2.0]
