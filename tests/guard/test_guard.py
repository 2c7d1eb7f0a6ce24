"""What a user sees: measures, totals, the pretrained model, and every mistake that can be made."""

import copy
import dataclasses
import inspect
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

import anchorhold
from tests.guard.helpers import batch, consolidated, loss, net, train, weights


def unchanged(guard, act, error, message):
    """Check that a mistake raises the right error and loses nothing."""
    kept = copy.deepcopy(guard.state_dict())
    with pytest.raises(error, match=message) as caught:
        act()
    assert isinstance(caught.value, anchorhold.AnchorholdError)
    state = guard.state_dict()
    assert state["tensors"].keys() == kept["tensors"].keys()
    assert all(torch.equal(state["tensors"][key], value) for key, value in kept["tensors"].items())
    assert {k: v for k, v in state.items() if k != "tensors"} == {k: v for k, v in kept.items() if k != "tensors"}


def test_baselines_over_tasks():
    model = net()
    expected = {"L2": 1.0, "L2-growing": 3.0, "fine-tune": 0.0}
    for name, value in expected.items():
        guard = anchorhold.Guard(model, name)
        guard.consolidate()
        for _ in range(2):
            grows = name == "L2-growing"  # as it would not where there are steps between
            with pytest.warns(anchorhold.AnchorholdWarning, match="consolidate.. again") if grows else nullcontext():
                guard.consolidate()
        assert all(bool((omega == value).all()) for omega in guard.importance.values())
    guard = anchorhold.Guard(model, "magnitude")
    guard.consolidate()
    torch.testing.assert_close(guard.importance["0.weight"], model[0].weight.detach().abs())


def test_root_fisher_takes_the_root_of_each_task():
    model = net()
    fisher, root = anchorhold.Guard(model, "EWC"), anchorhold.Guard(model, "sqrtFisher")
    expected = 0.0
    for seed in (0, 1):
        expected = expected + fisher.consolidate([batch(seed)])["EWC"].importance["0.weight"].sqrt()
        root.consolidate([batch(seed)])
    torch.testing.assert_close(root.importance["0.weight"], expected)


@pytest.mark.parametrize(
    "name", ["EWC", "EWC-sampled", "EWC-empirical", "sqrtFisher", "AF", "MAS", "MASX", "MAS-logits"]
)
def test_a_pretrained_model_is_protected_before_its_first_step(name):
    model = net()
    guard = anchorhold.Guard(model, name, strength=1.0)
    found = guard.consolidate([batch(0), batch(1)])[name]
    assert found.samples == 16
    assert found.fallback == {}
    assert guard.penalty().item() == 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    guard.attach(optimizer)
    train(model, optimizer, steps=2)
    assert guard.penalty().item() > 0


def test_measures_that_watch_see_what_they_would_see_alone():
    watch = ["SOS", "AF", "MAS"]
    together = net()
    guard = anchorhold.Guard(together, anchorhold.SI(), strength=0.0, watch=watch)
    optimizer = torch.optim.Adam(together.parameters(), lr=0.01)
    guard.attach(optimizer)
    train(together, optimizer)
    found = guard.consolidate([batch(0)])
    assert list(found) == ["SI", *watch]
    for name in ["SI", *watch]:
        alone = net()
        single = anchorhold.Guard(alone, name, strength=0.0)
        optimizer = torch.optim.Adam(alone.parameters(), lr=0.01)
        single.attach(optimizer)
        train(alone, optimizer)
        single.consolidate([batch(0)])
        for key, value in single.importance.items():
            torch.testing.assert_close(found[name].importance[key], value)
            torch.testing.assert_close(guard.held.of(name)[key], value)


def test_watching_holds_nothing():
    model, twin = net(), net()
    guard = anchorhold.Guard(model, anchorhold.FineTune(), strength=1e6, watch={"mine": anchorhold.SI()})
    optimizer, plain = (torch.optim.Adam(m.parameters(), lr=0.01) for m in (model, twin))
    guard.attach(optimizer)
    for seed in (0, 10):
        train(model, optimizer, seed=seed)
        guard.consolidate()
        train(twin, plain, seed=seed)
    for name, value in weights(twin).items():
        torch.testing.assert_close(weights(model)[name], value, rtol=0, atol=0)
    assert float(guard.held.of("mine")["0.weight"].max()) > 0


