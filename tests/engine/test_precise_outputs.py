"""Trained networks that are nearly certain: where 1 − q is all there is, and a careless difference loses it."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from anchorhold.engine.accumulator import sample_importance
from anchorhold.engine.scores import LogLikelihood
from anchorhold.engine.scores import outputs as module
from anchorhold.engine.scores.outputs import precise_outputs
from tests import oracles
from tests.engine.agreement import MEASURES, assert_agrees

CERTAINTIES = [1e-3, 1e-8, 1e-15, 1e-22, 1e-100, 1e-160]
SOFTMAX = [name for name in MEASURES if "custom" not in name]


def _networks():
    mlp = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 4))
    features = [nn.Conv2d(2, 5, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(5, 6, 2), nn.GELU(), nn.Flatten()]
    cnn = nn.Sequential(*features, nn.Linear(6, 4))
    return {"mlp": (mlp, torch.randn(5, 6)), "cnn": (cnn, torch.randn(5, 2, 4, 4))}


def _log_doubt(model, inputs):
    """Return log(1 − q) of the likeliest label of each sample."""
    z = model(inputs.to(next(model.parameters()).dtype)).detach().double()
    top = z.max(-1, keepdim=True)
    return (z - top.values).scatter(-1, top.indices, -math.inf).logsumexp(-1)


def _trained(name, dtype, doubt):
    """Train a network on a few samples, then sharpen its head until the least certain of them has this doubt."""
    torch.manual_seed(0)
    model, inputs = _networks()[name]
    targets = torch.arange(len(inputs)) % 4
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(120):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    assert bool((model(inputs).argmax(-1) == targets).all())
    model, inputs = model.to(dtype), inputs.to(dtype)
    for _ in range(20):
        factor = math.log(doubt) / _log_doubt(model, inputs).max().item()
        with torch.no_grad():
            model[-1].weight.mul_(factor)
            model[-1].bias.mul_(factor)
    assert _log_doubt(model, inputs).max().item() == pytest.approx(math.log(doubt), rel=0.01)
    return model, inputs, targets


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("doubt", CERTAINTIES)
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_nearly_certain(name, doubt, dtype):
    model, inputs, targets = _trained(name, dtype, doubt)
    for measure in SOFTMAX:
        # Tighter than elsewhere: outputs in float32 alone would be off by up to 1e-5 here.
        assert_agrees(model, inputs, targets, MEASURES[measure], tolerance=1e-10 if dtype == torch.float64 else 1e-6)


def test_outputs_in_float64_leave_the_rest_in_float32():
    model, inputs, _ = _trained("mlp", torch.float32, 1e-15)
    seen = []
    model[0].register_forward_hook(lambda module, args, out: seen.append(out.dtype))
    found = sample_importance(model, [inputs], MEASURES["AF"].score, MEASURES["AF"].phi)
    assert torch.float64 in seen
    assert {p.dtype for p in model.parameters()} == {value.dtype for value in found.values.values()} == {torch.float32}


@pytest.mark.parametrize("error", [RuntimeError, TypeError, ValueError, AssertionError, KeyError])
def test_a_model_that_takes_no_float64_keeps_the_digits_it_has(error):
    model, inputs, _ = _trained("mlp", torch.float32, 1e-8)

    class Refuses(nn.Sequential):
        def forward(self, x):
            if x.dtype != torch.float32 and refusing:
                raise error("float32 alone")
            return super().forward(x)

    refusing = True
    found = sample_importance(Refuses(*model), [inputs], MEASURES["Fisher"].score, MEASURES["Fisher"].phi).values
    refusing = False
    expected = oracles.importance(
        Refuses(*model), oracles.one_by_one(inputs), MEASURES["Fisher"].oracle, MEASURES["Fisher"].phi
    )
    for name, value in expected.items():
        assert oracles.relative_error(found[name], value) < 1e-4


def test_a_large_model_keeps_the_digits_it_has(monkeypatch):
    """A copy of its weights in float64 would take more memory than the measuring itself."""
    model, inputs, _ = _trained("mlp", torch.float32, 1e-8)
    outputs = model(inputs).detach()
    logits = LogLikelihood().logits
    assert precise_outputs(model, lambda net, x: net(x), inputs, outputs, logits(outputs)).dtype == torch.float64
    monkeypatch.setattr(module, "MOST_WEIGHTS", sum(p.numel() for p in model.parameters()) - 1)
    assert precise_outputs(model, lambda net, x: net(x), inputs, outputs, logits(outputs)).dtype == torch.float32
