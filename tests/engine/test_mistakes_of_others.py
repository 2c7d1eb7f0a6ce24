"""Mistakes that other libraries make: each of these tests fails where one of them is made."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from anchorhold.engine.accumulator import sample_importance
from anchorhold.engine.phi import ABSOLUTE, SQUARE
from anchorhold.engine.scores import LogLikelihood, OutputNorm


def _model():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()


def _data(samples=32):
    return torch.randn(samples, 6).double(), torch.randint(3, (samples,))


@pytest.mark.parametrize("score", [LogLikelihood("true"), LogLikelihood(), OutputNorm()], ids=repr)
@pytest.mark.parametrize("phi", [SQUARE, ABSOLUTE], ids=repr)
def test_importance_does_not_depend_on_the_batch_size(score, phi):
    """The square of a batch's mean gradient, passed off as the Fisher, shrinks as the batch grows."""
    model, (inputs, targets) = _model(), _data()
    found = [
        sample_importance(model, zip(inputs.split(size), targets.split(size), strict=True), score, phi).values
        for size in (1, 2, 8, 32)
    ]
    for values in found[1:]:
        torch.testing.assert_close(values, found[0], rtol=1e-12, atol=0)


def test_empirical_fisher_is_not_the_square_of_the_mean_gradient():
    model, (inputs, targets) = _model(), _data()
    fisher = sample_importance(model, [(inputs, targets)], LogLikelihood("true"), SQUARE).values["0.weight"]
    (mean,) = torch.autograd.grad(F.cross_entropy(model(inputs), targets), model[0].weight)
    assert float(fisher.sum()) > 5 * float(mean.square().sum())


def test_importance_is_measured_in_eval_mode():
    """With dropout on, or a batch norm that follows the batch, importance is of another network than is used."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)).double()
    inputs, targets = _data()
    model.train()
    statistics = {name: value.clone() for name, value in model.named_buffers()}
    torch.manual_seed(1)
    first = sample_importance(model, [(inputs, targets)], LogLikelihood("true"), SQUARE).values
    torch.manual_seed(2)
    second = sample_importance(model, [(inputs, targets)], LogLikelihood("true"), SQUARE).values
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert all(torch.equal(statistics[name], value) for name, value in model.named_buffers())
    assert model.training
    model.eval()
    third = sample_importance(model, [(inputs, targets)], LogLikelihood("true"), SQUARE).values
    torch.testing.assert_close(first, third, rtol=0, atol=0)


@pytest.mark.parametrize("output", ["logits", "probabilities"])
def test_mas_takes_the_squared_norm(output):
    """The gradient of the norm itself is that of the squared norm divided by twice the norm, sample by sample."""
    model, (inputs, _) = _model(), _data(1)
    found = sample_importance(model, [inputs], OutputNorm(output), ABSOLUTE).values["0.weight"]
    outputs = model(inputs) if output == "logits" else model(inputs).softmax(-1)
    (squared,) = torch.autograd.grad(outputs.square().sum(), model[0].weight, retain_graph=True)
    (norm,) = torch.autograd.grad(outputs.norm(), model[0].weight)
    torch.testing.assert_close(found, squared.abs())
    assert not torch.allclose(found, norm.abs(), rtol=0.1)


def test_mas_takes_absolute_values_sample_by_sample():
    """Summed over the batch before the absolute value, gradients of opposite sign cancel."""
    model = nn.Linear(1, 1, bias=False).double()
    inputs = torch.tensor([[1.0], [2.0]]).double()
    found = sample_importance(model, [inputs], OutputNorm("logits"), ABSOLUTE).values["weight"]
    weight = model.weight.abs().item()
    assert found.item() == pytest.approx(2 * weight * (1 + 4) / 2)

    model, (inputs, _) = _model(), _data()
    found = sample_importance(model, [inputs], OutputNorm(), ABSOLUTE).values["2.bias"]
    (summed,) = torch.autograd.grad(model(inputs).softmax(-1).square().sum(1).mean(), model[2].bias)
    assert float(found.sum()) > 1.2 * float(summed.abs().sum())


def test_samples_are_told_apart_in_the_fallback_too():
    model = nn.Sequential(nn.Linear(6, 8), nn.PReLU(8), nn.Linear(8, 3)).double()
    inputs, _ = _data()
    whole = sample_importance(model, [inputs], OutputNorm(), ABSOLUTE)
    singly = sample_importance(model, inputs.split(1), OutputNorm(), ABSOLUTE)
    assert whole.fallback
    torch.testing.assert_close(whole.values, singly.values, rtol=1e-12, atol=0)