def test_regression_with_any_scalar_loss():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    x, y = torch.randn(16, 4, dtype=torch.float64), torch.randn(16, 1, dtype=torch.float64)
    for measure in (anchorhold.SI(), anchorhold.SOS(), anchorhold.MAS(output="logits")):
        guard = anchorhold.Guard(model, measure, strength=1.0)
        optimizer = torch.optim.Adam(model.parameters())
        guard.attach(optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
        guard.consolidate([(x, y)])
        assert all(float(value.max()) > 0 for value in guard.importance.values())
        guard.detach()


def test_a_sample_limit_takes_the_first_ones():
    model = net()
    x, y = batch(0, n=12)
    limited = anchorhold.Guard(model, anchorhold.Fisher(samples=5))
    found = limited.consolidate([(x[:4], y[:4]), (x[4:], y[4:])])["EWC"]
    whole = anchorhold.Fisher().measure(model, [x[:5]])
    assert found.samples == 5
    for name, value in whole.items():
        torch.testing.assert_close(found.importance[name], value)


def test_drawn_labels_differ_from_task_to_task_and_repeat_from_run_to_run():
    model = net()
    draws = []
    for _ in range(2):
        guard = anchorhold.Guard(model, anchorhold.Fisher(labels="sampled"))
        first = guard.consolidate([batch(0)])["EWC-sampled"].importance["0.weight"]
        with pytest.warns(anchorhold.AnchorholdWarning, match="consolidate.. again"):
            draws.append([first, guard.consolidate([batch(0)])["EWC-sampled"].importance["0.weight"]])
    assert not torch.equal(draws[0][0], draws[0][1])
    assert torch.equal(draws[0][0], draws[1][0])
    assert torch.equal(draws[0][1], draws[1][1])


def test_names_are_those_of_the_list():
    for name, measure in anchorhold.measures.default_measures().items():
        assert measure.name == name
        assert anchorhold.measures.measure(name) == measure
        assert measure.choose_when.endswith(".")
        assert ":math:" in type(measure).__doc__ or ".. math::" in type(measure).__doc__


@pytest.mark.daily
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: anchorhold.Guard(net(), "SOS", strength=-1.0), "strength=-1.0"),
        (lambda: anchorhold.Guard(net(), "SOS", strength=float("nan")), "strength=nan"),
        (lambda: anchorhold.Guard(net(), "SOS", strength="5"), "strength='5'"),
        (lambda: anchorhold.Guard(net(), "SOS", strength=True), "strength=True"),
        (lambda: anchorhold.Guard(net(), "SOS", strength=10**400), "strength=1000.*expected a number"),
        (lambda: anchorhold.Guard(net(), "SOS", decay=1.5), "decay=1.5"),
        (lambda: anchorhold.Guard(net(), "SOX"), "No measure is called 'SOX'. Did you mean 'SOS'.* There are SI"),
        (lambda: anchorhold.Guard(net(), anchorhold.SOS), "with its parentheses"),
        (lambda: anchorhold.Guard(net(), "SOS", watch=["SOS"]), "Two measures are called 'SOS'"),
        (lambda: anchorhold.Guard(net(), "SOS", watch={"a/b": "SI"}), "'a/b'"),
        (lambda: consolidated(net()).held.of("SI"), "No measure is called 'SI' here"),
        (lambda: anchorhold.measures.measure("SI", dampnig=1), "Its settings are"),
        (lambda: anchorhold.SI(damping=0.0), "damping=0.0"),
        (lambda: anchorhold.SI(clamp="never"), "clamp='never'"),
        (lambda: anchorhold.SOS(beta2=1.0), "beta2=1.0"),
        (lambda: anchorhold.SOS(alpha="exact"), "alpha='exact'"),
        (lambda: anchorhold.SOS(batch_size=0), "batch_size=0"),
        (lambda: anchorhold.Fisher(samples=0), "samples=0"),
        (lambda: anchorhold.Fisher(labels="all"), "labels='all'"),
        (lambda: anchorhold.MAS(output="softmax"), "output='softmax'"),
        (lambda: anchorhold.MAS(positions="both"), "positions='both'"),
        (lambda: anchorhold.PosteriorPrecision(batch_size=0), "batch_size=0"),
    ],
)
def test_settings_that_make_no_sense(make, message):
    with pytest.raises(anchorhold.errors.ConfigurationError, match=message):
        make()


