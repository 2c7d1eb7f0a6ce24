"""A hold that acts every k steps, for all of them at once: against its formula, a saved state, and what is refused."""

import copy
import json
import warnings

import pytest
import torch
from torch import nn
from torch.distributed import checkpoint

import anchorhold
from anchorhold import GuardOptions
from anchorhold.errors import (
    AnchorholdWarning,
    ConfigurationError,
    NotFiniteError,
    OptimizerError,
    OrderError,
    StateError,
)
from tests.guard.helpers import batch, consolidated, loss, net, train, weights
from tests.guard.test_implicit import dense

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable or uninitialized")

C = 0.7
FORMS = ("diagonal", "rotated", "kronecker", "lowrank", "dense")
KINDS = {
    "SGD": (lambda p: torch.optim.SGD(p, lr=0.1), 0.1),
    "momentum": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.4), 0.6),
    "Nesterov": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.75, nesterov=True), 0.4),
}


def held(model, every, form="rotated", strength=C, **options):
    """A guard that has consolidated once and pulls every so many steps, and a model that has moved."""
    torch.manual_seed(1)
    return consolidated(model, strength=strength, form=form, pull_every=every, **options)


def beside_a_twin(every, form="rotated"):
    """A guarded model and its optimizer, and a copy of both that nothing holds, to be pulled by hand."""
    model = net()
    guard = held(model, every, form)
    twin = copy.deepcopy(model)
    optimizer, its = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, twin))
    guard.attach(optimizer)
    return model, guard, optimizer, twin, its


def pull_by_hand(model, guard, way):
    """Take D to (1 + 2·way·Q)⁻¹D, with Q as one matrix."""
    own = dict(model.named_parameters())
    with torch.no_grad():
        for matrix in guard.held.matrices.values():
            names = matrix.block.parameters
            q = dense(matrix, {n: own[n] for n in names})
            d = torch.cat([(own[n] - guard.anchor[n]).flatten() for n in names])
            d = torch.linalg.solve(torch.eye(len(d), dtype=torch.float64) + 2 * way * q, d)
            for n, part in zip(names, d.split([own[n].numel() for n in names]), strict=True):
                own[n].copy_(guard.anchor[n] + part.view_as(own[n]))


def same(one, other, tolerance=1e-10):
    for name, value in weights(other).items():
        torch.testing.assert_close(weights(one)[name], value, rtol=tolerance, atol=tolerance)


def equal(one, other):
    return all(torch.equal(value, weights(other)[name]) for name, value in weights(one).items())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("make", "rate"), KINDS.values(), ids=KINDS)
def test_every_k_steps_it_is_one_pull_for_k_steps(form, make, rate):
    model = net()
    guard = held(model, 3, form)
    twin = copy.deepcopy(model)
    optimizer, its = make(model.parameters()), make(twin.parameters())
    guard.attach(optimizer)
    for step in range(1, 9):
        train(model, optimizer, 1, seed=step)
        train(twin, its, 1, seed=step)
        if step % 3 == 0:
            pull_by_hand(twin, guard, 3 * C * rate)
        same(model, twin)


@pytest.mark.parametrize("form", FORMS)
def test_every_step_is_what_it_is_without_a_word(form):
    ends = []
    for options in ({}, {"pull_every": 1}, {"implicit": True}):
        model = net()
        torch.manual_seed(1)
        guard = consolidated(model, strength=C, form=form, **{"implicit": True, **options})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        guard.attach(optimizer)
        train(model, optimizer, 5)
        ends.append(model)
    assert equal(ends[0], ends[1])
    assert equal(ends[0], ends[2])


