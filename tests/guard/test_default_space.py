"""What is held of adapters where nobody has said so, and what a saved state makes of that."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

import anchorhold
from anchorhold import SI, Fisher, Guard, GuardOptions, LowRank
from anchorhold.errors import ConfigurationError, StateError
from tests.adapters.by_hand import Adapted, adapt, networks
from tests.helpers import grouped


def adapted(rank=2):
    torch.manual_seed(0)
    model, inputs, layers = networks()["mlp"]
    return adapt(model.double(), layers, rank), inputs.double()


def moved(model):
    torch.manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(0.3 * torch.randn_like(p))


MERGED = {
    "Kronecker factors": {"form": "kronecker"},
    "rotated coordinates": {"form": "rotated"},
    "in 16 bits": {"form": anchorhold.forms.Kronecker16()},
    "all that a layer has": {"form": "kronecker", "protect": ["0.*", "2.*"]},
    "a predicate": {"form": "kronecker", "protect": lambda name, p: p.requires_grad},
    "strengths of layers": {"form": "kronecker", "strength": {"0.*": 2.0, "*": 1.0}},
    "strengths of weights": {"form": "kronecker", "strength": {"*layer.weight": 2.0}},
}
WEIGHTS = {
    "a diagonal": {},
    "a form of vectors": {"form": LowRank(span="layers")},
    "a path": {"measure": SI()},
    "a path that watches": {"form": "kronecker", "watch": ["SI"]},
    "no data": {"measure": "L2"},
    "factors by name": {"form": "kronecker", "protect": ["*.a", "*.b"]},
    "one factor": {"form": "kronecker", "protect": lambda name, p: name.endswith(".b")},
    "strengths of factors": {"form": "kronecker", "strength": {"*.a": 2.0, "*": 1.0}},
    "a mean": {"form": "kronecker", "anchor": "mean"},
    "after the step": {"form": "kronecker", "implicit": True},
}


@pytest.mark.parametrize("asked", [*MERGED, *WEIGHTS])
def test_adapters_are_held_by_merged_weights_where_that_is_known_to_keep_more(asked):
    model, _ = adapted()
    options = dict((MERGED | WEIGHTS)[asked])
    guard = Guard(model, options.pop("measure", Fisher()), **grouped(**options))
    assert guard.options.space == ("merged" if asked in MERGED else "weights")
    said = "merged weights" if asked in MERGED else "own parameters"
    assert f"adapters by their {said}" in repr(guard).splitlines()[0]


def test_a_base_that_is_trained_too_and_a_model_without_adapters_are_held_as_they_are():
    model, _ = adapted()
    model[0].layer.requires_grad_(True)
    guard = Guard(model, Fisher(), form="kronecker")
    assert guard.options.space == "weights"
    assert "adapters by their own parameters, since " in repr(guard) and "0.layer.weight" in repr(guard).splitlines()[0]
    assert "since" not in repr(Guard(model, Fisher(), form="kronecker", options=GuardOptions(space="weights")))
    plain = Guard(nn.Linear(3, 2), Fisher(), form="kronecker")
    assert plain.options.space == "weights" and "adapters" not in repr(plain)


def test_the_default_is_the_same_guard_to_the_last_bit():
    found = []
    for options in ({}, {"space": "merged"}):
        model, inputs = adapted()
        guard = Guard(model, Fisher(), strength=2.0, form="rotated", **grouped(**options))
        guard.consolidate([inputs])
        moved(model)
        found.append(float(guard.penalty().detach()))
    assert found[0] == found[1] > 0


@pytest.mark.parametrize(("form", "space"), [("kronecker", "weights"), ("diagonal", "merged")])
def test_a_state_is_held_as_it_was_saved_unless_the_guard_was_told_otherwise(form, space, tmp_path):
    """Files of adapters' own parameters are older than the default, and go on as they were."""
    model, inputs = adapted()
    saved = Guard(model, Fisher(), strength=2.0, form=form, options=GuardOptions(space=space))
    saved.consolidate([inputs])
    moved(model)
    saved.save(tmp_path / "guard.safetensors")
    guard = Guard(model, Fisher(), strength=2.0, form=form)
    assert guard.options.space != space
    guard.load(tmp_path / "guard.safetensors")
    assert guard.options.space == space and guard.parameters.keys() == saved.parameters.keys()
    assert float(guard.penalty().detach()) == float(saved.penalty().detach()) > 0
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    guard.attach(optimizer)
    model(inputs).square().sum().backward()
    with pytest.warns(anchorhold.AnchorholdWarning, match="% away from those that"):  # no step has moved them
        optimizer.step()
    guard.consolidate([inputs])
    assert guard.tasks == 2 and guard.importance.keys() == saved.importance.keys()
    other = "weights" if space == "merged" else "merged"
    with pytest.raises(StateError, match=f"space={space}; this Guard has space={other}"):
        Guard(model, Fisher(), strength=2.0, form=form, options=GuardOptions(space=other)).load(
            tmp_path / "guard.safetensors"
        )


def test_a_state_that_is_refused_leaves_the_space_and_all_else():
    model, inputs = adapted()
    saved = Guard(model, Fisher(), strength=2.0, form="kronecker", options=GuardOptions(space="weights"))
    saved.consolidate([inputs])
    state = saved.state_dict()
    damaged = {key: t * torch.nan if key.startswith("anchor/") else t for key, t in state["tensors"].items()}
    guard = Guard(model, Fisher(), strength=2.0, form="kronecker")
    guard.consolidate([inputs])
    moved(model)
    before = float(guard.penalty().detach())
    with pytest.raises(StateError):
        guard.load_state_dict(state | {"tensors": damaged})
    assert guard.options.space == "merged" and float(guard.penalty().detach()) == before > 0