def test_strength_can_be_set_but_not_to_nonsense():
    guard = consolidated(net())
    for four in (4, np.float32(4), np.int64(4)):
        guard.strength = four
        assert guard.strength == 4.0 and type(guard.strength) is float
    unchanged(guard, lambda: setattr(guard, "strength", -2), anchorhold.errors.ConfigurationError, "strength=-2")


def test_what_cannot_be_attached():
    model = net()
    guard = consolidated(model)
    other = torch.optim.SGD(net().parameters(), lr=0.1)
    unchanged(guard, lambda: guard.attach(other), anchorhold.errors.OptimizerError, "owns none of the 4 protected")
    unchanged(guard, guard.attach, anchorhold.errors.OptimizerError, "given no optimizer")
    unchanged(guard, lambda: guard.attach(model), anchorhold.errors.OptimizerError, "given a Sequential")
    frozen = net().requires_grad_(False)
    adapter = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    held = anchorhold.Guard(frozen, "L2", protect="*")
    unchanged(held, lambda: held.attach(adapter), anchorhold.errors.OptimizerError, "All of them are frozen")
    climbing = torch.optim.SGD(model.parameters(), lr=0.1, maximize=True)
    unchanged(guard, lambda: guard.attach(climbing), anchorhold.errors.OptimizerError, "maximize=True")
    sparse = torch.optim.SparseAdam(model.parameters())
    unchanged(guard, lambda: guard.attach(sparse), anchorhold.errors.OptimizerError, "SparseAdam")


def test_a_sparse_gradient_is_refused():
    model = nn.Embedding(5, 4, sparse=True)
    for measure in ("L2", "SOS"):
        guard = anchorhold.Guard(model, "L2", watch=[] if measure == "L2" else [measure])
        guard.consolidate()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        guard.attach(optimizer)
        model(torch.tensor([1, 2])).sum().backward()
        unchanged(guard, optimizer.step, anchorhold.errors.OptimizerError, "sparse gradient")
        model.weight.grad = None


def test_a_parameter_that_no_optimizer_trains_is_warned_of():
    model = net()
    guard = anchorhold.Guard(model, "SOS")
    with pytest.warns(anchorhold.AnchorholdWarning, match=r"trains '2.weight' and 1 other"):
        guard.attach(torch.optim.SGD(model[0].parameters(), lr=0.1))


def test_a_second_guard_at_the_same_optimizer_is_warned_of():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first, second = (anchorhold.Guard(model, "SOS") for _ in range(2))
    first.attach(optimizer)
    first.attach(optimizer)
    with pytest.warns(anchorhold.AnchorholdWarning, match="SGD is attached to another Guard"):
        second.attach(optimizer)
    second.detach()
    first.attach(optimizer, hold=False)  # which adds no penalty that another could see
    second.attach(optimizer)
    second.detach()
    first.detach()
    body, head = (anchorhold.Guard(model, "SOS", protect=part) for part in ("0.*", "2.*"))
    body.attach(optimizer)
    head.attach(optimizer)


def test_what_is_no_model():
    model = net()
    with pytest.raises(anchorhold.errors.ConfigurationError, match=r"model=SGD: expected a torch.nn.Module"):
        anchorhold.Guard(torch.optim.SGD(model.parameters(), lr=0.1), "SOS")


@pytest.mark.parametrize("options", [{"implicit": True}, anchorhold.GuardOptions, False])
def test_options_that_are_none(options):
    with pytest.raises(anchorhold.errors.ConfigurationError, match=r"options=.*: expected GuardOptions, as in"):
        anchorhold.Guard(net(), "SI", options=options)


