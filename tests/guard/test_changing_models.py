"""Models that grow, freeze, thaw and move while they are protected."""

import pytest
import torch
from torch import nn

import anchorhold
from tests.guard.helpers import batch, consolidated, loss, net, train, weights


def test_a_head_that_is_added_later_is_taken_in():
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh()).double()
    model.add_module("head_a", nn.Linear(5, 3).double())
    guard = anchorhold.Guard(model, anchorhold.SI(), strength=1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    train(model, optimizer)
    guard.consolidate()
    model.add_module("head_b", nn.Linear(3, 3).double())
    optimizer.add_param_group({"params": model.head_b.parameters()})
    assert "head_b.weight" not in guard.parameters
    train(model, optimizer)
    assert "head_b.weight" in guard.parameters
    assert "head_b.weight" not in guard.anchor
    found = guard.consolidate()["SI"]
    assert float(found.importance["head_b.weight"].max()) > 0
    assert torch.equal(guard.anchor["head_b.weight"], model.head_b.weight)


@pytest.mark.parametrize("implicit", [False, None])
def test_a_parameter_that_is_frozen_stays_held_and_is_still_measured_from_data(implicit):
    model = net()
    guard = anchorhold.Guard(
        model, anchorhold.Fisher(), strength=1.0, watch=["SOS"], options=anchorhold.GuardOptions(implicit=implicit)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    train(model, optimizer)
    guard.consolidate([batch(0)])
    first = {name: value.clone() for name, value in guard.importance.items()}
    model[0].requires_grad_(False)
    before = weights(model)
    train(model, optimizer)
    assert torch.equal(model[0].weight, before["0.weight"])
    found = guard.consolidate([batch(0)])
    assert bool((guard.importance["0.weight"] > first["0.weight"]).all())
    assert float(found["SOS"].importance["0.weight"].max()) == 0
    assert not model[0].weight.requires_grad
    model[0].requires_grad_(True)
    with torch.no_grad():
        model[0].weight.add_(1.0)
    optimizer.zero_grad()
    (0 * loss(model, batch(0))).backward()
    optimizer.step()
    moved = before["0.weight"] + 1.0 - model[0].weight
    pull = 0.1 * 2 * guard.importance["0.weight"]
    torch.testing.assert_close(moved, pull / (1 + pull) if guard.options.implicit else pull)


def test_a_parameter_that_is_unfrozen_is_taken_in():
    model = net()
    model[0].requires_grad_(False)
    guard = anchorhold.Guard(model, anchorhold.SOS())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    train(model, optimizer)
    assert set(guard.consolidate()["SOS"].importance) == {"2.weight", "2.bias"}
    model[0].requires_grad_(True)
    with pytest.warns(anchorhold.AnchorholdWarning, match=r"Frozen until .*'0.weight' and 1 other .* is not known"):
        train(model, optimizer)
    assert set(guard.consolidate()["SOS"].importance) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    train(model, optimizer)  # now they have one


def test_a_parameter_that_changed_its_shape_is_refused_until_forgotten():
    model = net()
    guard = anchorhold.Guard(model, anchorhold.Fisher())
    guard.consolidate([batch(0)])
    kept = {name: value.clone() for name, value in guard.importance.items()}
    model[2] = nn.Linear(5, 7).double()
    with pytest.raises(anchorhold.errors.ProtectError, match=r"'2.weight' was consolidated with shape \(3, 5\)"):
        guard.consolidate([batch(0)])
    assert all(torch.equal(guard.importance[name], value) for name, value in kept.items())
    guard.forget("2.weight", "2.bias")
    guard.consolidate([batch(1)])
    assert guard.importance["2.weight"].shape == (7, 5)
    with pytest.raises(anchorhold.errors.ProtectError, match="not a protected parameter"):
        guard.forget("nowhere")


def test_tied_weights_are_measured_and_held_as_one():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 4, bias=False)
            self.second = nn.Linear(4, 4, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(self.first(x).tanh())

    torch.manual_seed(0)
    model = Tied().double()
    guard = anchorhold.Guard(model, anchorhold.SI(), strength=0.5, watch=["EWC"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    gradient = torch.autograd.grad(loss(model, batch(0)), model.first.weight)[0]
    before = model.first.weight.detach().clone()
    loss(model, batch(0)).backward()
    optimizer.step()
    found = guard.consolidate([batch(0)])
    assert set(found["SI"].raw) == {"first.weight"}
    torch.testing.assert_close(found["SI"].raw["first.weight"], -gradient * (model.first.weight - before))
    with torch.no_grad():
        model.first.weight.add_(1.0)
    torch.testing.assert_close(guard.penalty().detach(), 0.5 * guard.importance["first.weight"].sum())


@pytest.mark.parametrize("implicit", [False, None])
def test_a_module_that_is_replaced_by_one_of_the_same_shape_is_followed(implicit):
    model = net()
    guard = anchorhold.Guard(model, anchorhold.L2(), strength=0.5, options=anchorhold.GuardOptions(implicit=implicit))
    guard.consolidate()
    model[0] = nn.Linear(4, 5).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    before = model[0].weight.detach().clone()
    (0 * loss(model, batch(0))).backward()
    with pytest.warns(anchorhold.AnchorholdWarning, match="has other parameters than those that were consolidated"):
        optimizer.step()
    pulled = 0.1 / 1.1 if guard.options.implicit else 0.1
    torch.testing.assert_close(model[0].weight, before - pulled * (before - guard.anchor["0.weight"]))


def test_the_penalty_is_of_the_layers_that_the_model_has_now():
    """Whoever adds it to a loss takes no step at which the guard would look at the model again."""
    model = net()
    guard = anchorhold.Guard(model, anchorhold.L2(), strength=0.5)
    guard.consolidate()
    model[2] = nn.Linear(5, 3).double()
    with pytest.warns(anchorhold.AnchorholdWarning, match="has other parameters than those that were consolidated"):
        value = guard.penalty()
    away = [(p - guard.anchor[name]).square().sum() for name, p in model.named_parameters()]
    torch.testing.assert_close(value, 0.5 * sum(away))
    value.backward()
    assert float(model[2].weight.grad.abs().sum()) > 0
    del model[2]
    with pytest.warns(
        anchorhold.AnchorholdWarning, match=r"no longer has '2\.weight' and 1 other protected parameter "
    ):
        assert float(guard.penalty().detach()) == 0
    del model[0]
    with pytest.warns(
        anchorhold.AnchorholdWarning, match=r"no longer has '0\.weight' and 1 other protected parameter "
    ):
        assert float(guard.penalty().detach()) == 0
    assert float(guard.penalty().detach()) == 0  # it is not told again
    guard.refresh()
    assert float(guard.penalty().detach()) == 0


def test_what_is_gone_is_told_of_once_in_a_task_and_another_in_its_place_too():
    model = net()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=0.5)
    guard.consolidate([batch(0)])
    del model[2]
    with pytest.warns(anchorhold.AnchorholdWarning, match=r"no longer has '2\.weight'"):
        guard.penalty()
    model.append(nn.Linear(5, 3).double())
    with pytest.warns(anchorhold.AnchorholdWarning, match="has other parameters than those that were consolidated"):
        guard.penalty()
    del model[2]
    with pytest.warns(anchorhold.AnchorholdWarning, match=r"no longer has '2\.weight'"):
        guard.penalty()
    guard.attach(optimizer := torch.optim.SGD(model.parameters(), lr=0.1))  # a warning would be an error here
    model(batch(0)[0]).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("in_place", [False, True])
def test_the_penalty_refuses_a_layer_of_another_shape(in_place):
    """It was of the old layer, in silence, or failed at some sum."""
    model = net()
    guard = anchorhold.Guard(model, anchorhold.L2(), strength=0.5)
    guard.consolidate()
    wide = nn.Linear(5, 4).double()
    if in_place:  # as transformers' resize_token_embeddings does
        model[2].weight.data, model[2].bias.data = wide.weight.data, wide.bias.data
    else:
        model[2] = wide
    with pytest.raises(
        anchorhold.errors.ProtectError, match=r"'2\.weight' was consolidated with shape \(3, 5\) and now has"
    ):
        guard.penalty()
    guard.forget("2.*")
    assert float(guard.penalty().detach()) == 0


def test_a_module_that_is_replaced_by_one_of_another_shape_within_its_first_task_starts_anew():
    model = net()
    guard = anchorhold.Guard(model, anchorhold.SI(), watch=["SOS"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    train(model, optimizer)
    model[2] = nn.Linear(5, 7).double()
    fresh = model[2].weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    train(model, optimizer)
    assert torch.equal(guard.gradients.path.start["2.weight"], fresh)
    assert guard.gradients.path.running["SI"]["path"]["2.weight"].shape == (7, 5)
    assert guard.gradients.path.steps == 6
    guard.consolidate()
    assert guard.importance["2.weight"].shape == (7, 5)


def importance_after(protect, measure, train_task):
    """What a measure finds for a task with this ``protect``."""
    model = net()
    guard = anchorhold.Guard(model, measure, protect=protect)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    guard.attach(optimizer)
    train_task(model, optimizer, guard)
    return guard.consolidate()[measure.name].importance


def unfreezing(model, optimizer, guard):
    """The first layer is trained from the third step on."""
    for i in range(5):
        model[0].requires_grad_(i >= 2)
        train(model, optimizer, steps=1, seed=i)


def freezing(model, optimizer, guard):
    """The first layer is trained for two steps only."""
    for i in range(5):
        model[0].requires_grad_(i < 2)
        train(model, optimizer, steps=1, seed=i)


def taking_turns(model, optimizer, guard):
    for i in range(6):
        for turn, layer in enumerate((model[0], model[2])):
            layer.requires_grad_(turn == i % 2)
        train(model, optimizer, steps=1, seed=i)


@pytest.mark.parametrize("task", [unfreezing, freezing, taking_turns])
@pytest.mark.parametrize("measure", [anchorhold.SI(), anchorhold.SOS()], ids=lambda measure: measure.name)
def test_what_is_frozen_for_a_part_of_a_task_is_measured_as_if_it_had_been_named(measure, task):
    """The default is a selection of what can be trained; when it is asked must not matter."""
    named, found = (importance_after(protect, measure, task) for protect in ("*", None))
    assert float(found["0.weight"].max()) > 0
    assert found.keys() == named.keys()
    for name, omega in named.items():
        assert torch.equal(found[name], omega)


def test_an_independent_gradient_is_taken_of_what_was_just_unfrozen():
    def task(model, optimizer, guard):
        for i in range(4):
            model[0].requires_grad_(i >= 2)
            optimizer.zero_grad()
            guard.gradients.observe(loss(model, batch(20 + i)))
            guard.gradients.independent(loss(model, batch(10 + i)))
            loss(model, batch(i)).backward()
            optimizer.step()

    named, found = (importance_after(protect, anchorhold.SIB(), task) for protect in ("*", None))
    assert float(found["0.weight"].max()) > 0
    for name, omega in named.items():
        assert torch.equal(found[name], omega)


def test_steps_while_frozen_are_none():
    """So the average over steps is one over those that a parameter took."""

    def task(model, optimizer, guard):
        model[0].requires_grad_(False)
        train(model, optimizer, steps=2)
        model[0].requires_grad_(True)
        train(model, optimizer, steps=1)
        gradients.append(model[0].weight.grad.clone())
        assert guard.state_dict()["steps"]["0.weight"] == 1

    gradients = []
    found = importance_after(None, anchorhold.SOS(), task)
    torch.testing.assert_close(found["0.weight"], gradients[0].abs())  # the root of one square, bias-corrected


def test_a_task_in_which_a_frozen_layer_took_part_goes_on_from_its_state(tmp_path):
    model = net()
    guard = anchorhold.Guard(model, anchorhold.SOS())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    freezing(model, optimizer, guard)
    guard.save(tmp_path / "guard.safetensors")
    again = anchorhold.Guard(model, anchorhold.SOS())
    assert "0.weight" not in again.parameters
    again.load(tmp_path / "guard.safetensors")
    expected, found = guard.consolidate()["SOS"].importance, again.consolidate()["SOS"].importance
    assert found.keys() == expected.keys() == set(weights(model))
    for name, omega in expected.items():
        assert torch.equal(found[name], omega)


def test_an_optimizer_of_frozen_parameters_may_come_with_others():
    model = net()
    model[0].requires_grad_(False)
    guard = anchorhold.Guard(model, anchorhold.SOS())
    body, head = (torch.optim.SGD(model[i].parameters(), lr=0.1) for i in (0, 2))
    with pytest.raises(anchorhold.errors.OptimizerError, match="owns none of the 2 protected parameters"):
        guard.attach(body)
    guard.attach(body, head)
    train(model, head, steps=1)
    model[0].requires_grad_(True)
    train(model, body, steps=1)
    assert float(guard.consolidate()["SOS"].importance["0.weight"].max()) > 0


def test_what_waits_for_its_turn_is_no_oversight(recwarn):
    """Heads have optimizers of their own, each at rest in all tasks but one; a body is frozen while a head warms up."""
    model = net()
    guard = anchorhold.Guard(model, anchorhold.SOS(), from_scratch=True)
    body, head = (torch.optim.SGD(model[i].parameters(), lr=0.1) for i in (0, 2))
    guard.attach(body, head)
    train(model, head)
    guard.consolidate()
    model[0].requires_grad_(False)
    guard.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    assert not recwarn


def test_lazy_layers_are_refused_until_a_batch_has_run_through_them():
    model = nn.Sequential(nn.LazyLinear(5), nn.Tanh(), nn.LazyLinear(3)).double()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=1.0, from_scratch=True)
    optimizer = torch.optim.Adam(model.parameters())
    calls = {
        "attach": lambda: guard.attach(optimizer),
        "consolidate": lambda: guard.consolidate([batch(0)]),
        "rehearse": lambda: guard.rehearse([batch(0)]),
    }
    for name, call in calls.items():
        told = rf"{name}\(\) of a model with lazy.*'0\.weight' and 3 more are not initialised.*Run one batch"
        with pytest.raises(anchorhold.errors.OrderError, match=told):
            call()
    model(batch(0)[0])
    for call in calls.values():
        call()
    train(model, optimizer)
    assert guard.gradients.path.steps == 3


def test_weights_without_values_are_refused_until_they_are_loaded():
    model, loaded = net(), net()
    model[2].to("meta")
    guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=1.0)
    for call in (guard.consolidate, guard.rehearse):
        with pytest.raises(anchorhold.errors.OrderError, match=r"\(\).*'2.weight' on the device 'meta'.*Load all"):
            call([batch(0)])
    model.load_state_dict(loaded.state_dict(), assign=True)
    guard.consolidate([batch(0)])


def test_those_that_are_not_protected_are_nobodys_affair():
    model = nn.Sequential(nn.LazyLinear(5), nn.Tanh(), nn.Linear(5, 3)).double()
    guard = anchorhold.Guard(model, anchorhold.SOS(), strength=1.0, protect="2.*", from_scratch=True)
    guard.attach(optimizer := torch.optim.Adam(model.parameters()))
    train(model, optimizer)


def test_a_warning_that_is_an_error_leaves_nothing_attached():
    model = net()
    guard = anchorhold.Guard(model, anchorhold.SOS())
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with pytest.raises(anchorhold.AnchorholdWarning, match="No attached optimizer trains"):
        guard.attach(optimizer)
    before = model[0].weight.clone()
    train(model, optimizer, steps=1)
    assert not torch.equal(model[0].weight, before) and not guard.gradients.path.steps


def test_a_guard_whose_parameters_are_all_frozen_says_that_it_holds_nothing():
    """As a guard of a base model does, when an adapter is trained on top of it."""
    model = net()
    guard = anchorhold.Guard(model, anchorhold.L2(), strength=1e4)
    guard.consolidate()
    model.requires_grad_(False)
    model.add_module("adapter", nn.Linear(3, 3).double())
    optimizer = torch.optim.SGD(model.adapter.parameters(), lr=0.1)
    with pytest.warns(
        anchorhold.AnchorholdWarning, match=r"than the 4 consolidated ones.*holds nothing back.*form='kronecker'"
    ):
        guard.attach(optimizer)
    guard.attach(optimizer, hold=False)  # which never held
    guard.strength = 0.0
    guard.attach(optimizer)


def test_a_layer_that_has_another_name_now_is_told():
    model = net()
    guard = anchorhold.Guard(model, anchorhold.L2())
    guard.consolidate()
    model[0] = nn.Sequential(model[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(
        anchorhold.AnchorholdWarning, match="no longer has '0.weight' and 1 other protected parameter under"
    ):
        guard.attach(optimizer)
    guard.forget("0.weight", "0.bias")
    guard.attach(optimizer)


@pytest.mark.parametrize("measure", ["SOS", "EWC"])
def test_a_model_that_is_frozen_as_a_whole_at_the_end_of_a_task_is_consolidated(measure):
    torch.manual_seed(0)
    model, x = nn.Linear(3, 2), torch.randn(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = anchorhold.Guard(model, measure, strength=1.0)
    guard.attach(optimizer)
    model(x).square().mean().backward()
    optimizer.step()
    model.requires_grad_(False)
    guard.consolidate([x])
    assert guard.anchor.keys() == {"weight", "bias"}
    guard.refresh()
    guard.load_state_dict(guard.state_dict())
    with pytest.raises(anchorhold.errors.ProtectError, match="No parameter of the model is trainable"):
        anchorhold.Guard(model, measure, strength=1.0)


def test_forgetting_a_name_that_is_not_there_forgets_none():
    model = nn.Linear(3, 2)
    guard = anchorhold.Guard(model, "L2", strength=1.0)
    guard.consolidate()
    with pytest.raises(
        anchorhold.errors.ProtectError, match="'wieght' is not a protected parameter, so nothing was forgotten"
    ):
        guard.forget("weight", "wieght")
    assert guard.anchor.keys() == {"weight", "bias"}


def test_parameters_are_forgotten_by_the_patterns_that_protect_takes():
    guard = consolidated(net())
    guard.forget("2.*")
    assert guard.anchor.keys() == guard.importance.keys() == {"0.weight", "0.bias"}
    guard.forget("*.weight", "0.weight")
    assert guard.anchor.keys() == guard.importance.keys() == {"0.bias"}


def test_a_pattern_that_matches_nothing_forgets_nothing_and_says_what_would():
    guard = consolidated(net())
    with pytest.raises(anchorhold.errors.ProtectError, match=r"'3\.\*' matches no protected parameter, so nothing was"):
        guard.forget("2.*", "3.*")
    with pytest.raises(anchorhold.errors.ProtectError, match=r"'2' is not a protected parameter.*Did you mean '2\.\*'"):
        guard.forget("2")
    assert guard.anchor.keys() == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_a_name_with_brackets_is_forgotten_by_itself():
    model = nn.ParameterDict({"a[b]": nn.Parameter(torch.ones(2)), "ab": nn.Parameter(torch.ones(2))})
    guard = anchorhold.Guard(model, "L2", strength=1.0)
    guard.consolidate()
    guard.forget("a[b]")
    assert guard.anchor.keys() == {"ab"}


def test_names_that_are_given_as_a_list_are_refused_with_how_to_give_them():
    guard = consolidated(net())
    with pytest.raises(
        anchorhold.errors.ProtectError, match=r"forget\(\['2.weight'\]\): expected names or patterns, one after"
    ):
        guard.forget(["2.weight"])
    assert "2.weight" in guard.importance