@pytest.mark.parametrize("every", [1, 2, 5])
@pytest.mark.parametrize("form", ["diagonal", "rotated"])
def test_on_a_quadratic_it_settles_where_the_closed_form_says(form, every):
    """D = P(AD + (1 − A)B) with A of k steps of the task alone, and P of the pull: its only fixed point."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3, bias=False).double()
    rate = 0.1
    guard = held(model, every, form)
    curvature = torch.randn(12, 12, dtype=torch.float64)
    curvature = curvature @ curvature.mT / 12 + 0.5 * torch.eye(12, dtype=torch.float64)
    best = torch.randn(12, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    guard.attach(optimizer)
    for _ in range(500):
        away = (model.weight - guard.anchor["weight"]).flatten() - best
        optimizer.zero_grad()
        (away @ curvature @ away / 2).backward()
        optimizer.step()
    (matrix,) = guard.held.matrices.values()
    one = torch.eye(12, dtype=torch.float64)
    a = torch.linalg.matrix_power(one - rate * curvature, every)
    p = torch.linalg.inv(one + 2 * C * rate * every * dense(matrix, {"weight": model.weight}))
    expected = torch.linalg.solve(one - p @ a, p @ (one - a) @ best)
    d = (model.weight - guard.anchor["weight"]).flatten().detach()
    torch.testing.assert_close(d, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("strength", [1e-30, 1e3, 1e30, 1e38])
@pytest.mark.parametrize("form", ["diagonal", "rotated", "kronecker"])
@pytest.mark.parametrize("every", [2, 64])
def test_no_strength_and_no_k_is_too_much(strength, form, every):
    model = net(dtype=torch.float32)
    with torch.no_grad():
        guard = anchorhold.Guard(
            model, "EWC", strength=strength, form=form, monitors=(), options=GuardOptions(pull_every=every)
        )
    guard.consolidate([batch(9, dtype=torch.float32)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    guard.attach(optimizer)
    for i in range(2 * every):
        optimizer.zero_grad()
        loss(model, batch(i, dtype=torch.float32)).backward()
        optimizer.step()
    anchored = guard.anchor
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    if strength >= 1e30:  # the step's own pull has just been: what any sample has touched is where it was
        omega = guard.importance
        for name, p in model.named_parameters():
            stiff = omega[name] > 1e-6 if form == "diagonal" else torch.zeros_like(p, dtype=torch.bool)
            torch.testing.assert_close(p.detach()[stiff], anchored[name][stiff])


def test_rates_and_strengths_that_change_count_step_by_step():
    model, guard, optimizer, twin, its = beside_a_twin(3)
    for step, (rate, c) in enumerate(((0.1, 0.5), (0.02, 4.0), (0.3, 1.5))):
        for each in (optimizer, its):
            each.param_groups[0]["lr"] = rate
        guard.strength = c
        train(model, optimizer, 1, seed=step)
        train(twin, its, 1, seed=step)
    pull_by_hand(twin, guard, 0.1 * 0.5 + 0.02 * 4.0 + 0.3 * 1.5)
    same(model, twin)


def test_a_linear_term_is_of_all_steps_too():
    """Several steps whose gradient is 0 and one pull for them go as far as one step of as many times the rate."""
    ends = []
    for every, rate in ((4, 0.1), (1, 0.4)):
        model = net()
        guard = held(model, every, "diagonal", anchor="mean", gradient_term=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        guard.attach(optimizer)
        for _ in range(every):
            for p in model.parameters():
                p.grad = torch.zeros_like(p)
            optimizer.step()
        ends.append(model)
    same(*ends)
    assert not equal(ends[0], net())


@pytest.mark.parametrize("form", ["diagonal", "rotated"])
@pytest.mark.parametrize("how", ["consolidate", "detach", "average", "options", "next task"])
def test_steps_that_wait_are_pulled_for_before_weights_are_used(form, how):
    model, guard, optimizer, twin, its = beside_a_twin(4, form)
    train(model, optimizer, 6)
    train(twin, its, 4)
    pull_by_hand(twin, guard, 4 * 0.1 * C)
    train(twin, its, 2, seed=4)
    same(model, twin)  # in between weights are where the optimizer has left them
    assert "2 since the last pull" in repr(guard)
    pull_by_hand(twin, guard, 2 * 0.1 * C)
    if how == "consolidate":
        del optimizer  # as where a function that trains has returned
        guard.consolidate([batch(3)])
    elif how == "average":
        guard.average(1.0)
    elif how == "options":
        guard.options.pull_every = 1
    else:
        guard.detach()
    same(model, twin)
    assert "since the last pull" not in repr(guard)


def test_what_is_forgotten_waits_for_no_pull_and_a_restarted_account_does():
    model, guard, optimizer, twin, its = beside_a_twin(4)
    train(model, optimizer, 3)
    guard.gradients.restart_task()
    with pytest.warns(AnchorholdWarning, match="What is forgotten had its importance in one matrix"):
        guard.forget("2.weight")
    assert guard.state_dict()["waiting"].keys() == {"0.weight", "0.bias"}
    train(model, optimizer, 1, seed=3)
    train(twin, its, 4)
    pull_by_hand(twin, guard, 4 * 0.1 * C)
    same(model, twin)
    assert "waiting" not in guard.state_dict()


def test_a_task_that_cannot_end_leaves_weights_and_waiting_steps_as_they_were():
    model = net()
    guard = held(model, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    train(model, optimizer, 3)
    before, state = weights(model), guard.state_dict()["waiting"]
    with pytest.raises(NotFiniteError):
        guard.consolidate([(torch.full((2, 4), float("nan"), dtype=torch.float64), torch.tensor([0, 1]))])
    assert all(torch.equal(weights(model)[name], value) for name, value in before.items())
    assert guard.state_dict()["waiting"] == state


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("said", [True, False])
def test_a_guard_that_was_saved_between_two_pulls_goes_on_exactly(form, said, tmp_path):
    model = net()
    guard = held(model, 4, form)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    guard.attach(optimizer)
    train(model, optimizer, 6)
    guard.save(tmp_path / "state")
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, 5, seed=6)

    resumed = net(seed=3)
    resumed.load_state_dict(saved[0])
    again = torch.optim.SGD(resumed.parameters(), lr=0.1, momentum=0.9)
    again.load_state_dict(saved[1])
    # A hold of all weights together is implicit only where that is said.
    options = GuardOptions(pull_every=4) if said else GuardOptions(implicit=True) if form == "dense" else None
    other = anchorhold.Guard(resumed, anchorhold.Fisher(), strength=C, form=form, options=options)
    other.load(tmp_path / "state")
    assert other.options.pull_every == 4
    assert "2 since the last pull" in repr(other)
    other.attach(again)
    train(resumed, again, 5, seed=6)
    assert equal(model, resumed)


def test_a_distributed_checkpoint_has_the_steps_that_wait(tmp_path):
    model = net()
    guard = held(model, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    train(model, optimizer, 3)
    checkpoint.save({"guard": guard.state_dict()}, checkpoint_id=tmp_path)
    other = anchorhold.Guard(net(), anchorhold.Fisher(), strength=C, form="rotated")
    state = {"guard": anchorhold.guard.blank_state_dict(other, checkpoint.FileSystemReader(tmp_path).read_metadata())}
    checkpoint.load(state, checkpoint_id=tmp_path)
    other.load_state_dict(state["guard"])
    assert other.options.pull_every == 4
    assert other.state_dict()["waiting"] == guard.state_dict()["waiting"]


def test_a_state_says_it_only_where_it_is_not_usual_and_a_guards_own_word_counts():
    model = net()
    assert not {"pull_every", "waiting"} & consolidated(net(), implicit=True).state_dict().keys()
    guard = held(model, 4)
    state = guard.state_dict()
    assert state["pull_every"] == 4
    assert json.dumps({k: v for k, v in state.items() if k != "tensors"})
    own = anchorhold.Guard(net(), anchorhold.Fisher(), strength=C, form="rotated", options=GuardOptions(pull_every=2))
    own.load_state_dict(state)
    assert own.options.pull_every == 2


@pytest.mark.parametrize(
    "damage", [{"pull_every": 0}, {"pull_every": "often"}, {"waiting": {"0.weight": 3}}, {"waiting": {"a": [-1, 0.0]}}]
)
def test_a_damaged_state_is_refused(damage):
    guard = held(net(), 4)
    with pytest.raises(StateError, match="is damaged"):
        guard.load_state_dict({**guard.state_dict(), **damage})


def test_a_step_that_a_scaler_skips_is_none_of_them():
    model = net(dtype=torch.float32)
    guard = anchorhold.Guard(model, "EWC", strength=C, form="rotated", options=GuardOptions(pull_every=2))
    guard.consolidate([batch(9, dtype=torch.float32)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    guard.attach(optimizer)
    for spoilt in (False, True):
        optimizer.zero_grad()
        scaler.scale(loss(model, batch(1, dtype=torch.float32))).backward()
        if spoilt:
            next(model.parameters()).grad.fill_(float("inf"))
        scaler.step(optimizer)
        scaler.update()
    assert "1 since the last pull" in repr(guard)


def test_several_microbatches_are_one_step():
    models = []
    for parts in (1, 2):
        model = net()
        guard = held(model, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        guard.attach(optimizer)
        for i in range(4):
            optimizer.zero_grad()
            x, y = batch(i)
            for k in range(parts):
                (loss(model, (x[k::parts], y[k::parts])) / parts).backward()
            optimizer.step()
        models.append(model)
    same(*models)


def test_two_optimizers_count_their_own_steps():
    model = net()
    guard = held(model, 2)
    twin = copy.deepcopy(model)
    first, second = (torch.optim.SGD(model[i].parameters(), lr=0.1) for i in (0, 2))
    guard.attach(first, second)
    its = torch.optim.SGD(twin.parameters(), lr=0.1)
    loss(model, batch(0)).backward()
    loss(twin, batch(0)).backward()
    first.step()
    second.step()
    its.step()
    same(model, twin)
    first.zero_grad()
    loss(model, batch(1)).backward()
    first.step()
    twin.zero_grad()
    loss(twin, batch(1)).backward()
    twin[2].zero_grad()
    its.step()
    whole = weights(twin)
    pull_by_hand(twin, guard, 2 * 0.1 * C)
    for name, value in weights(model).items():
        expected = weights(twin)[name] if name.startswith("0.") else whole[name]
        torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-10)


def test_a_tolerance_looks_after_a_pull():
    model = net()
    guard = anchorhold.Guard(
        model,
        anchorhold.Fisher(),
        tolerance=anchorhold.Tolerance(0.01, every=2),
        form="rotated",
        options=GuardOptions(pull_every=3),
    )
    guard.keep([batch(4, n=64)[0]])
    guard.consolidate([batch(9)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    train(model, optimizer, 12)
    assert [point.step for point in guard.control.trace] == [0, 3, 6, 9, 12]


def test_between_pulls_no_weights_are_looked_at_that_nothing_spreads():
    model = net()
    guard = held(model, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    train(model, optimizer, 2)
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    with pytest.raises(NotFiniteError, match="themselves are not finite"):
        optimizer.step()
    assert int(sum(p.isnan().sum() for p in model.parameters())) == 1


@pytest.mark.parametrize(("left", "is_warned"), [(0.1, False), (0.001, True)])
def test_standing_still_is_warned_of_by_what_a_pull_for_one_step_would_leave(left, is_warned):
    torch.manual_seed(0)
    model = nn.Linear(1, 2, bias=False).double()
    guard = anchorhold.Guard(model, "EWC", strength=1.0, options=GuardOptions(pull_every=16))
    x = torch.ones(4, 1, dtype=torch.float64)
    guard.consolidate([x])
    omega = guard.importance["weight"].min()
    guard.strength = float((1 / left - 1) / (2 * 0.1 * omega))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(16):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), torch.tensor([0, 0, 0, 1])).backward()
            optimizer.step()
    assert any("far too much for this task" in str(each.message) for each in told) == is_warned


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"pull_every": 0}, "expected a whole number of steps"),
        ({"pull_every": 2.5}, "expected a whole number of steps"),
        ({"pull_every": True}, "expected a whole number of steps"),
        ({"pull_every": 4, "implicit": False}, "would overshoot the anchor"),
        ({"pull_every": 4, "batch_norm": "fold"}, "with batch_norm='fold'"),
        ({"pull_every": 4, "form": "rotated", "anchor": "mean"}, "linear term"),
        ({"pull_every": 4, "form": anchorhold.Rotated(sums="exact")}, "no coordinates of its own"),
    ],
)
def test_what_cannot_be_is_refused(options, match):
    with pytest.raises(ConfigurationError, match=match):
        consolidated(net(), **options)


@pytest.mark.parametrize("form", ["diagonal", "rotated"])
def test_a_rate_for_each_weight_is_refused(form):
    model = net()
    guard = held(model, 4, form)
    with pytest.raises(OptimizerError, match=r"pull_every=4 with Adam: .* Use SGD, or leave pull_every out"):
        guard.attach(torch.optim.Adam(model.parameters()))
    other = consolidated(model, form=form)
    adam = torch.optim.Adam(model.parameters())
    other.attach(adam)
    with pytest.raises(OptimizerError, match="pull_every=2 with Adam"):
        other.options.pull_every = 2
    assert other.options.pull_every == 1


def test_it_may_be_set_and_goes_with_a_hold_after_steps():
    model = net()
    guard = consolidated(model, form="rotated")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    guard.options.pull_every = 2
    assert guard.options.implicit
    assert "pulling after every 2 steps" in repr(guard)
    with pytest.raises(ConfigurationError, match=r"Set guard.options.pull_every = 1 first"):
        guard.options.implicit = False
    guard.options.pull_every = 1
    guard.options.implicit = False
    with pytest.raises(ConfigurationError, match="with implicit=False"):
        guard.options.pull_every = 2


def test_a_form_costs_a_kth():
    costs = []
    for every in (1, 4):
        guard = anchorhold.Guard(
            net(), "EWC", form="rotated", options=GuardOptions(implicit=True, pull_every=every)
        ).cost()
        costs.append(guard.multiplications)
    assert costs[1] == pytest.approx(costs[0] / 4, abs=3)


@pytest.mark.parametrize("call", [lambda guard: guard.average(2.0), lambda guard: guard.pull_back(0.1)])
def test_a_call_that_is_refused_leaves_weights_and_waiting_steps(call):
    model = net()
    guard = held(model, 4)
    guard.attach(optimizer := torch.optim.SGD(model.parameters(), lr=0.1))
    train(model, optimizer, 3)
    before, state = weights(model), guard.state_dict()["waiting"]
    with pytest.raises((ConfigurationError, OrderError)):
        call(guard)
    assert all(torch.equal(weights(model)[name], value) for name, value in before.items())
    assert guard.state_dict()["waiting"] == state


def test_microbatches_are_seen_at_weights_that_wait_for_nothing():
    model = net()
    guard = consolidated(model, measure=anchorhold.Fisher(labels="true"), strength=C, form="diagonal", pull_every=4)
    guard.attach(optimizer := torch.optim.SGD(model.parameters(), lr=0.1))
    train(model, optimizer, 6)
    guard.gradients.microbatches([batch(7), batch(8)])
    assert "waiting" not in guard.state_dict()
    guard.consolidate()
    assert guard.tasks == 2


@pytest.mark.parametrize("form", ["diagonal", "kronecker"])
def test_steps_of_a_layer_that_is_gone_wait_for_nothing(form):
    model, guard, optimizer, twin, its = beside_a_twin(4, form)
    train(model, optimizer, 2)
    train(twin, its, 2)
    model[2] = nn.Identity()
    guard.refresh()
    guard.detach()
    pull_by_hand(twin, guard, 2 * 0.1 * C)
    torch.testing.assert_close(model[0].weight, twin[0].weight, rtol=1e-10, atol=1e-10)


def test_steps_that_were_held_are_pulled_for_though_nothing_is_held_any_more():
    model, guard, optimizer, twin, its = beside_a_twin(4)
    train(model, optimizer, 2)
    train(twin, its, 2)
    guard.strength = 0.0
    guard.detach()
    pull_by_hand(twin, guard, 2 * 0.1 * C)
    same(model, twin)


def test_parameters_of_an_adapter_that_is_merged_for_now_are_not_moved():
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    model = peft.get_peft_model(net(), peft.LoraConfig(r=2, target_modules=["0"], init_lora_weights=False)).double()
    guard = anchorhold.Guard(model, "EWC", strength=C, options=GuardOptions(pull_every=4, space="weights"))
    guard.consolidate([batch(9)])
    guard.attach(optimizer := torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1))
    train(model, optimizer, 3)
    before = weights(model)
    model.merge_adapter()
    for call in (guard.detach, lambda: guard.average(0.5)):
        with pytest.raises(ConfigurationError, match="is merged into its weight for now"):
            call()
    model.unmerge_adapter()
    for name, value in before.items():
        torch.testing.assert_close(weights(model)[name], value)
    guard.detach()
