"""Adapters that are neither two factors nor beside a layer: sparse ones, and those of a parameter itself."""

import pytest
import torch
from peft import LoraConfig, ShiraConfig, get_peft_model
from torch import nn

from anchorhold.engine.accumulator import sample_importance
from tests import oracles
from tests.engine.agreement import MEASURES

ADAPTERS = {
    "sparse": ShiraConfig(target_modules=["0", "2"], r=1, init_weights=False),
    "of parameters": LoraConfig(target_modules=[], target_parameters=["0.weight", "2.weight"], r=2),
    "of both": LoraConfig(target_modules=["0"], target_parameters=["2.weight"], r=2),
}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks", "ignore:target_modules")
@pytest.mark.parametrize("samples", [1, 5])
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_measured_as_any_other(adapter, samples):
    model = get_peft_model(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)), ADAPTERS[adapter]).double()
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for parameter in trained.values():
            parameter.normal_()
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    inputs, (score, phi, oracle) = torch.randn(samples, 4).double(), MEASURES["Fisher"]
    found = sample_importance(model, [inputs], score, phi, parameters=trained, forward=lambda model, x: model(x)).values
    expected = oracles.importance(model, oracles.one_by_one(inputs), oracle, phi)
    for name in trained:
        assert oracles.relative_error(found[name], expected[name]) < 1e-10
    assert all(torch.equal(p, weights[name]) for name, p in model.named_parameters())
