"""Adapters that are merged into the weights they adapt have no gradient: refused, not measured as 0."""

import pytest
import torch
from peft import IA3Config, LoraConfig, get_peft_model
from torch import nn

from anchorhold.engine.accumulator import sample_importance
from anchorhold.engine.phi import SQUARE
from anchorhold.engine.scores import LogLikelihood
from anchorhold.errors import ModelError

ADAPTERS = {
    "LoRA": LoraConfig(target_modules=["0"], r=2, init_lora_weights=False),
    "IA3": IA3Config(target_modules=["0"], feedforward_modules=[], init_ia3_weights=False),
}


def _measure(model, parameters=None):
    return sample_importance(
        model, [torch.randn(4, 4)], LogLikelihood(), SQUARE, parameters=parameters, forward=lambda model, x: model(x)
    ).values


@pytest.mark.filterwarnings("ignore:Unmerge result can be inaccurate")
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_merged(adapter):
    model = get_peft_model(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)), ADAPTERS[adapter])
    parameters = dict(model.named_parameters())
    adapters = {name: p for name, p in parameters.items() if "lora" in name or "ia3" in name}
    others = {name: p for name, p in parameters.items() if name not in adapters}
    assert all(value.any() for value in _measure(model).values())
    model.merge_adapter()
    for chosen in (None, adapters):
        with pytest.raises(ModelError, match=r"merged into the weights.*model.unmerge_adapter\(\)"):
            _measure(model, chosen)
    assert all(value.any() for value in _measure(model, others).values())
    model.unmerge_adapter()
    assert all(value.any() for value in _measure(model, adapters).values())


class Merged(nn.Linear):
    """Has an attribute of that name which says something else."""

    merged = True


class Merging(Merged):
    merged = 3

    def merge(self):
        return self.merged

    unmerge = merge


@pytest.mark.parametrize("kind", [Merged, Merging])
def test_other_things_of_that_name(kind):
    assert all(value.any() for value in _measure(kind(4, 3)).values())
