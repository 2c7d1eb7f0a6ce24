"""On a GPU: a model's own autocast makes no difference, samples are told apart, and recurrent layers are measured."""

import pytest
import torch
from torch import nn

from anchorhold.engine.isolation import autocast_off
from tests.engine.test_autocast import Checkpointed, Inside, Plain, fisher
from tests.engine.test_sample_order import ORDERS, SeenBatches, UsedTwice

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
        assert (model.seen.count(1) == 3) == together  # the pair, each alone, and the last of all


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(kind):
    """The kernels of cuDNN have no backward pass in eval mode."""

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = kind(3, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, x):
            self.rnn.flatten_parameters()
            return self.head(self.rnn(x)[0][:, -1])

    torch.manual_seed(0)
    model, inputs = Recurrent(), torch.randn(5, 6, 3)
    expected = fisher(model, inputs)
    enabled = torch.backends.cudnn.enabled
    torch.testing.assert_close(fisher(model.cuda(), inputs.cuda()), expected, rtol=1e-4, atol=1e-7, check_device=False)
    assert torch.backends.cudnn.enabled is enabled
    model(inputs.cuda())  # it can still be called
