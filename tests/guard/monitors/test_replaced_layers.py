"""A layer that was put in the place of one that was consolidated is pulled to what that was, and this is told."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn

import anchorhold
from tests.guard.helpers import batch, net, train, weights
from tests.helpers import grouped

TOLD = r"has other parameters than those that were consolidated as '2\.weight', '2\.bias'.* pulled .*guard\.forget\(\)"


def after_a_task(model, **options):
    guard = anchorhold.Guard(model, options.pop("measure", anchorhold.Fisher()), strength=0.5, **grouped(**options))
    guard.consolidate([batch(9)])
    return guard


def go_on(model, guard, steps=2):
    """Train it as another task begins: with an optimizer of its own."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    guard.attach(optimizer)
    train(model, optimizer, steps)


def another(model):
    torch.manual_seed(7)
    return nn.Linear(model[2].in_features, model[2].out_features).double()


@pytest.mark.parametrize("options", [{}, {"form": "rotated"}, {"anchor": "mean", "form": "kronecker"}])
def test_a_layer_in_anothers_place_is_told_of_once(options):
    model = net()
    guard = after_a_task(model, **options)
    model[2] = another(model)
    with pytest.warns(anchorhold.AnchorholdWarning, match=TOLD) as told:
        go_on(model, guard)
    assert len(told) == 1
    guard.gradients.restart_task()
    go_on(model, guard)  # it is not told again


def test_it_is_told_where_the_layer_was_gone_for_a_while():
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    guard = after_a_task(model)
    head = another(model)
    del model[2]
    guard.refresh()
    model.append(head)
    with pytest.warns(anchorhold.AnchorholdWarning, match=TOLD):
        go_on(model, guard)


def test_a_layer_that_is_set_to_zero_is_told_of():
    model = net()
    guard = after_a_task(model)
    model[2].weight = nn.Parameter(torch.zeros_like(model[2].weight))
    with pytest.warns(anchorhold.AnchorholdWarning, match=r"as '2\.weight', .*'2\.weight' is 100 % away"):
        go_on(model, guard)


def forgotten(model, guard):
    model[2] = another(model)
    guard.forget("2.*")


def consolidated_again(model, guard):
    model[2] = another(model)
    guard.consolidate([batch(9)])


def without_strength(model, guard):
    model[2] = another(model)
    guard.strength = 0.0


def assigned(model, guard):
    model.load_state_dict(weights(model), assign=True)


def a_later_checkpoint(model, guard):
    model.load_state_dict({name: 1.2 * value for name, value in weights(model).items()}, assign=True)


def in_a_layer_like_it(model, guard):
    before, model[2] = model[2], another(model)
    model[2].load_state_dict(before.state_dict())


def converted(model, guard):
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        parameter = model[2].weight
        model.float().double()
        assert model[2].weight is not parameter
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)


def taken_over_by_a_state(model, guard):
    model[2] = another(model)
    guard.refresh()
    guard.load_state_dict(guard.state_dict())


@pytest.mark.parametrize(
    "what",
    [
        forgotten,
        consolidated_again,
        without_strength,
        assigned,
        a_later_checkpoint,
        in_a_layer_like_it,
        converted,
        taken_over_by_a_state,
    ],
)
def test_what_is_no_such_layer_is_passed_over(what):
    model = net()
    guard = after_a_task(model)
    what(model, guard)
    go_on(model, guard)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))])
def test_copies_are_of_the_same_layers(copied):
    model = net()
    guard = after_a_task(model)
    model, guard = copied((model, guard))
    go_on(model, guard)
    guard.consolidate([batch(9)])
    model, guard = copied((model, guard))
    model[2] = another(model)
    with pytest.warns(anchorhold.AnchorholdWarning, match=TOLD):
        go_on(model, guard)


def test_a_guard_that_is_loaded_into_a_new_model_tells_of_its_file_alone(tmp_path):
    model = net()
    after_a_task(model).save(tmp_path / "guard")
    fresh = net(seed=1)
    guard = anchorhold.Guard(fresh, anchorhold.Fisher(), strength=0.5)
    guard.load(tmp_path / "guard")
    with pytest.warns(anchorhold.AnchorholdWarning, match="was saved with") as told:
        go_on(fresh, guard)
    assert len(told) == 1
    fresh = net(seed=1)
    guard = anchorhold.Guard(fresh, anchorhold.Fisher(), strength=0.5)
    guard.load(tmp_path / "guard")
    fresh.load_state_dict(model.state_dict(), assign=True)
    go_on(fresh, guard)


