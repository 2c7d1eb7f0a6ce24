"""Every measure along the path, run through the hooks, against the formulas of tests/path_oracle.py."""

import copy

import pytest
import torch
from torch import nn

import anchorhold
from tests import path_oracle as oracle

STRENGTH = 0.7


def make_net(dtype):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).to(dtype)


def make_tasks(dtype, tasks=2, steps=7):
    generator = torch.Generator().manual_seed(1)

    def batch():
        x = torch.randn(8, 4, generator=generator, dtype=torch.float64).to(dtype)
        return x, torch.randint(0, 3, (8,), generator=generator)

    return [([batch() for _ in range(steps)], [batch() for _ in range(steps)]) for _ in range(tasks)]


def loss_function(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.05)


def momentum(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def run_guarded(model, make_optimizer, tasks, measure, *, decay=1.0, strength=STRENGTH):
    """Train the way a user does: hooks, and a second batch where the measure needs one."""
    model = copy.deepcopy(model)
    guard = anchorhold.Guard(
        model, measure, strength=strength, decay=decay, options=anchorhold.GuardOptions(implicit=False)
    )
    history = []
    for batches, second_batches in tasks:
        optimizer = make_optimizer(model)
        guard.attach(optimizer)
        for batch, second in zip(batches, second_batches, strict=True):
            optimizer.zero_grad()
            loss_function(model, batch).backward()
            guard.gradients.independent(loss_function(model, second), samples=8)
            optimizer.step()
        found = guard.consolidate()[measure.name]
        history.append((guard.importance, found))
    return model, history


def posterior(v, b, eta, scaled):
    """1/(K+R) from K = 1/(b v) and R = η/√v, or R = η′/√(b v)."""
    return 1 / (1 / (b * v) + eta / (b * v if scaled else v).sqrt())


UNBIASED = (8 + 15**0.5) / 7
CASES = {
    "SI": (anchorhold.SI(), lambda s, n: oracle.rescaled(s, n, "SI", 0.1)),
    "SI-small-damping": (anchorhold.SI(damping=0.001), lambda s, n: oracle.rescaled(s, n, "SI", 0.001)),
    "SI-clamp-total": (anchorhold.SI(clamp="total"), lambda s, n: oracle.rescaled(s, n, "SI", 0.1, clamp_task=False)),
    "SIU": (anchorhold.SIU(), lambda s, n: oracle.rescaled(s, n, "SIU", 0.1)),
    "SIU-clamp-total": (
        anchorhold.SIU(clamp="total"),
        lambda s, n: oracle.rescaled(s, n, "SIU", 0.1, clamp_task=False),
    ),
    "SIB": (anchorhold.SIB(), lambda s, n: oracle.rescaled(s, n, "SIB", 0.1)),
    "SOS": (anchorhold.SOS(), lambda s, n: oracle.second_moment(s, n, 0.999, 0.0, normalise=True).sqrt()),
    "SOS-as-scripts": (
        anchorhold.SOS(normalise=False),
        lambda s, n: oracle.second_moment(s, n, 0.999, 0.0, normalise=False).sqrt(),
    ),
    "SOS-alpha-1": (
        anchorhold.SOS(alpha=1.0, normalise=False),
        lambda s, n: oracle.second_moment(s, n, 0.999, 1.0, normalise=False).sqrt(),
    ),
    "SOS-any-alpha": (
        anchorhold.SOS(alpha=0.3, beta2=0.9),
        lambda s, n: oracle.second_moment(s, n, 0.9, 0.3, normalise=True).sqrt(),
    ),
    "SOS-unbiased": (
        anchorhold.SOS(alpha="unbiased"),
        lambda s, n: oracle.second_moment(s, n, 0.999, UNBIASED, normalise=True).sqrt(),
    ),
    "posterior": (
        anchorhold.PosteriorPrecision(batch_size=8, normalise=False),
        lambda s, n: posterior(oracle.second_moment(s, n, 0.999, 0.0, normalise=False), 8, 0.001, scaled=False),
    ),
    "posterior-scaled": (
        anchorhold.PosteriorPrecision(batch_size=8, scaled=True),
        lambda s, n: posterior(oracle.second_moment(s, n, 0.999, 0.0, normalise=True), 8, 0.01, scaled=True),
    ),
}


def relative(a, b):
    return float((a.double() - b.double()).norm() / b.double().norm())


@pytest.mark.parametrize("make_optimizer", [adam, momentum])
@pytest.mark.parametrize("case", CASES)
def test_importance_and_weights_agree_with_the_oracle(case, make_optimizer):
    measure, importance_of = CASES[case]
    net, tasks = make_net(torch.float64), make_tasks(torch.float64)
    clamp_total = getattr(measure, "clamp", "task") == "total"
    expected_model, expected = oracle.run_tasks(
        net, make_optimizer, loss_function, tasks, importance_of, STRENGTH, clamp_total=clamp_total
    )
    model, history = run_guarded(net, make_optimizer, tasks, measure)
    for (importance, _), (total, _) in zip(history, expected, strict=True):
        for name, value in total.items():
            wanted = value.clamp(min=0) if clamp_total else value
            assert relative(importance[name], wanted) < 1e-10, name
    for name, value in oracle.snapshot(expected_model).items():
        assert relative(model.state_dict()[name], value) < 1e-12, name


@pytest.mark.parametrize("case", CASES)
def test_float32_agrees_with_the_float64_oracle_of_its_own_path(case):
    """Training in float32 drifts from training in float64, so the oracle follows the float32 weights."""
    measure, importance_of = CASES[case]
    net, tasks = make_net(torch.float32), make_tasks(torch.float32, tasks=1)
    _, history = run_guarded(net, adam, tasks, measure)
    model = copy.deepcopy(net)
    (batches, second), wide = tasks[0], copy.deepcopy(net).double()
    steps = oracle.train_task(model, adam(model), loss_function, batches, second, {}, {}, 0.0)
    for step, batch, other in zip(steps, batches, second, strict=True):
        wide.load_state_dict({name: value.double() for name, value in step.before.items()})
        step.before = {name: value.double() for name, value in step.before.items()}
        step.after = {name: value.double() for name, value in step.after.items()}
        step.gradient = oracle.gradients(loss_function(wide, (batch[0].double(), batch[1])), wide)
        step.independent = oracle.gradients(loss_function(wide, (other[0].double(), other[1])), wide)
    for name in steps[0].before:
        assert relative(history[0][1].importance[name], importance_of(steps, name)) < 1e-5, name


@pytest.mark.parametrize("kind", ["SI", "SIU", "SIB"])
def test_importance_before_rescaling_can_be_read(kind):
    net, tasks = make_net(torch.float64), make_tasks(torch.float64)
    measure = anchorhold.measures.measure(kind)
    _, expected = oracle.run_tasks(
        net, adam, loss_function, tasks, lambda s, n: oracle.rescaled(s, n, kind, 0.1), STRENGTH
    )
    _, history = run_guarded(net, adam, tasks, measure)
    for (_, found), (_, steps) in zip(history, expected, strict=True):
        for name, value in found.raw.items():
            assert relative(value, oracle.path_integral(steps, name, kind)) < 1e-10
    if kind == "SIU":  # before rescaling, some importances are negative
        assert any(bool((value < 0).any()) for value in history[0][1].raw.values())


def test_decayed_accumulation():
    net, tasks = make_net(torch.float64), make_tasks(torch.float64, tasks=3)
    importance_of = CASES["SOS"][1]
    _, expected = oracle.run_tasks(net, adam, loss_function, tasks, importance_of, STRENGTH, decay=0.5)
    _, history = run_guarded(net, adam, tasks, anchorhold.SOS(), decay=0.5)
    for name, value in expected[-1][0].items():
        assert relative(history[-1][0][name], value) < 1e-10


def test_unbiased_alpha_solves_its_equation():
    for b in (2, 3, 64, 2048):
        alpha = anchorhold.measures.unbiased_alpha(b)
        assert (1 - alpha) ** 2 == pytest.approx((1 + alpha**2) / b, rel=1e-9)
        assert alpha > 1
    assert anchorhold.measures.unbiased_alpha(1) == 0.0


def test_observing_another_loss_replaces_the_gradient():
    """The paper measures without dropout while the step is made with it."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 3)).double()
    batch = make_tasks(torch.float64)[0][0][0]
    guard = anchorhold.Guard(net, anchorhold.SI())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    guard.attach(optimizer)
    before = oracle.snapshot(net)
    net.eval()
    without_dropout = oracle.gradients(loss_function(net, batch), net)
    guard.gradients.observe(loss_function(net, batch))
    net.train()
    loss_function(net, batch).backward()
    optimizer.step()
    raw = guard.consolidate()["SI"].raw
    for name, after in oracle.snapshot(net).items():
        assert relative(raw[name], -without_dropout[name] * (after - before[name])) < 1e-12
