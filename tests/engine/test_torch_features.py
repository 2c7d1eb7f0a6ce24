"""Models that are compiled, checkpointed, in 16 bits or under autocast; operations whose backward pass is batched."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from anchorhold.engine.accumulator import sample_importance
from anchorhold.engine.phi import SQUARE
from anchorhold.engine.scores import LogLikelihood
from tests import oracles
from tests.engine import networks
from tests.engine.agreement import MEASURES, assert_agrees


def _mlp():
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = _mlp(), nn.Linear(3, 3)

    def forward(self, x):
        return self.head(checkpoint(self.body, x, use_reentrant=False))


@pytest.mark.parametrize("measure", ["Fisher", "MAS", "empirical Fisher"])
@pytest.mark.parametrize("samples", [1, 4])
def test_activation_checkpointing(samples, measure):
    inputs, targets = torch.randn(samples, 4).double(), torch.randint(3, (samples,))
    assert_agrees(Checkpointed().double(), inputs, targets, MEASURES[measure])


def test_checkpointed_attention():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True)
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            return self.head(checkpoint(self.layer, x, use_reentrant=False).mean(1))

    assert_agrees(networks.randomise(Model()).double(), torch.randn(4, 3, 4).double(), None, MEASURES["Fisher"])


def test_compiled_model_is_measured_as_it_was_written():
    model, inputs = _mlp(), torch.randn(5, 4)
    compiled = torch.compile(model, backend="eager")
    expected = sample_importance(model, [inputs], LogLikelihood(), SQUARE)
    found = sample_importance(compiled, [inputs], LogLikelihood(), SQUARE)
    assert not found.fallback
    for name, value in expected.values.items():
        assert torch.equal(found.values[name], value)


def test_autocast_around_the_call_makes_no_difference():
    model, inputs = _mlp(), torch.randn(5, 4)
    expected = sample_importance(model, [inputs], LogLikelihood(), SQUARE)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = sample_importance(model, [inputs], LogLikelihood(), SQUARE)
        assert torch.is_autocast_enabled("cpu")
    torch.testing.assert_close(found.values, expected.values, rtol=0, atol=0)


class AutocastInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)  # used twice, so that the cast of its weight is cached
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.layer(self.layer(x).relu()).relu()
        return self.head(x.float() if x.dtype == torch.bfloat16 else x)


def test_autocast_inside_the_model():
    model, inputs = AutocastInside(), torch.randn(6, 8)
    found = sample_importance(model, [inputs], LogLikelihood(), SQUARE)
    one_by_one = sample_importance(model, inputs.split(1), LogLikelihood(), SQUARE)
    assert not found.fallback
    for name, value in found.values.items():
        assert value.dtype == torch.float32
        assert oracles.relative_error(value, one_by_one.values[name].double()) < 0.05


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_parameters_of_16_bits_are_added_up_in_32(dtype):
    model, inputs = _mlp(), torch.randn(64, 4)
    expected = sample_importance(model, [inputs], LogLikelihood(), SQUARE)
    found = sample_importance(model.to(dtype), [inputs.to(dtype)], LogLikelihood(), SQUARE)
    for name, value in found.values.items():
        assert value.dtype == torch.float32
        # Far closer than a running sum in 16 bits would be, whose steps are 0.4 % of the total.
        assert oracles.relative_error(value, expected.values[name].double()) < 0.03


def test_16_bits_and_no_rule():
    model = nn.Sequential(nn.Linear(4, 4), nn.PReLU(4), nn.Linear(4, 3)).bfloat16()
    found = sample_importance(model, [torch.randn(8, 4).bfloat16()], LogLikelihood(), SQUARE)
    assert found.values["1.weight"].dtype == torch.float32


def test_many_samples_in_float32():
    """Rounding must not pile up with the number of samples."""
    model = nn.Sequential(nn.Conv1d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(9, 3))
    inputs = torch.randn(20_000, 2, 4)
    found = sample_importance(model, inputs.split(500), LogLikelihood(), SQUARE)
    expected = sample_importance(model.double(), inputs.double().split(500), LogLikelihood(), SQUARE)
    for name, value in found.values.items():
        assert oracles.relative_error(value, expected.values[name]) < 2e-6


OPERATIONS = {
    "ReLU": nn.ReLU,
    "ReLU6": nn.ReLU6,
    "ELU": nn.ELU,
    "CELU": nn.CELU,
    "SELU": nn.SELU,
    "GELU": nn.GELU,
    "SiLU": nn.SiLU,
    "Mish": nn.Mish,
    "Softplus": nn.Softplus,
    "Softsign": nn.Softsign,
    "Tanh": nn.Tanh,
    "Sigmoid": nn.Sigmoid,
    "Hardtanh": nn.Hardtanh,
    "Hardswish": nn.Hardswish,
    "Hardsigmoid": nn.Hardsigmoid,
    "LeakyReLU": nn.LeakyReLU,
    "LogSigmoid": nn.LogSigmoid,
    "Softshrink": nn.Softshrink,
    "Hardshrink": nn.Hardshrink,
    "Tanhshrink": nn.Tanhshrink,
    "RReLU": nn.RReLU,
    "PReLU": lambda: nn.PReLU(3),
    "GLU": lambda: nn.Sequential(nn.Conv2d(3, 6, 1), nn.GLU(1)),
    "Softmax": lambda: nn.Softmax(1),
    "MaxPool2d": lambda: nn.MaxPool2d(2, 1),
    "AvgPool2d": lambda: nn.AvgPool2d(2, 1, 1),
    "AdaptiveAvgPool2d": lambda: nn.AdaptiveAvgPool2d(3),
    "AdaptiveMaxPool2d": lambda: nn.AdaptiveMaxPool2d(3),
    "LPPool2d": lambda: nn.Sequential(nn.Softplus(), nn.LPPool2d(2, 2)),
    "Upsample": lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
    "nearest": lambda: nn.Upsample(scale_factor=2),
    "PixelShuffle": lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.PixelShuffle(2)),
    "reflection": lambda: nn.ReflectionPad2d(1),
    "Dropout2d": lambda: nn.Dropout2d(0.5),
    "LocalResponseNorm": lambda: nn.LocalResponseNorm(2),
    "InstanceNorm2d": lambda: nn.InstanceNorm2d(3),
    "Unfold": lambda: nn.Unfold(2),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_backward_passes_that_rows_share(operation):
    """Rows of scores go back through every operation as a batch: torch's rule for that must be right."""
    model = nn.Sequential(nn.Conv2d(2, 3, 2), OPERATIONS[operation](), nn.Flatten(), nn.LazyLinear(4))
    inputs = torch.randn(3, 2, 5, 5)
    model(inputs)
    fallback = {"1.weight"} if operation == "PReLU" else set()
    assert_agrees(model.double(), inputs.double(), None, MEASURES["Fisher"], fallback=fallback)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_traced_model():
    inputs, model = torch.randn(4, 4), _mlp()
    traced = torch.jit.trace(model, inputs)
    found = sample_importance(traced, [inputs], LogLikelihood(), SQUARE).values
    for name, expected in sample_importance(model, [inputs], LogLikelihood(), SQUARE).values.items():
        torch.testing.assert_close(found[name], expected)
