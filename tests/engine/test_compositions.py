"""Random networks out of all the layers that have rules."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.engine.agreement import FOR_POSITIONS, MEASURES, assert_agrees
from tests.engine.networks import CausalAttention, RMSNorm, randomise


class Skip(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


class Merged(nn.Module):
    """Runs a layer on samples and positions merged, in either order."""

    def __init__(self, inner: nn.Module, *, sequence_first: bool) -> None:
        super().__init__()
        self.inner = inner
        self.sequence_first = sequence_first

    def forward(self, x):
        x = x.transpose(0, 1) if self.sequence_first else x
        y = self.inner(x.reshape(-1, x.shape[-1])).view(x.shape)
        return y.transpose(0, 1) if self.sequence_first else y


class ChannelsFirst(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x.transpose(1, 2)).transpose(1, 2)


WIDTH = 4


def _sequence_layer(draw) -> nn.Module:
    bias = draw(st.booleans())
    layers = {
        "linear": lambda: nn.Linear(WIDTH, WIDTH, bias=bias),
        "merged": lambda: Merged(nn.Linear(WIDTH, WIDTH, bias=bias), sequence_first=draw(st.booleans())),
        "conv": lambda: ChannelsFirst(
            nn.Conv1d(WIDTH, WIDTH, 3, padding=1, groups=draw(st.sampled_from([1, 2, 4])), bias=bias)
        ),
        "layer norm": lambda: nn.LayerNorm(WIDTH, bias=bias),
        "rms norm": lambda: RMSNorm(WIDTH),
        "group norm": lambda: ChannelsFirst(nn.GroupNorm(1, WIDTH)),
        "batch norm": lambda: ChannelsFirst(nn.BatchNorm1d(WIDTH)),
        "attention": lambda: CausalAttention(WIDTH, 2),
        "torch attention": lambda: nn.TransformerEncoderLayer(WIDTH, 2, 5, batch_first=True, bias=bias),
        "tanh": nn.Tanh,
        "relu": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)),
    }
    layer = layers[draw(st.sampled_from(sorted(layers)))]()
    return Skip(layer) if draw(st.booleans()) else layer


def _image_layer(draw) -> nn.Module:
    bias = draw(st.booleans())
    layers = {
        "conv": lambda: nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=draw(st.sampled_from([1, 2, 4])), bias=bias),
        "same": lambda: nn.Conv2d(WIDTH, WIDTH, 3, padding="same", dilation=2, padding_mode="circular", bias=bias),
        "pointwise": lambda: nn.Conv2d(WIDTH, WIDTH, 1, bias=bias),
        "group norm": lambda: nn.GroupNorm(2, WIDTH),
        "batch norm": lambda: nn.BatchNorm2d(WIDTH),
        "layer norm": lambda: nn.LayerNorm((4, 4), bias=bias),
        "linear": lambda: nn.Linear(4, 4, bias=bias),
        "relu": lambda: nn.Sequential(nn.BatchNorm2d(WIDTH), nn.ReLU(inplace=True)),
        "pool": lambda: nn.MaxPool2d(3, 1, 1),
    }
    layer = layers[draw(st.sampled_from(sorted(layers)))]()
    return Skip(layer) if draw(st.booleans()) else layer


@st.composite
def sequence_networks(draw):
    torch.manual_seed(draw(st.integers(0, 1000)))
    layers = [_sequence_layer(draw) for _ in range(draw(st.integers(1, 4)))]
    if draw(st.booleans()):
        layers.append(layers[0])  # shared
    return nn.Sequential(nn.Embedding(6, WIDTH), *layers, nn.Linear(WIDTH, 3))


@st.composite
def image_networks(draw):
    torch.manual_seed(draw(st.integers(0, 1000)))
    layers = [_image_layer(draw) for _ in range(draw(st.integers(1, 4)))]
    if draw(st.booleans()):
        layers.append(layers[0])
    return nn.Sequential(nn.Conv2d(2, WIDTH, 3, 2, 1), *layers, nn.Flatten(), nn.Linear(16 * WIDTH, 3))


dtypes = st.sampled_from([torch.float64, torch.float32])
budgets = st.sampled_from([None, 1, 3000])


@settings(max_examples=80)
@given(
    sequence_networks(), dtypes, budgets, st.integers(1, 4), st.integers(1, 4), st.sampled_from(sorted(FOR_POSITIONS))
)
def test_sequences(model, dtype, budget, samples, length, measure):
    model = randomise(model).to(dtype)
    targets = torch.randint(3, (samples, length))
    inputs = torch.randint(6, (samples, length))
    assert_agrees(model, inputs, targets, FOR_POSITIONS[measure], budget=budget, tolerance=_tolerance(dtype))


@settings(max_examples=60)
@given(image_networks(), dtypes, budgets, st.integers(1, 4), st.sampled_from(sorted(MEASURES)))
def test_images(model, dtype, budget, samples, measure):
    model = randomise(model).to(dtype)
    inputs, targets = torch.randn(samples, 2, 8, 8, dtype=dtype), torch.randint(3, (samples,))
    assert_agrees(model, inputs, targets, MEASURES[measure], budget=budget, tolerance=_tolerance(dtype))


def _tolerance(dtype: torch.dtype) -> float:
    return 1e-10 if dtype == torch.float64 else 1e-5