def test_options_beside_the_other_arguments_are_told_where_they_go():
    with pytest.raises(TypeError, match=r"implicit=True: .* Give options=GuardOptions\(implicit=True\)\."):
        anchorhold.Guard(net(), "SI", implicit=True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'strenght'"):
        anchorhold.Guard(net(), "SI", strenght=1.0)
    assert "exchange_rate" in inspect.signature(anchorhold.Guard).parameters


def test_options_can_be_read_again():
    given = anchorhold.GuardOptions(space="weights", implicit=False, state_dtype=torch.bfloat16, state_device="cpu")
    guard = anchorhold.Guard(net().float(), "EWC", options=given)
    for each in dataclasses.fields(given):
        assert str(getattr(guard.options, each.name)) == str(getattr(given, each.name))


@pytest.mark.parametrize("group", ["world", 0, -100])
def test_what_is_no_process_group(group):
    with pytest.raises(anchorhold.errors.ConfigurationError, match=r"expected a torch\.distributed process group"):
        anchorhold.Guard(net(), "SI", options=anchorhold.GuardOptions(group=group))
    guard = anchorhold.Guard(net(), "SI")
    with pytest.raises(anchorhold.errors.ConfigurationError, match=r"expected a torch\.distributed process group"):
        guard.options.group = group
    guard.refresh()
    assert guard.options.group is None


def test_the_parts_of_a_guard_have_the_names_that_they_say_and_no_others():
    guard = anchorhold.Guard(net(), "SI")
    for name, part in {"implicit": "options", "observe": "gradients", "trace": "control", "matrices": "held"}.items():
        with pytest.raises(AttributeError, match=rf"no attribute '{name}': it is guard\.{part}\.{name}$"):
            getattr(guard, name)
    for part in (guard.options, guard.gradients, guard.control, guard.held):
        with pytest.raises(AttributeError):
            part.implict = True
    with pytest.raises(anchorhold.errors.ConfigurationError, match="path='x': expected a PathRecord"):
        guard.gradients.path = "x"


def test_calls_out_of_order():
    model = net()
    guard = anchorhold.Guard(model, "SI")
    unchanged(guard, guard.consolidate, anchorhold.errors.OrderError, "has seen no step")
    unchanged(
        guard,
        lambda: guard.gradients.observe(loss(model, batch(0))),
        anchorhold.errors.OrderError,
        r"gradients.observe\(\) before attach",
    )
    unchanged(
        guard, lambda: guard.gradients.independent(loss(model, batch(0))), anchorhold.errors.OrderError, "before attach"
    )
    unchanged(
        guard,
        lambda: guard.gradients.halves(loss(model, batch(0)), loss(model, batch(1))),
        anchorhold.errors.OrderError,
        "before attach",
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    with torch.no_grad():
        value = loss(model, batch(0))
    unchanged(guard, lambda: guard.gradients.observe(value), anchorhold.errors.OrderError, "has no gradient")
    train(model, optimizer)
    guard.consolidate()
    unchanged(guard, guard.consolidate, anchorhold.errors.OrderError, "since the last consolidation")


@pytest.mark.parametrize("measure", [anchorhold.SIU(), anchorhold.SIB(), anchorhold.SOS(alpha=1.0)])
def test_a_step_without_its_independent_gradient_is_refused_before_it_is_taken(measure):
    model = net()
    guard = anchorhold.Guard(model, measure)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    loss(model, batch(0)).backward()
    before = weights(model)
    unchanged(guard, optimizer.step, anchorhold.errors.OrderError, "independent gradient before every step")
    assert all(torch.equal(before[name], value) for name, value in weights(model).items())
    guard.gradients.independent(loss(model, batch(1)))
    optimizer.step()
    loss(model, batch(0)).backward()
    unchanged(guard, optimizer.step, anchorhold.errors.OrderError, "independent gradient")  # each one serves once


def test_unbiased_sos_asks_for_the_batch_size():
    model = net()
    guard = anchorhold.Guard(model, anchorhold.SOS(alpha="unbiased"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    loss(model, batch(0)).backward()
    guard.gradients.independent(loss(model, batch(1)))
    before = weights(model)
    unchanged(guard, optimizer.step, anchorhold.errors.ConfigurationError, "how many samples")
    assert all(torch.equal(before[name], value) for name, value in weights(model).items())


def test_data_that_is_missing():
    guard = consolidated(net())
    unchanged(guard, guard.consolidate, anchorhold.errors.BatchError, r"call consolidate\(batches\)")
    unchanged(guard, lambda: guard.consolidate([]), anchorhold.errors.BatchError, "there were no batches")
    unchanged(guard, lambda: guard.consolidate(iter([])), anchorhold.errors.BatchError, "used before")
    empirical = consolidated(net(), anchorhold.Fisher(labels="true"))
    x, _ = batch(0)
    unchanged(empirical, lambda: empirical.consolidate([x]), anchorhold.errors.BatchError, "needs the true label")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("measure", ["SI", "SOS"])
def test_a_gradient_that_is_not_finite_stops_the_step(measure, bad):
    model = net()
    guard = anchorhold.Guard(model, measure)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    train(model, optimizer)
    before = weights(model)
    loss(model, batch(0)).backward()
    model[2].weight.grad[0, 0] = bad
    unchanged(guard, optimizer.step, anchorhold.errors.NotFiniteError, r"gradient of '2.weight' .* at step 4")
    assert all(torch.equal(before[name], value) for name, value in weights(model).items())
    train(model, optimizer)
    guard.consolidate()


def test_importance_and_weights_that_are_not_finite_are_refused():
    model = net()
    guard = consolidated(model)
    x, y = batch(0)
    unchanged(
        guard, lambda: guard.consolidate([(x * float("nan"), y)]), anchorhold.errors.NotFiniteError, "outputs hold NaN"
    )
    with torch.no_grad():
        model[0].bias[0] = float("inf")
    static = anchorhold.Guard(model, "L2")
    unchanged(static, static.consolidate, anchorhold.errors.NotFiniteError, "weights '0.bias' are not finite")
    magnitude = anchorhold.Guard(model, "magnitude")
    unchanged(magnitude, magnitude.consolidate, anchorhold.errors.NotFiniteError, "not finite")


def test_a_task_can_be_started_again():
    model = net()
    guard = anchorhold.Guard(model, "SI")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    train(model, optimizer)
    guard.gradients.restart_task()
    with pytest.raises(anchorhold.errors.OrderError):
        guard.consolidate()


def test_measures_of_the_same_mean_share_its_computation():
    """The Fisher and its root differ only in what they make of the mean over samples; AF is another mean."""
    calls = []

    def forwards(watch):
        model = torch.nn.Sequential(torch.nn.Linear(4, 3))
        guard = anchorhold.Guard(model, anchorhold.Fisher(), watch=watch)
        calls.clear()
        model.register_forward_hook(lambda *_: calls.append(1))
        found = guard.consolidate([torch.randn(6, 4)])
        return len(calls), found

    alone, _ = forwards([])
    with_root, found = forwards([anchorhold.RootFisher()])
    assert with_root == alone
    torch.testing.assert_close(found["sqrtFisher"].importance["0.weight"], found["EWC"].importance["0.weight"].sqrt())
    assert forwards([anchorhold.AbsoluteFisher()])[0] == alone + 1  # whose plan it shares
    assert forwards([anchorhold.RootFisher(samples=3)])[0] > alone


def test_the_path_can_be_taken_over():
    model = torch.nn.Linear(3, 2)
    guard = anchorhold.Guard(model, anchorhold.SOS())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    model(torch.randn(5, 3)).square().mean().backward()
    optimizer.step()
    before = {name: state.clone() for name, state in guard.gradients.path.running["SOS"]["second_moment"].items()}
    guard.gradients.path = guard.gradients.path
    assert guard.gradients.path.steps == 1
    found = guard.consolidate()
    assert all(torch.equal(found["SOS"].raw[name], state) for name, state in before.items())
