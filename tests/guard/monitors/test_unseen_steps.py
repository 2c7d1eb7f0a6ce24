"""Training that goes past the guard is told after its first steps; training that goes through it never is."""

import copy
import pickle
import warnings

import pytest
import torch
from lomo_optim import Lomo

import anchorhold
from anchorhold.guard.monitors import unseen_steps
from tests import helpers
from tests.guard.helpers import batch, loss, net, train, weights
from tests.guard.sam import SAM

IN_BACKWARD = "move from one backward pass to the next, and no step of an attached optimizer has moved them"


def guarded(model, strength=1.0, measure=None):
    return helpers.guarded(model, [batch(9)], measure or anchorhold.Fisher(), strength)


def lomo_weights(strength):
    model = net(dtype=torch.float32)
    guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=strength)
    guard.consolidate([batch(9, dtype=torch.float32)])
    optimizer = Lomo(model, lr=0.1)
    guard.attach(optimizer)
    for i in range(unseen_steps.MOVES + 1):
        optimizer.fused_backward(loss(model, batch(i, dtype=torch.float32)), 0.1)
    return weights(model)


def test_an_optimizer_that_steps_within_backward_is_told():
    with pytest.warns(anchorhold.AnchorholdWarning, match=IN_BACKWARD):
        held = lomo_weights(1e6)
    with pytest.warns(anchorhold.AnchorholdWarning, match=IN_BACKWARD):
        free = lomo_weights(0.0)
    assert all(torch.equal(held[name], free[name]) for name in free)  # which is why


def test_optimizers_of_single_parameters_that_step_within_backward_are_seen_where_all_are_attached():
    def ended(within_backward):
        model = net()
        guard = guarded(model, strength=50.0)
        if not within_backward:
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            guard.attach(optimizer)
            train(model, optimizer, steps=5)
            return weights(model), guard.gradients.path.steps
        optimizers = {p: torch.optim.AdamW([p], lr=0.01) for p in model.parameters()}
        guard.attach(*optimizers.values())

        def step(parameter):
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in optimizers:
            parameter.register_post_accumulate_grad_hook(step)
        for i in range(5):
            loss(model, batch(i)).backward()
        return weights(model), guard.gradients.path.steps

    (found, steps), (expected, counted) = ended(within_backward=True), ended(within_backward=False)
    assert steps == counted == 5
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def as_zero_has_them(model, optimizer):
    """Do to an optimizer what DeepSpeed's ZeRO 1 does to one that it is given: a flat copy in place of parameters."""
    parameters = list(model.parameters())
    flat = torch.cat([p.detach().flatten() for p in parameters]).requires_grad_()
    for parameter in parameters:
        parameter._hp_mapping = None
    optimizer.param_groups[0]["params"] = [flat]
    flat.grad = torch.ones_like(flat)


