"""Convolutions in every setting of theirs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.engine.agreement import MEASURES, assert_agrees

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")

SETTINGS = {
    "plain": {},
    "no bias": {"bias": False},
    "stride": {"stride": 2},
    "padding": {"padding": 1},
    "same": {"padding": "same"},
    "same, even kernel": {"kernel_size": 2, "padding": "same"},
    "same, even kernel, dilated": {"kernel_size": 2, "padding": "same", "dilation": 3},
    "valid": {"padding": "valid"},
    "dilation": {"dilation": 2},
    "groups": {"groups": 2},
    "depthwise": {"groups": 4},
    "circular": {"padding": 1, "padding_mode": "circular"},
    "reflect": {"padding": 1, "padding_mode": "reflect"},
    "replicate, same": {"padding": "same", "kernel_size": 2, "padding_mode": "replicate"},
    "everything": {"stride": 2, "padding": 2, "dilation": 2, "groups": 2},
}


def _network(dimensions: int, **options) -> nn.Module:
    convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1]
    pool = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)[dimensions - 1]
    options = {"kernel_size": 3, **options}
    return nn.Sequential(convolution(4, 4, **options), nn.Tanh(), pool(1), nn.Flatten(), nn.Linear(4, 3)).double()


@pytest.mark.daily
@pytest.mark.parametrize("measure", ["Fisher", "MAS"])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("dimensions", [1, 2])
def test_setting(dimensions, setting, measure):
    assert_agrees(
        _network(dimensions, **SETTINGS[setting]),
        torch.randn(3, 4, *[7] * dimensions).double(),
        None,
        MEASURES[measure],
    )


def test_three_dimensions():
    inputs = torch.randn(2, 4, 3, 4, 5).double()
    assert_agrees(_network(3, stride=(1, 2, 1), padding=(0, 1, 2)), inputs, None, MEASURES["Fisher"])


@given(
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.one_of(st.tuples(st.integers(0, 2), st.integers(0, 2)), st.just("same")),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    groups=st.sampled_from([1, 2, 4]),
    bias=st.booleans(),
    samples=st.integers(1, 3),
    measure=st.sampled_from(["Fisher", "AF", "MASX"]),
)
def test_any_setting(kernel, stride, padding, dilation, groups, bias, samples, measure):
    torch.manual_seed(1)
    stride = 1 if padding == "same" else stride
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "bias": bias}
    model = _network(2, kernel_size=kernel, **options)
    assert_agrees(model, torch.randn(samples, 4, 5, 6).double(), None, MEASURES[measure])


class Frames(nn.Module):
    """A convolution of the frames of a video, merged with the samples, with the norms that follow one."""

    def __init__(self, norm: nn.Module, *, sequence_first: bool) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(2, 4, 2, groups=2)
        self.norm = norm
        self.head = nn.Linear(4, 3)
        self.sequence_first = sequence_first

    def forward(self, x):
        n, t = x.shape[:2]
        x = x.transpose(0, 1).flatten(0, 1) if self.sequence_first else x.flatten(0, 1)
        y = self.norm(self.convolution(x)).tanh().mean((2, 3))
        y = y.view(t, n, -1).transpose(0, 1) if self.sequence_first else y.view(n, t, -1)
        return self.head(y.square().sum(1))


@pytest.mark.parametrize("measure", ["Fisher", "MAS"])
@pytest.mark.parametrize("sequence_first", [True, False])
@pytest.mark.parametrize("norm", [nn.GroupNorm(2, 4), nn.BatchNorm2d(4)], ids=["group norm", "batch norm"])
@pytest.mark.parametrize("frames", [1, 3])
def test_merged_frames(frames, norm, sequence_first, measure):
    model = Frames(norm, sequence_first=sequence_first).double()
    assert_agrees(model, torch.randn(3, frames, 2, 4, 4).double(), None, MEASURES[measure])


class TiedConvolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(2, 2, 3, padding=1)
        self.head = nn.Linear(2, 3)

    def forward(self, x):
        # The same weights at two scales and in a row.
        x = self.convolution(self.convolution(x).relu())
        y = self.convolution(nn.functional.avg_pool2d(x, 2))
        return self.head(x.mean((2, 3)).tanh() + y.mean((2, 3)).sin())


@pytest.mark.parametrize("measure", ["Fisher", "AF", "MAS"])
def test_tied(measure):
    assert_agrees(TiedConvolution().double(), torch.randn(3, 2, 4, 4).double(), None, MEASURES[measure])


def test_channels_last():
    model = _network(2).to(memory_format=torch.channels_last)
    inputs = torch.randn(3, 4, 5, 5).double().to(memory_format=torch.channels_last)
    assert_agrees(model, inputs, None, MEASURES["Fisher"])
