"""φ in coordinates of a layer's own, against the formula: gradients are rotated before or after they are made."""

import pytest
import torch
from torch import nn

from anchorhold.engine.phi import ABSOLUTE, SQUARE
from anchorhold.engine.reductions import Basis, Block, RotatedReduction
from anchorhold.engine.rules.base import Products

# Rows, positions, outputs and inputs: each side is rotated in δ and a, or in the gradients where those are fewer.
SHAPES = {
    "neither in gradients": (3, 4, 5, 6),
    "outputs in gradients": (3, 9, 5, 6),
    "inputs in gradients": (1, 6, 5, 8),
    "both in gradients": (2, 40, 5, 6),
    "one position": (3, 1, 5, 6),
}


def orthonormal(size):
    return torch.linalg.qr(torch.randn(size, size, dtype=torch.float64))[0]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("phi", [SQUARE, ABSOLUTE], ids=repr)
@pytest.mark.parametrize("turned", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("shape", SHAPES)
def test_s_is_the_sum_of_phi_of_rotated_gradients(shape, turned, phi, bias):
    torch.manual_seed(0)
    rows, places, outputs, inputs = SHAPES[shape]
    samples = 3
    delta = torch.randn(samples, rows, outputs, places, dtype=torch.float64).permute(1, 0, 3, 2)
    a = torch.randn(samples, places, inputs, dtype=torch.float64)
    parameters = {
        "weight": nn.Parameter(torch.zeros(outputs, inputs, dtype=torch.float64)),
        "bias": nn.Parameter(torch.zeros(outputs, dtype=torch.float64)),
    }
    block = Block("weight", ("weight", "bias") if bias else ("weight",), (outputs, inputs))
    u_g, u_a = (orthonormal(size) if turn else None for size, turn in zip(block.size, turned, strict=True))
    reduction = RotatedReduction(phi, [block], parameters, {"weight": Basis(u_g, u_a)})
    reduction.add_products(block, Products(delta, a, bias), first=True)

    inputs_and_one = torch.cat([a, torch.ones(samples, places, 1, dtype=torch.float64)], -1) if bias else a
    gradients = torch.einsum("vnto,nti->vnoi", delta, inputs_and_one)
    gradients = gradients if u_g is None else u_g.mT @ gradients
    gradients = gradients if u_a is None else gradients @ u_a
    torch.testing.assert_close(reduction.sums["weight/S"], phi(gradients).sum((0, 1)), rtol=1e-10, atol=1e-12)
