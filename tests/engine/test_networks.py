"""Whole networks: the engine agrees with brute force on each, and needs the fallback on none."""

import pytest
import torch
from torch import nn

from anchorhold.engine.accumulator import sample_importance
from anchorhold.engine.phi import SQUARE
from anchorhold.engine.scores import LogLikelihood
from tests.engine import networks
from tests.engine.agreement import FOR_POSITIONS, MEASURES, assert_agrees

CLASSIFIERS = {
    "mlp": (lambda: networks.paper_mlp(6, 7, 4), (6,), 4),
    "cnn": (lambda: networks.paper_cnn(2, 8, 6, 3), (3, 8, 8), 3),
    "resnet": (networks.ResNet, (3, 6, 6), 3),
    "vit": (networks.ViT, (3, 6, 6), 3),
}
DECODERS = {
    "nanoGPT": networks.NanoGPT,
    "GPT-2 of Hugging Face": networks.HuggingGPT2,
    "Llama": networks.Llama,
    "torch, batch first": networks.TorchDecoder,
    "torch, sequence first": lambda: networks.TorchDecoder(batch_first=False),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifier(name, measure, dtype):
    torch.manual_seed(0)
    make, shape, classes = CLASSIFIERS[name]
    model = networks.randomise(make()).to(dtype)
    assert_agrees(model, torch.randn(4, *shape, dtype=dtype), torch.randint(classes, (4,)), MEASURES[measure])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("measure", FOR_POSITIONS)
@pytest.mark.parametrize("name", DECODERS)
def test_decoder(name, measure, dtype):
    torch.manual_seed(0)
    model = networks.randomise(DECODERS[name]()).to(dtype)
    targets = torch.randint(7, (3, 4))
    targets[0, 1] = targets[2, 3] = -100
    assert_agrees(model, torch.randint(7, (3, 4)), targets, FOR_POSITIONS[measure])


@pytest.mark.parametrize("length", [1, 2, 3])
def test_as_many_positions_as_samples(length):
    torch.manual_seed(0)
    model = networks.randomise(networks.HuggingGPT2()).double()
    idx = torch.randint(7, (length, length))
    assert_agrees(model, idx, idx, FOR_POSITIONS["Fisher"])


@pytest.mark.parametrize("measure", ["Fisher", "MAS"])
@pytest.mark.parametrize("other", [6, 5], ids=["packed projections", "separate projections"])
def test_cross_attention(other, measure):
    torch.manual_seed(0)
    model = networks.randomise(networks.CrossAttention(other=other)).double()
    inputs = (torch.randn(4, 2, 6).double(), torch.randn(4, 3, other).double())
    assert_agrees(model, inputs, torch.randint(3, (4,)), MEASURES[measure])


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (networks.paper_mlp(), torch.rand(3, 784)),
        (networks.paper_cnn(), torch.rand(3, 3, 32, 32)),
    ],
    ids=["mlp", "cnn"],
)
def test_the_papers_networks_in_full_need_no_fallback(model, inputs):
    found = sample_importance(model, [inputs], LogLikelihood(), SQUARE)
    assert not found.fallback
    assert all(bool((value > 0).any()) for value in found.values.values())


class Attention(nn.Module):
    def __init__(self, *, batch_first: bool, causal: bool, padded: bool, **options) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=batch_first, **options)
        self.head = nn.Linear(4, 3)
        self.causal, self.padded = causal, padded

    def forward(self, x):
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1) if self.causal else None
        padding = torch.arange(x.shape[1]).expand(x.shape[:2]) > 1 if self.padded else None
        x = x if self.attention.batch_first else x.transpose(0, 1)
        y, _ = self.attention(x, x, x, attn_mask=mask, key_padding_mask=padding, need_weights=False)
        return self.head((y if self.attention.batch_first else y.transpose(0, 1)).tanh().sum(1))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(
    ("options", "fallback"),
    [
        ({"causal": False, "padded": False}, set()),
        ({"causal": True, "padded": False}, set()),
        ({"causal": True, "padded": True, "bias": False}, set()),
        ({"causal": False, "padded": True, "add_zero_attn": True}, set()),
        ({"causal": False, "padded": False, "add_bias_kv": True}, {"attention.bias_k", "attention.bias_v"}),
    ],
    ids=["plain", "causal", "causal, padded, no bias", "padded, zero attention", "bias for keys and values"],
)
def test_every_form_of_attention(options, fallback, batch_first):
    model = networks.randomise(Attention(batch_first=batch_first, **options)).double()
    for samples, length in ((4, 3), (3, 3), (1, 2)):
        assert_agrees(model, torch.randn(samples, length, 4).double(), None, MEASURES["Fisher"], fallback=fallback)