def test_deepspeeds_flat_copies_are_refused_or_told():
    model = net()
    guard = guarded(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    as_zero_has_them(model, optimizer)
    with pytest.raises(
        anchorhold.errors.OptimizerError, match=r"DeepSpeed's ZeRO.*engine.backward\(loss \+ guard.penalty\(\)\)"
    ):
        optimizer.step()
    guard.detach()
    guard.consolidate([batch(7)])
    with pytest.warns(anchorhold.AnchorholdWarning, match=r"takes a step on what is protected.*DeepSpeed's ZeRO"):
        optimizer.step()
    guard.consolidate([batch(8)])
    (loss(model, batch(0)) + guard.penalty()).backward()  # as the message says
    optimizer.step()


def test_deepspeeds_empty_parameters_are_refused():
    model = net()
    guard = guarded(model)
    for number, parameter in enumerate(model.parameters()):
        parameter.ds_id, parameter.ds_shape = number, parameter.shape
        parameter.data = torch.empty(0, dtype=parameter.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    asked = [
        guard.penalty, lambda: guard.attach(optimizer), lambda: guard.consolidate([batch(9)]), lambda: guarded(model),
    ]  # fmt: skip
    for ask in asked:
        with pytest.raises(anchorhold.errors.ModelError, match=r"partitioned by DeepSpeed's ZeRO 3.*Use ZeRO 1 or 2"):
            ask()
    assert guard.tasks == 1


def test_one_whose_step_does_nothing_is_told_too():
    """As a Trainer has it, which calls step() whatever has happened within backward()."""

    class InBackward(torch.optim.SGD):
        def step(self, closure=None):
            pass

    model = net()
    guard = guarded(model)
    optimizer = InBackward(model.parameters(), lr=0.1)
    guard.attach(optimizer)

    def update(parameter):
        parameter.data.sub_(parameter.grad, alpha=0.1)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    with pytest.warns(anchorhold.AnchorholdWarning, match=IN_BACKWARD):
        train(model, optimizer, steps=unseen_steps.MOVES + 1)


def test_weights_moved_by_hand_are_told():
    model = net()
    guard = guarded(model)
    guard.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.warns(anchorhold.AnchorholdWarning, match=IN_BACKWARD):
        by_hand_with(model, unseen_steps.MOVES + 1)


def test_weights_that_are_moved_for_a_while_and_back_are_not():
    """As for adversarial weights: several backward passes elsewhere before a step that is seen."""
    model = net()
    guard = guarded(model)
    guard.attach(optimizer := torch.optim.SGD(model.parameters(), lr=0.01))
    for i in range(3):
        kept = weights(model)
        for _ in range(5):
            loss(model, batch(i)).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(parameter.grad, alpha=0.01)
        model.load_state_dict(kept)
        optimizer.step()
        optimizer.zero_grad()


def test_every_task_is_looked_at():
    model = net()
    guard = guarded(model)
    guard.attach(optimizer := torch.optim.SGD(model.parameters(), lr=0.01))
    train(model, optimizer)
    guard.consolidate([batch(0)])
    with pytest.warns(anchorhold.AnchorholdWarning, match=IN_BACKWARD):
        by_hand_with(model, unseen_steps.MOVES + 1)


def by_hand_with(model, steps):
    for i in range(steps):
        loss(model, batch(i)).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad, alpha=0.1)
                parameter.grad = None


def test_a_step_that_raised_is_over():
    model = net()
    guard = guarded(model)
    guard.attach(optimizer := torch.optim.SGD(model.parameters(), lr=0.01))
    loss(model, batch(0)).backward()
    model[0].weight.grad[0, 0] = torch.nan
    with pytest.raises(anchorhold.errors.NotFiniteError):
        optimizer.step()
    with pytest.warns(anchorhold.AnchorholdWarning, match="is not attached"):
        train(model, torch.optim.AdamW(model.parameters()))


def test_an_optimizer_of_several_that_are_attached_is_not_told_of():
    class Both(torch.optim.Optimizer):
        def __init__(self, *parts):
            super().__init__([p for part in parts for group in part.param_groups for p in group["params"]], {})
            self.parts = parts

        def step(self, closure=None):
            for part in self.parts:
                part.step()

    model = net()
    guard = guarded(model)
    parts = [torch.optim.SGD(model[i].parameters(), lr=0.01) for i in (0, 2)]
    guard.attach(*parts)
    train(model, Both(*parts))


def test_an_optimizer_that_was_never_attached_is_told_once():
    model = net()
    guard = guarded(model)
    guard.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.warns(anchorhold.AnchorholdWarning, match=r"This AdamW takes a step on '0.bias' and 3 other") as told:
        train(model, torch.optim.AdamW(model.parameters()))
    assert len(told) == 1
    assert told[0].filename.endswith("helpers.py")  # the line that called step()


def test_a_guard_that_was_never_attached_is_told_of():
    model = net()
    guard = guarded(model)
    with pytest.warns(
        anchorhold.AnchorholdWarning, match="the guard that has consolidated them is attached to no optimizer"
    ):
        train(model, torch.optim.AdamW(model.parameters()))
    assert guard.tasks == 1


def test_one_that_was_loaded_and_never_attached_is_told_of(tmp_path):
    guarded(net()).save(tmp_path / "guard")
    model = net()
    again = anchorhold.Guard(model, anchorhold.Fisher())
    again.load(tmp_path / "guard")
    with pytest.warns(anchorhold.AnchorholdWarning, match="attached to no optimizer"):
        train(model, torch.optim.AdamW(model.parameters()))


def test_a_closure_that_raises_ends_the_step():
    model = net()
    guard = guarded(model)
    guard.attach(optimizer := torch.optim.SGD(model.parameters(), lr=0.01))

    def closure():
        raise KeyError

    with pytest.raises(KeyError):
        optimizer.step(closure)
    with pytest.warns(anchorhold.AnchorholdWarning, match="is not attached"):
        train(model, torch.optim.AdamW(model.parameters()))


def test_one_whose_penalty_is_part_of_the_loss_needs_no_optimizer():
    model = net()
    guard = guarded(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for i in range(3):
        optimizer.zero_grad()
        (loss(model, batch(i)) + guard.penalty()).backward()
        optimizer.step()


def test_a_penalty_that_acts_twice_is_told():
    model = net()
    guard = guarded(model)
    guard.attach(optimizer := torch.optim.AdamW(model.parameters()))
    guard.penalty().item()  # for a log
    total = loss(model, batch(0)) + guard.penalty()
    with pytest.warns(anchorhold.AnchorholdWarning, match="it acts twice"):
        total.backward()
    (loss(model, batch(0)) + guard.penalty()).backward()  # it has been told
    guard = guarded(model)
    guard.attach(optimizer := torch.optim.AdamW(model.parameters()))
    guard.attach(optimizer, hold=False)
    (loss(model, batch(0)) + guard.penalty()).backward()


def test_a_guard_that_was_detached_looks_no_more():
    model = net()
    guard = guarded(model)
    guard.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    guard.detach()
    train(model, torch.optim.AdamW(model.parameters()))
    assert not any(parameter._backward_hooks for parameter in model.parameters())


def test_sam_in_two_steps_with_the_wrapper_attached_is_told():
    model = net()
    guard = guarded(model)
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1)
    guard.attach(optimizer)
    told = r"attached SAM lets it do so outside its own step\(\).*attach the SGD"
    with pytest.warns(anchorhold.AnchorholdWarning, match=told):
        sam_in_two_steps(model, optimizer)


def test_sam_in_two_steps_with_its_base_attached_is_held():
    moved = {}
    for strength in (0.0, 0.3):
        model = net()
        guard = guarded(model, strength, anchorhold.L2())
        before = weights(model)
        optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1)
        guard.attach(optimizer.base_optimizer)
        sam_in_two_steps(model, optimizer, steps=20)
        moved[strength] = sum(float((p - before[name]).square().sum()) for name, p in weights(model).items())
    assert 0 < moved[0.3] < 0.5 * moved[0.0]