def test_merged_weights_of_a_state_need_adapters_that_can_be_held_so():
    model, inputs = adapted()
    saved = Guard(model, Fisher(), form="kronecker")
    saved.consolidate([inputs])
    moved(model)
    plain = nn.Sequential(*(m.layer.requires_grad_(True) if isinstance(m, Adapted) else m for m in model))
    guard = Guard(plain, Fisher(), form="kronecker")
    with pytest.raises(StateError, match=r"space='merged'.*no protected adapter"):
        guard.load_state_dict(saved.state_dict())
    assert guard.options.space == "weights" and guard.tasks == 0


def test_adapters_that_come_after_the_guard_are_held_by_merged_weights_as_well():
    torch.manual_seed(0)
    model, inputs, layers = networks()["mlp"]
    guard = Guard(model, Fisher(), form="kronecker")
    told = Guard(model, Fisher(), form="kronecker", options=GuardOptions(space="weights"))
    assert guard.options.space == "weights"
    adapt(model, layers)
    for each in (guard, told):
        each.consolidate([inputs])
    assert (guard.options.space, told.options.space) == ("merged", "weights")
    assert list(guard.importance) == ["0.layer.weight", "2.layer.weight", "4.layer.weight"]


def test_adapters_that_are_taken_away_before_anything_is_held_leave_a_guard_of_weights():
    model, inputs = adapted()
    guard = Guard(model, Fisher(), form="kronecker")
    for name, module in list(model.named_children()):
        if isinstance(module, Adapted):
            setattr(model, name, module.layer.requires_grad_(True))
    guard.consolidate([inputs])
    assert guard.options.space == "weights" and "0.weight" in guard.importance


def test_what_is_held_stays_in_its_space_when_adapters_come_or_a_state_was_loaded():
    torch.manual_seed(0)
    model, inputs, layers = networks()["mlp"]
    guard = Guard(model, Fisher(), form="kronecker", protect=["*.bias", "4.*"])
    guard.consolidate([inputs])
    adapt(model, layers[:1])
    guard.refresh()
    assert guard.options.space == "weights"
    model, inputs = adapted()
    loaded = Guard(model, Fisher(), form="kronecker")
    loaded.load_state_dict(Guard(model, Fisher(), form="kronecker", options=GuardOptions(space="weights")).state_dict())
    loaded.consolidate([inputs])
    assert loaded.options.space == "weights"


def test_a_weight_that_is_tied_to_one_that_is_trained_is_trained_beside_its_adapter():
    model, _ = adapted()
    first = model[0].layer
    model.add_module("tied", nn.Linear(4, 5).double())
    model.tied.weight = first.weight
    first.weight.requires_grad_(True)
    tied_first = nn.Sequential(model.tied, *model[1:5])
    tied_first.add_module("adapted", model[0])
    with pytest.raises(anchorhold.errors.ConfigurationError, match=r"'adapted\.layer\.weight' is trained"):
        Guard(tied_first, Fisher(), form="kronecker", options=GuardOptions(space="merged"))
    assert Guard(tied_first, Fisher(), form="kronecker").options.space == "weights"


def test_a_guard_whose_adapters_are_gone_says_so():
    model, inputs = adapted()
    guard = Guard(model, Fisher(), form="kronecker")
    guard.consolidate([inputs])
    for name, module in list(model.named_children()):
        if isinstance(module, Adapted):
            setattr(model, name, module.layer)
    said = repr(guard)
    assert "as it is now, the model cannot be held" in said and "no protected adapter" in said


def test_strengths_of_factors_say_that_it_is_weights_that_are_held():
    model, _ = adapted()
    guard = Guard(model, Fisher(), form="kronecker")
    said = r"strength\['\*\.a'\] is of adapters' own parameters, such as '0\.a', .* such as '0\.layer\.weight'"
    with pytest.raises(anchorhold.errors.ConfigurationError, match=said):
        guard.strength = {"*.a": 2.0, "*": 1.0}
    with pytest.raises(anchorhold.errors.ConfigurationError, match="space='weights'"):
        Guard(model, Fisher(), strength={"*.b": 2.0, "*": 1.0}, form="kronecker", options=GuardOptions(space="merged"))


def mixed():
    """One adapter that can be held merged, and one of a convolution with groups."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(4, 4, 1, groups=2), nn.Flatten(), nn.Linear(4, 3))
    return get_peft_model(model, LoraConfig(r=2, target_modules=["0", "2"])).double()


@pytest.mark.filterwarnings("ignore:LoRA adapter added to ConvNd layer with groups")
def test_one_adapter_that_is_why_all_are_held_by_their_own_parameters_is_told_of_once():
    why = r"All 2 adapters .* since 1 cannot be held merged: 'base_model\.model\.0' \(Conv1d\)"
    with pytest.warns(anchorhold.AnchorholdWarning, match=why):
        guard = Guard(mixed(), Fisher(), form="rotated")
    assert guard.options.space == "weights"
    guard.attach(torch.optim.SGD(guard.parameters.values(), lr=0.1))  # and no more
    Guard(mixed(), Fisher(), form="rotated", options=GuardOptions(space="weights"))  # as was asked for
    Guard(mixed(), Fisher(), form="rotated", protect="*lora_*")
    assert Guard(mixed(), Fisher(), form="rotated", protect="*.2.*").options.space == "merged"


def test_strengths_of_merged_weights_say_what_to_give_where_those_are_not_held():
    message = r"adapters change, such as '0\.layer\.weight'.* Give options=GuardOptions\(space='merged'\)"
    with pytest.raises(ConfigurationError, match=message):
        Guard(adapted()[0], Fisher(), strength={"*layer.weight": 2.0})
