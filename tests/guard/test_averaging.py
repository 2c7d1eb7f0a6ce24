"""Going back part of the way to the anchor, by itself and at the end of a task."""

import pytest
import schedulefree
import torch
import torch.nn.functional as F
from torch import nn

import anchorhold
from anchorhold.errors import ConfigurationError, OrderError
from tests.helpers import grouped

X = torch.linspace(-1, 1, 60).reshape(20, 3).sin()
Y = torch.arange(20) % 2


def trained(dtype=torch.float32, **settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)
    guard = anchorhold.Guard(model, "EWC", strength=1.0, protect="0.*", **grouped(**settings))
    guard.consolidate([(X.to(dtype), Y)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    guard.attach(optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(-X.to(dtype)), Y).backward()
        optimizer.step()
    return model, guard


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_weights_go_back_part_of_the_way_and_unprotected_ones_stay(share, dtype):
    model, guard = trained(dtype)
    before, after, head = guard.anchor["0.weight"].clone(), model[0].weight.detach().clone(), model[2].weight.clone()
    guard.average(share)
    expected = before.float() + share * (after.float() - before.float())
    torch.testing.assert_close(model[0].weight.detach(), expected.to(dtype))
    assert torch.equal(model[2].weight, head)
    if share == 1:
        assert torch.equal(model[0].weight, after)


def test_guard_and_averaging_in_one_call():
    one, its = trained()
    two, guard = trained()
    its.average(0.6)
    its.consolidate([(X, Y)])
    guard.consolidate([(X, Y)], share=0.6)
    assert torch.equal(one[0].weight, two[0].weight) and guard.tasks == 2
    assert torch.equal(guard.anchor["0.weight"], two[0].weight)
    assert torch.equal(guard.importance["0.weight"], its.importance["0.weight"])


def test_a_task_that_is_refused_leaves_the_weights_as_they_were():
    model, guard = trained()
    after = model[0].weight.detach().clone()
    with pytest.raises(anchorhold.errors.BatchError):
        guard.consolidate([(X, Y[:3])], share=0.5)
    assert torch.equal(model[0].weight, after) and guard.tasks == 1


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan"), "half"])
def test_what_is_no_share_is_refused(share):
    model, guard = trained()
    after = model[0].weight.detach().clone()
    with pytest.raises(ConfigurationError, match="share="):
        guard.average(share)
    assert torch.equal(model[0].weight, after)


def test_there_must_be_somewhere_to_go_back_to():
    with pytest.raises(OrderError, match="before the first consolidate"):
        anchorhold.Guard(nn.Linear(3, 2), "EWC").average(0.5)


def test_weights_that_are_no_numbers_are_refused():
    model, guard = trained()
    with torch.no_grad():
        model[0].bias.fill_(torch.nan)
    before = model[0].weight.detach().clone()
    with pytest.raises(ConfigurationError, match="not finite"):
        guard.average(0.5)
    assert torch.equal(model[0].weight, before)


def test_a_refused_task_gives_back_the_weights_of_layers_that_thawed_since():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    guard = anchorhold.Guard(model, "EWC", strength=1.0)
    guard.consolidate([(X, Y)])
    with torch.no_grad():
        model[2].weight.add_(1.0)
    model[0].requires_grad_(True)
    before = model[2].weight.detach().clone()
    with pytest.raises(anchorhold.errors.BatchError):
        guard.consolidate([(X[:0], Y[:0])], share=0.5)
    assert torch.equal(model[2].weight, before)


def test_it_is_the_models_own_weights_that_move():
    model, guard = trained()
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    before, after = guard.anchor["0.weight"].clone(), model[0].weight.detach().clone()
    guard.average(0.5)
    torch.testing.assert_close(model[0].weight.detach(), (before + after) / 2)


def test_all_weights_move_or_none():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    guard = anchorhold.Guard(model, "EWC", strength=1.0)
    guard.consolidate([(X, Y)])
    with torch.no_grad():
        model[0].weight.add_(1.0)
    model[2].weight.data = torch.zeros(3, 4)
    before = model[0].weight.detach().clone()
    with pytest.raises(anchorhold.errors.ProtectError, match="was consolidated with shape"):
        guard.average(0.5)
    assert torch.equal(model[0].weight, before)


def test_a_schedule_free_optimizer_has_to_be_in_eval_mode():
    model, guard = trained()
    optimizer = schedulefree.SGDScheduleFree(model.parameters(), lr=0.1)
    guard.detach()
    guard.attach(optimizer)
    optimizer.train()
    with pytest.raises(ConfigurationError, match=r"Call its eval\(\) first"):
        guard.average(0.5)
    optimizer.eval()
    before, after = guard.anchor["0.weight"].clone(), model[0].weight.detach().clone()
    guard.average(0.5)
    torch.testing.assert_close(model[0].weight.detach(), (before + after) / 2)


def test_an_average_that_comes_too_late_says_so():
    _, guard = trained()
    guard.consolidate([(X, Y)])
    with pytest.warns(anchorhold.AnchorholdWarning, match="no weight has moved since the last consolidation"):
        guard.average(0.5)


def test_an_adapter_that_is_switched_off_is_refused_and_stays():
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    model = peft.get_peft_model(network, peft.LoraConfig(r=2, target_modules=["0"], init_lora_weights=False))
    guard = anchorhold.Guard(model, "EWC", strength=1.0)
    guard.consolidate([(X, Y)])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora" in name:
                parameter.add_(0.3)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    with model.disable_adapter():
        with pytest.raises(ConfigurationError, match=r"'base_model\.model\.0\.base_layer\.weight' is switched off"):
            guard.average(0.5)
        with pytest.raises(ConfigurationError, match="is switched off"):
            guard.consolidate([(X, Y)], share=0.5)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])
