"""The penalty, for whoever adds it to a loss by hand, is of the adapters that the model has at that moment."""

import pytest
import torch

import anchorhold
from tests.guard.helpers import batch, net

peft = pytest.importorskip("peft")

LAYER = "base_model.model.0.base_layer.weight"


def adapted(space, form, names=("default",), save=None):
    """Return a model whose adapters have learned and moved on since, its guard, and what they added before."""
    config = peft.LoraConfig(r=2, target_modules=["0"], modules_to_save=save, init_lora_weights=False)
    model = peft.get_peft_model(net(), config)
    for name in names[1:]:
        model.add_adapter(name, config)
    model.base_model.set_adapter(list(names))
    guard = anchorhold.Guard(
        model, anchorhold.Fisher(), strength=1.0, options=anchorhold.GuardOptions(space=space), form=form
    )
    guard.consolidate([batch(1)])
    then = added(model).detach().clone()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora" in name:
                parameter.add_(0.3)
    return model, guard, then


def added(model):
    """What the active adapters add to the layer's weight."""
    layer = model.base_model.model[0]
    return sum(layer.scaling[n] * layer.lora_B[n].weight @ layer.lora_A[n].weight for n in layer.active_adapters)


@pytest.mark.parametrize("looked_before", [False, True])
@pytest.mark.parametrize("space", ["weights", "merged"])
@pytest.mark.parametrize("form", ["diagonal", "kronecker"])
def test_it_has_nothing_of_an_adapter_that_was_unloaded(space, form, looked_before):
    model, guard, _ = adapted(space, form, save=["2"])
    if looked_before:
        assert float(guard.penalty().detach()) > 0
    model.unload()
    told = {"weights": r"The model no longer has .*lora_A\.default\.weight", "merged": "has no adapter any more"}
    with pytest.warns(anchorhold.AnchorholdWarning, match=told[space]):
        assert float(guard.penalty().detach()) == 0
    assert float(guard.penalty().detach()) == 0


@pytest.mark.parametrize("looked_before", [False, True])
@pytest.mark.parametrize("way", ["unloaded", "deleted", "one of two deleted"])
def test_it_is_of_adapters_in_anothers_place(way, looked_before):
    """It was 0 until a step, which whoever adds it to a loss may take without the guard."""
    model, guard, then = adapted("merged", "kronecker", names=("default", "other")[: 1 + (way == "one of two deleted")])
    if looked_before:
        guard.penalty()
    other = peft.LoraConfig(r=3, target_modules=["0"], init_lora_weights=False)
    if way == "unloaded":
        peft.get_peft_model(model.unload(), other, adapter_name="another")
    elif way == "deleted":
        model.delete_adapter("default")
        model.add_adapter("another", other)
        model.set_adapter("another")
    else:
        model.delete_adapter("other")
    value = guard.penalty()
    d = {LAYER: added(model) - then}
    torch.testing.assert_close(value, (d[LAYER] * guard.held.matrices[LAYER].apply(d)[LAYER]).sum())
    value.backward()
    layer = model.base_model.model[0]
    assert all(float(layer.lora_B[name].weight.grad.abs().sum()) > 0 for name in layer.active_adapters)


def test_one_that_adds_nothing_in_anothers_place_is_told_of():
    """After merge_and_unload() what was learned would come on top of itself."""
    model, guard, _ = adapted("merged", "kronecker")
    base = model.merge_and_unload()
    peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["0"]))
    with pytest.warns(
        anchorhold.AnchorholdWarning, match=r"The adapters add nothing to .*call guard\.refresh\(rebase=True\)"
    ):
        assert float(guard.penalty().detach()) > 0
    guard.refresh(rebase=True)
    assert float(guard.penalty().detach()) == 0


def test_forgetting_a_part_of_an_adapter_lets_go_of_the_weight_that_it_changes_and_says_so():
    _, guard, _ = adapted("merged", "kronecker", names=("default", "other"))
    name = "base_model.model.0.lora_B.other.weight"
    with pytest.warns(anchorhold.AnchorholdWarning, match=r"in one matrix with '.*lora_A.*' and 2 other parameters"):
        guard.forget(name)
    assert float(guard.penalty().detach()) == 0
    _, guard, _ = adapted("merged", "kronecker", names=("default", "other"))
    guard.forget("*.lora_?.*")  # all of it
    _, guard, _ = adapted("merged", "kronecker")
    guard.forget(LAYER)
    assert float(guard.penalty().detach()) == 0


def test_a_layer_that_was_away_when_the_model_was_looked_at_is_held_again_once_it_is_back():
    model = net()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=1.0)
    guard.consolidate([batch(1)])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    whole = float(guard.penalty().detach())
    layer, model[2] = model[2], torch.nn.Identity()
    with pytest.warns(anchorhold.AnchorholdWarning, match="no longer has"):
        without = float(guard.penalty().detach())
    guard.refresh()
    model[2] = layer
    assert 0 < without < whole
    assert float(guard.penalty().detach()) == whole