def test_sam_by_its_closure_with_its_base_attached_is_not_told_of():
    model = net()
    guard = guarded(model)
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.01)
    guard.attach(optimizer.base_optimizer)

    def closure():
        optimizer.zero_grad()
        value = loss(model, batch(0))
        value.backward()
        return value

    for _ in range(3):
        closure()
        optimizer.step(closure)
    assert guard.gradients.path.steps == 3


def sam_in_two_steps(model, optimizer, steps=3):
    for i in range(steps):
        loss(model, batch(i)).backward()
        optimizer.first_step()
        loss(model, batch(i)).backward()
        optimizer.second_step()


def test_a_copy_of_model_and_optimizer_is_told():
    model = net()
    guard = guarded(model)
    optimizer = torch.optim.Adam(model.parameters())
    guard.attach(optimizer)
    copied, its_optimizer = copy.deepcopy((model, optimizer))
    with pytest.warns(anchorhold.AnchorholdWarning, match="is a copy of one that a guard is attached to"):
        train(copied, its_optimizer)


def test_all_three_copied_together_are_held():
    model = net()
    guard = guarded(model)
    optimizer = torch.optim.Adam(model.parameters())
    guard.attach(optimizer)
    with pytest.warns(anchorhold.AnchorholdWarning, match="attached to nothing"):
        copied, its_optimizer, its_guard = copy.deepcopy((model, optimizer, guard))
    its_guard.attach(its_optimizer)
    train(copied, its_optimizer)
    assert its_guard.gradients.path.steps == 3


def test_other_models_of_the_same_shape_are_nobodys_business():
    model, twin = net(), net()
    guard = guarded(model)
    guard.attach(torch.optim.Adam(model.parameters()))
    train(twin, torch.optim.Adam(twin.parameters()))
    other = copy.deepcopy(model)
    train(other, torch.optim.Adam(other.parameters()))


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam, torch.optim.LBFGS])
def test_ordinary_training_is_not_told_and_soon_not_looked_at(make):
    model = net()
    guard = guarded(model, 0.1)
    optimizer = make(model.parameters(), lr=0.01)
    guard.attach(optimizer)
    for i in range(3):
        for part in range(2):  # accumulated
            (loss(model, batch(2 * i + part)) / 2).backward()

        def closure(i=i):
            optimizer.zero_grad()
            value = loss(model, batch(i))
            value.backward()
            return value

        optimizer.step(closure) if make is torch.optim.LBFGS else optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.clamp_(-0.5, 0.5)  # as some networks have it after each step
    assert not any(parameter._backward_hooks for parameter in model.parameters())


def test_nothing_is_looked_at_for_ever():
    model = net()
    guard = guarded(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    guard.attach(optimizer)
    train(model, optimizer, steps=unseen_steps.PATIENCE - 1)
    assert any(parameter._backward_hooks for parameter in model.parameters())
    train(model, optimizer, steps=1)
    assert not any(parameter._backward_hooks for parameter in model.parameters())


def test_models_travel_without_what_looks_at_them():
    model = net()
    guard = guarded(model)
    guard.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = pickle.loads(pickle.dumps(model))
        copied = copy.deepcopy(model)
    assert not any(parameter._backward_hooks for other in (again, copied) for parameter in other.parameters())


def test_a_guard_that_is_gone_leaves_no_look_behind():
    model = net()
    guard = guarded(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    known = len(unseen_steps._watching)
    optimizer = None
    del guard
    assert len(unseen_steps._watching) < known
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize("measure", ["SI", "SOS"])
def test_steps_without_a_gradient_are_told(measure):
    class Trials(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure=None):
            for p in self.param_groups[0]["params"]:
                p.add_(0.1)

    model = net()
    guard = anchorhold.Guard(model, measure, from_scratch=True)
    optimizer = Trials(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    with pytest.warns(anchorhold.AnchorholdWarning, match="no protected parameter had a gradient"):
        optimizer.step()
    watching = anchorhold.Guard(net(), anchorhold.Fisher())  # needs none
    watching.attach(other := Trials(watching.parameters.values(), lr=0.1))
    other.step()