def test_a_compiled_model_has_the_same_layers():
    model = net()
    guard = after_a_task(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    guard.attach(optimizer)
    train(torch.compile(model, backend="eager"), optimizer)


def test_layers_that_nothing_holds_are_passed_over():
    """One that was never trained has no importance along the path."""
    model = net()
    guard = anchorhold.Guard(model, anchorhold.SOS(), strength=0.5, from_scratch=True)
    optimizer = torch.optim.SGD(model[:2].parameters(), lr=0.1)
    with warnings.catch_warnings(action="ignore", category=anchorhold.AnchorholdWarning):
        guard.attach(optimizer)
    train(model, optimizer)
    guard.consolidate()
    model[2] = another(model)
    go_on(model, guard)


def test_a_mean_of_solutions_is_where_no_model_was():
    model = net()
    guard = after_a_task(model, anchor="mean")
    with torch.no_grad():
        model[2].weight.mul_(20)
    guard.consolidate([batch(9)])
    assigned(model, guard)
    go_on(model, guard)


def with_adapters(base):
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["0", "2"], init_lora_weights=False))


def test_a_layer_that_an_adapter_was_merged_into_is_the_same():
    model = net()
    guard = after_a_task(model)
    merged = with_adapters(model).merge_and_unload().requires_grad_(True)
    assert merged[2].weight is model[2].weight
    go_on(merged, guard)


@pytest.mark.parametrize("space", ["weights", "merged"])
def test_adapters_that_are_merged_for_a_while_are_the_same(space):
    model = with_adapters(net())
    guard = after_a_task(model, space=space)
    model.merge_adapter()
    model.unmerge_adapter()
    go_on(model, guard)


def test_another_adapter_of_the_same_name_is_told_of():
    model = with_adapters(net())
    guard = after_a_task(model, space="weights")
    config = model.peft_config["default"]
    model.delete_adapter("default")
    model.add_adapter("default", config)
    model.set_adapter("default")
    with pytest.warns(anchorhold.AnchorholdWarning, match=r"has other parameters .*lora_A\.default\.weight"):
        go_on(model, guard)


@pytest.mark.parametrize("attached", [False, True])
def test_it_is_told_once_to_those_who_add_the_penalty_to_their_loss(attached):
    """They take no step that the guard would hold, and perhaps none that it sees."""
    model = net()
    guard = after_a_task(model)
    model[2] = another(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    if attached:
        guard.attach(optimizer, hold=False)

    def by_hand():
        optimizer.zero_grad()
        guard.penalty().backward()
        optimizer.step()

    with pytest.warns(anchorhold.AnchorholdWarning, match=TOLD):
        by_hand()
    by_hand()  # it is not told again
    guard.consolidate([batch(9)])
    model[2] = another(model)
    for parameter in model[2].parameters():
        parameter.data.neg_()
    with pytest.warns(anchorhold.AnchorholdWarning, match=TOLD):
        guard.penalty()


def test_the_penalty_tells_nothing_of_copies_and_of_calls_with_other_numbers():
    model = net()
    guard = after_a_task(model)
    model[2] = copy.deepcopy(model[2])
    guard.penalty()
    call = Penalised(model, guard)
    others = {name: 2 * p.detach() for name, p in call.named_parameters()}
    doubled = torch.func.functional_call(call, others, ())
    torch.testing.assert_close(doubled, guard.penalty() + penalty_at(guard, 2))


class Penalised(nn.Module):
    def __init__(self, model, guard):
        super().__init__()
        self.model = model
        self.guard = guard

    def forward(self):
        return self.guard.penalty()


def penalty_at(guard, factor):
    anchor, importance = guard.anchor, guard.importance
    return 0.5 * sum((importance[n] * ((factor - 1) * anchor[n]).square()).sum() for n in anchor)


def test_a_small_head_that_is_another_than_a_files_is_told_of(tmp_path):
    """Beside a large model it is nothing: all weights together are where they were."""
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    model[0].weight.data.mul_(1000)
    after_a_task(model).save(tmp_path / "guard.safetensors")
    model[2] = another(model)
    guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=0.5)
    guard.load(tmp_path / "guard.safetensors")
    with pytest.warns(anchorhold.AnchorholdWarning, match=TOLD) as told:
        go_on(model, guard)
    assert len(told) == 1
