"""Sums over samples whose δ and inputs come in 16 bits, against float64."""

import pytest
import torch
from torch import nn

import anchorhold
from anchorhold.engine.phi import ABSOLUTE, SQUARE
from anchorhold.engine.reductions import Basis, Block, FactorReduction, RotatedReduction, Sides, sixteen_bits
from anchorhold.engine.rules.base import Products

SAMPLES, PLACES = 6, 12


@pytest.fixture
def everywhere(monkeypatch):
    """Let every device multiply numbers of 16 bits, as a GPU does."""
    monkeypatch.setattr(sixteen_bits, "has_matrix_units", lambda device: True)


def layer(outputs, inputs, *, bias):
    block = Block("weight", ("weight", "bias") if bias else ("weight",), (outputs, inputs))
    shapes = {"weight": (outputs, inputs), "bias": (outputs,)}
    return block, {name: nn.Parameter(torch.zeros(shapes[name], dtype=torch.bfloat16)) for name in block.parameters}


def products(rows, outputs, inputs, *, bias):
    """Return δ and a as a model of 16 bits has them, in single precision as the engine brings them."""
    torch.manual_seed(0)
    delta = torch.randn(rows, SAMPLES, PLACES, outputs).bfloat16().float()
    return Products(delta, torch.randn(SAMPLES, PLACES, inputs).bfloat16().float(), bias)


def inputs_of(given):
    one = given.a.new_ones(*given.a.shape[:-1], 1)
    return (torch.cat([given.a, one], -1) if given.bias else given.a).double()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("side", ["dense", "blocks", "diagonal"])
def test_covariances_lose_nothing(everywhere, side, bias):
    """Not even where single precision would: all that is rounded is the sum."""
    given, (block, parameters) = products(2, 7, 9, bias=bias), layer(7, 9, bias=bias)
    reduction = FactorReduction(SQUARE, [block], parameters, (), {"weight": Sides(side, side)}, largest_block=4)
    assert reduction._in_16_bits == {"weight"}
    for first in range(0, SAMPLES, 2):
        part = slice(first, first + 2)
        reduction.add_products(block, Products(given.delta[:, part], given.a[part], bias), first=True)
    reduction.finish()
    for key, vectors in (("G", given.delta.double()), ("A", inputs_of(given))):
        rows = vectors.flatten(0, -2)
        expected, found = rows.mT @ rows, reduction.sums[f"weight/{key}"]
        if side == "diagonal":
            expected = expected.diagonal()
        if side == "blocks":
            wide = found.shape[-1]
            expected = torch.stack(
                [
                    torch.nn.functional.pad(part, (0, wide - len(part), 0, wide - len(part)))
                    for first in range(0, len(expected), wide)
                    for part in [expected[first : first + wide, first : first + wide]]
                ]
            )
        torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("phi", [SQUARE, ABSOLUTE], ids=repr)
@pytest.mark.parametrize("turned", [(True, True), (True, False), (False, True)])
def test_coordinates_have_the_digits_that_a_form_of_16_bits_keeps(everywhere, turned, phi, bias):
    given, (block, parameters) = products(2, 32, 48, bias=bias), layer(32, 48, bias=bias)
    u_g, u_a = (
        torch.linalg.qr(torch.randn(size, size))[0] if turn else None
        for size, turn in zip(block.size, turned, strict=True)
    )
    reduction = RotatedReduction(phi, [block], parameters, {"weight": Basis(u_g, u_a)}, precision="tf32")
    assert reduction._in_16_bits == {"weight"}
    reduction.add_products(block, given, first=True)
    gradients = torch.einsum("vnto,nti->vnoi", given.delta.double(), inputs_of(given))
    gradients = gradients if u_g is None else u_g.double().mT @ gradients
    gradients = gradients if u_a is None else gradients @ u_a.double()
    expected, found = phi(gradients).sum((0, 1)), reduction.sums["weight/S"]
    assert found.dtype == torch.float32
    assert (found - expected).norm() <= 5e-3 * expected.norm()


def test_a_form_that_keeps_more_digits_has_them(everywhere):
    given, (block, parameters) = products(1, 8, 16, bias=False), layer(8, 16, bias=False)
    u = Basis(*(torch.linalg.qr(torch.randn(size, size))[0] for size in block.size))
    reduction = RotatedReduction(SQUARE, [block], parameters, {"weight": u})
    assert not reduction._in_16_bits
    reduction.add_products(block, given, first=True)
    gradients = torch.einsum("nto,nti->noi", given.delta[0].double(), given.a.double())
    expected = (u.outputs.double().mT @ gradients @ u.inputs.double()).square().sum(0)
    torch.testing.assert_close(reduction.sums["weight/S"].double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", ["rotated16", "kronecker16", "rotated"])
def test_a_guards_matrices_are_those_of_single_precision_up_to_16_bits(everywhere, form, monkeypatch):
    """Through the whole measurement, of a layer along a sequence with an embedding before it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 24), nn.Linear(24, 40), nn.Tanh(), nn.Linear(40, 20)).to(torch.bfloat16)
    words = torch.randint(20, (8, 5))
    d = {name: torch.randn(p.shape) for name, p in model.named_parameters()}

    def applied():
        guard = anchorhold.Guard(model, anchorhold.Fisher(labels="sampled"), form=form)
        guard.consolidate([words])
        own = (matrix.apply({n: d[n] for n in matrix.block.parameters}) for matrix in guard.held.matrices.values())
        return {name: tensor for found in own for name, tensor in found.items()}

    found = applied()
    monkeypatch.setattr(sixteen_bits, "has_matrix_units", lambda device: False)
    for name, expected in applied().items():
        assert (found[name] - expected).norm() <= 1e-2 * expected.norm(), name


def test_a_processor_measures_as_it_did():
    block, parameters = layer(7, 9, bias=False)
    reduction = FactorReduction(SQUARE, [block], parameters, (), {"weight": Sides("dense", "dense")})
    assert not reduction._in_16_bits
