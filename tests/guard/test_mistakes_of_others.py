"""Mistakes that other libraries make around the training loop; each test fails on the mistake it is named after."""

import copy

import torch
from torch import nn

import anchorhold
from tests.guard.helpers import batch, loss, net, train, weights


def run_si(model, steps=4, strength=0.0, tasks=1):
    guard = anchorhold.Guard(model, anchorhold.SI(), strength=strength, options=anchorhold.GuardOptions(implicit=False))
    for task in range(tasks):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        guard.attach(optimizer)
        train(model, optimizer, steps=steps, seed=100 * task)
        found = guard.consolidate()["SI"]
    return guard, found


def test_the_old_value_is_no_view_of_the_live_parameter():
    """Else Δ is always 0, and so is SI."""
    _, found = run_si(net())
    assert all(float(value.abs().max()) > 0 for value in found.raw.values())


def test_importances_are_not_clipped_from_above():
    """A hard-coded 0.001 flattens almost all of them."""
    _, found = run_si(net(), steps=20)
    assert max(float(value.max()) for value in found.importance.values()) > 0.001
    assert all(len(value.unique()) > 1 for value in found.importance.values())


def test_importances_are_clamped_at_0():
    model = net()
    guard = anchorhold.Guard(model, anchorhold.SIU())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    guard.attach(optimizer)
    for i in range(6):
        optimizer.zero_grad()
        loss(model, batch(i)).backward()
        guard.gradients.independent(loss(model, batch(50 + i)))
        optimizer.step()
    found = guard.consolidate()["SIU"]
    assert min(float(value.min()) for value in found.raw.values()) < 0
    assert min(float(value.min()) for value in found.importance.values()) == 0


def test_the_path_adds_up_from_0():
    """``w − w·Δ`` from 0 stays 0; so would twice the steps be no more than once."""
    once, twice = run_si(net(), steps=1)[1], run_si(net(), steps=30)[1]
    assert sum(float(v.sum()) for v in twice.raw.values()) > 2 * sum(float(v.sum()) for v in once.raw.values()) > 0


def test_si_sees_the_gradient_of_the_task_alone():
    """Fed with loss + penalty, SI measures its own penalty."""
    model = net()
    guard, _ = run_si(model, strength=100.0)
    with torch.no_grad():
        model[0].weight.add_(1.0)  # as after a re-initialisation: far from the anchor, so the penalty is strong
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    guard.attach(optimizer)
    task_gradient = torch.autograd.grad(loss(model, batch(7)), model[0].weight)[0]
    before = weights(model)["0.weight"]
    optimizer.zero_grad()
    loss(model, batch(7)).backward()
    optimizer.step()
    raw = guard.consolidate()["SI"].raw["0.weight"]
    torch.testing.assert_close(raw, -task_gradient * (weights(model)["0.weight"] - before))


def test_sos_sees_the_gradient_of_the_task_alone():
    """Adam's own second moment holds the penalty too."""
    model = net()
    guard = anchorhold.Guard(model, anchorhold.SOS(beta2=0.0, normalise=False), strength=100.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    guard.attach(optimizer)
    train(model, optimizer)
    guard.consolidate()
    with torch.no_grad():
        model[0].weight.add_(1.0)
    gradient = torch.autograd.grad(loss(model, batch(7)), model[0].weight)[0]
    optimizer.zero_grad()
    loss(model, batch(7)).backward()
    optimizer.step()
    torch.testing.assert_close(guard.consolidate()["SOS"].importance["0.weight"], gradient.abs())


def test_a_reinitialisation_between_tasks_is_no_step():
    """θ(0) and the first Δ start after it, not at the anchor."""
    results = []
    for reinitialised in (False, True):
        model = net()
        guard = anchorhold.Guard(model, anchorhold.SI(), strength=0.0)
        if reinitialised:  # an earlier task elsewhere in weight space must leave no trace in the next one's measure
            optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
            guard.attach(optimizer)
            train(model, optimizer, seed=30)
            guard.consolidate()
            model.load_state_dict(net().state_dict())
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        guard.attach(optimizer)
        train(model, optimizer)
        results.append(guard.consolidate()["SI"])
    for name, value in results[0].importance.items():
        torch.testing.assert_close(results[1].importance[name], value)
        torch.testing.assert_close(results[1].raw[name], results[0].raw[name])


def test_heads_of_other_tasks_are_not_penalised():
    body, heads = nn.Linear(4, 5).double(), nn.ModuleList(nn.Linear(5, 3).double() for _ in range(2))
    model = nn.ModuleDict({"body": body, "heads": heads})
    guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=10.0, protect="body.*")
    guard.consolidate([batch(0)], forward=lambda m, x: m["heads"][0](m["body"](x)))
    assert set(guard.importance) == {"body.weight", "body.bias"} == set(guard.anchor)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    with torch.no_grad():
        heads[0].weight.add_(1.0)
    before = weights(model)
    loss(lambda x: heads[1](body(x)), batch(1)).backward()
    optimizer.step()
    assert torch.equal(weights(model)["heads.0.weight"], before["heads.0.weight"])


def test_an_unused_head_has_no_importance_even_if_protected():
    body, heads = nn.Linear(4, 5).double(), nn.ModuleList(nn.Linear(5, 3).double() for _ in range(2))
    model = nn.ModuleDict({"body": body, "heads": heads})
    guard = anchorhold.Guard(model, anchorhold.Fisher(), watch=["SOS", "SI"])
    optimizer = torch.optim.Adam(model.parameters())
    guard.attach(optimizer)
    loss(lambda x: heads[0](body(x)), batch(1)).backward()
    optimizer.step()
    found = guard.consolidate([batch(0)], forward=lambda m, x: m["heads"][0](m["body"](x)))
    for task in found.values():
        assert float(task.importance["heads.1.weight"].abs().max()) == 0
        assert float(task.importance["heads.0.weight"].abs().max()) > 0


def test_one_penalty_for_all_methods_without_a_half():
    for measure in (anchorhold.L2(), anchorhold.L2(growing=True), anchorhold.Fisher(), anchorhold.MAS()):
        model = net()
        guard = anchorhold.Guard(model, measure, strength=3.0)
        guard.consolidate([batch(0)])
        with torch.no_grad():
            model[0].weight.add_(2.0)
        omega = guard.importance["0.weight"]
        torch.testing.assert_close(guard.penalty().detach(), 3.0 * (omega * 4.0).sum())


def test_importances_survive_a_resume(tmp_path):
    model = net()
    guard, _ = run_si(model, strength=5.0, tasks=2)
    guard.save(tmp_path / "state.safetensors")
    fresh = anchorhold.Guard(copy.deepcopy(model), anchorhold.SI(), strength=5.0)
    fresh.load(tmp_path / "state.safetensors")
    for name, value in guard.importance.items():
        assert torch.equal(fresh.importance[name], value)
        assert torch.equal(fresh.anchor[name], guard.anchor[name])


def test_accumulated_gradients_and_clipping_are_seen_as_the_optimizer_sees_them():
    model = net()
    guard = anchorhold.Guard(model, anchorhold.SOS(beta2=0.0, normalise=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    for i in range(2):
        (loss(model, batch(i)) / 2).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    expected = {name: p.grad.abs().clone() for name, p in model.named_parameters()}
    optimizer.step()
    for name, value in guard.consolidate()["SOS"].importance.items():
        torch.testing.assert_close(value, expected[name])
