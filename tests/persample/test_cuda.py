"""On a GPU: a model's own autocast makes no difference, also where torch's own threads run the backward pass."""

import pytest
import torch

from holdfast.persample.isolation.autocast import autocast_off
from tests.persample.test_autocast import Checkpointed, Inside, Plain, fisher
from tests.persample.test_sample_order import ORDERS, SeenBatches, UsedTwice

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),
]


@pytest.mark.parametrize("build", [Inside, Checkpointed])
def test_autocast_in_the_model_makes_no_difference(build):
    inputs = torch.randn(6, 8, device="cuda")
    model, plain = build().cuda(), Plain().cuda()
    torch.testing.assert_close(fisher(model, inputs), fisher(plain, inputs), rtol=1e-6, atol=0)
    with autocast_off(model):
        found = torch.autograd.grad(model(inputs).sum(), list(model.parameters()))
    expected = torch.autograd.grad(plain(inputs).sum(), list(plain.parameters()))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
    assert model(inputs).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_samples_are_told_apart(dtype):
    """What does not move samples is measured together; what does, one at a time."""
    for order, together in ((lambda layer, x: layer(x.gather(1, x.argsort(1))), True), (ORDERS["index"], False)):
        model = SeenBatches(UsedTwice(order).to("cuda", dtype))
        fisher(model, torch.randn(40, 4, device="cuda", dtype=dtype))
        assert (model.seen.count(1) == 1) == together
