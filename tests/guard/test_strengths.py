"""Strengths by pattern, and relative ones, against the penalty written out in float64."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.distributed import checkpoint

import anchorhold
from anchorhold.errors import AnchorholdWarning, ConfigurationError, NotFiniteError, StateError
from tests.guard.anchors.test_anchors import data, gradient, half_square, hessian, moved, put, regression, row
from tests.guard.helpers import batch, loss, net, train
from tests.helpers import grouped

CLOSE = {"rtol": 1e-10, "atol": 1e-12}
BY_PATTERN = {"0.*": 5.0, "*": 0.5}
WITH_BIASES = {"*.bias": 0.25, "0.weight": 5.0, "*": 1.0}


def strength_of(patterns, name):
    """The oracle's own reading: the first pattern whose beginning or end is the name's."""
    for pattern, c in patterns.items():
        if name.startswith(pattern.partition("*")[0]) and name.endswith(pattern.rpartition("*")[2]):
            return c
    raise AssertionError(name)


def after_two_tasks(model, strength, measure="EWC", **options):
    guard = anchorhold.Guard(model, measure, strength=strength, **grouped(**options))
    for seed in (1, 2):
        moved(model, 10 * seed)
        guard.consolidate([batch(seed)])
    return guard


def slopes_of(guard, model, **options):
    found = torch.autograd.grad(guard.penalty(**options), list(model.parameters()))
    return dict(zip(dict(model.named_parameters()), found, strict=True))


# Strengths by pattern


@pytest.mark.parametrize("decay", [1.0, 0.6])
@pytest.mark.parametrize("anchor", ["last", "mean"])
@pytest.mark.parametrize("slopes", [False, True])
def test_each_weight_has_the_strength_of_its_pattern(decay, anchor, slopes):
    if slopes and anchor == "last":
        pytest.skip("which is refused")
    model, c = regression(), {"weight": 0.7, "bias": 3.0}
    guard = anchorhold.Guard(
        model,
        anchorhold.Fisher(likelihood="gaussian"),
        strength=c,
        decay=decay,
        anchor=anchor,
        options=anchorhold.GuardOptions(gradient_term=slopes),
    )
    strengths = torch.cat([torch.full((p.numel(),), c[n], dtype=torch.float64) for n, p in model.named_parameters()])
    terms = []
    for seed in range(3):
        moved(model, seed)
        guard.consolidate([data(seed)])
        h, g = hessian(model, data(seed)).diagonal(), gradient(model, half_square(model, data(seed)))
        terms = [(decay * w, h, t, g) for w, h, t, g in terms] + [(1.0, h, row(model), g if slopes else 0 * g)]
    if anchor == "last":
        terms = [(w, h, terms[-1][2], g) for w, h, _, g in terms]

    def value(theta):
        return sum(w * (strengths * (h * (theta - t) + 2 * g) * (theta - t)).sum() for w, h, t, g in terms)

    def slope(theta):
        return sum(2 * w * strengths * (h * (theta - t) + g) for w, h, t, g in terms)

    constants = []
    for seed in (10, 11):
        moved(model, seed)
        own = guard.penalty()
        torch.testing.assert_close(gradient(model, own), slope(row(model)), **CLOSE)
        constants.append(own.detach() - value(row(model)))
    torch.testing.assert_close(constants[0], constants[1], **CLOSE)
    if anchor == "mean":  # the middle of all tasks is the same, however strongly each weight is held to it
        like = anchorhold.Guard(
            model, anchorhold.Fisher(likelihood="gaussian"), strength=1.0, decay=decay, anchor="mean"
        )
        for seed, (_, _, theta, _) in enumerate(terms):
            put(model, theta)
            like.consolidate([data(seed)])
        for name, theta in like.anchor.items():
            if not slopes:
                torch.testing.assert_close(guard.anchor[name], theta, **CLOSE)


@pytest.mark.parametrize("form", ["diagonal", "rotated", "kronecker"])
@pytest.mark.parametrize("options", [{}, {"anchor": "mean"}, {"anchor": "mean", "gradient_term": True}])
def test_in_every_form_and_around_every_centre(form, options):
    model = net()
    guard = after_two_tasks(model, BY_PATTERN, form=form, **options)
    plain = after_two_tasks(net(), 1.0, form=form, **options)
    for name, omega in plain.importance.items():  # what was measured is not what it is multiplied by
        torch.testing.assert_close(guard.importance[name], omega, **CLOSE)
    for name, r in plain.held.linear_term.items():
        torch.testing.assert_close(guard.held.linear_term[name], r, **CLOSE)
    moved(model, 3)
    put(plain._core.runtime.model, row(model))
    expected = slopes_of(plain, plain._core.runtime.model)
    for name, slope in slopes_of(guard, model).items():
        torch.testing.assert_close(slope, strength_of(BY_PATTERN, name) * expected[name], **CLOSE)
    parts = [{"0.*": 5.0, "*": 0.0}, {"0.*": 0.0, "*": 0.5}]
    values = []
    for part in parts:
        guard.strength = part
        values.append(guard.penalty())
    guard.strength = BY_PATTERN
    torch.testing.assert_close(guard.penalty(), sum(values), **CLOSE)


@pytest.mark.parametrize("form", ["diagonal", "rotated"])
@pytest.mark.parametrize("gradient_term", [False, True])
@pytest.mark.parametrize("closure", [False, True])
def test_steps_are_those_of_the_written_out_gradient(form, gradient_term, closure):
    model = net()
    options = {"form": form, "anchor": "mean", "gradient_term": gradient_term, "implicit": False}
    guard, other = after_two_tasks(model, BY_PATTERN, **options), net()
    plain = after_two_tasks(other, 1.0, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    guard.attach(optimizer)
    patterns = BY_PATTERN
    for step in range(6):
        if step == 3:  # in the middle of a task
            patterns = {"2.*": 4.0, "*": 1.5}
            guard.strength = patterns
        if step == 5:
            patterns = {"*": 3.0}
            guard.strength = 3.0
        pulls = slopes_of(plain, other)
        own = torch.autograd.grad(loss(other, batch(step)), list(other.parameters()))
        with torch.no_grad():
            for (name, parameter), g in zip(other.named_parameters(), own, strict=True):
                parameter.sub_(0.05 * (g + strength_of(patterns, name) * pulls[name]))

        def evaluate(step=step):
            optimizer.zero_grad()
            value = loss(model, batch(step))
            value.backward()
            return value

        if closure:
            optimizer.step(evaluate)
        else:
            evaluate()
            optimizer.step()
        torch.testing.assert_close(row(model), row(other), **CLOSE)


@pytest.mark.parametrize("measure", ["SI", "SOS"])
def test_what_is_measured_along_the_path_is_of_the_task_alone(measure):
    found = []
    for strength in (1.0, {"0.*": 1.0, "*": 1.0}, BY_PATTERN):
        model = net()
        guard = anchorhold.Guard(model, measure, strength=strength, from_scratch=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        guard.attach(optimizer)
        for task in range(2):
            train(model, optimizer, seed=10 * task)
            guard.consolidate()
        found.append((guard.importance, row(model)))
    assert torch.equal(found[0][1], found[1][1])
    assert all(torch.equal(omega, found[1][0][name]) for name, omega in found[0][0].items())
    assert not torch.equal(found[0][1], found[2][1])


def test_a_measure_whose_total_may_be_negative():
    model = net()
    guard = anchorhold.Guard(model, anchorhold.SI(clamp="total"), strength={"0.*": 2.0, "*": 0.5}, from_scratch=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=2.0)
    guard.attach(optimizer)
    train(model, optimizer, steps=9)
    guard.consolidate()
    train(model, optimizer, steps=2, seed=7)
    assert min(float(matrix.omega.min()) for matrix in guard._core.state.driving.total.values()) < 0
    expected = sum(
        strength_of({"0.*": 2.0, "*": 0.5}, name) * (omega.clamp(min=0) * (p - guard.anchor[name]) ** 2).sum()
        for (name, p), omega in zip(model.named_parameters(), guard.importance.values(), strict=True)
    )
    assert min(map(float, (omega.min() for omega in guard.importance.values()))) == 0
    torch.testing.assert_close(guard.penalty(), expected, **CLOSE)


def test_a_strength_of_zero_holds_nothing_there():
    model = net()
    guard = after_two_tasks(model, {"0.*": 0.0, "*": 2.0})
    moved(model, 3)
    slopes = slopes_of(guard, model)
    assert not slopes["0.weight"].any() and slopes["2.weight"].any()
    guard.strength = {"*": 0.0}
    assert guard.penalty() == 0
    guard.strength = {"*": 2.0}
    assert guard.penalty() > 0


def test_reading_and_setting():
    model = net()
    guard = anchorhold.Guard(model, "EWC", strength=BY_PATTERN)
    assert guard.strength == BY_PATTERN
    assert "strength 5 for '0.*', 0.5 for '*'" in str(guard)
    guard.consolidate([batch(0)])
    moved(model, 0)
    of_five = guard.penalty().item()
    guard.strength = 3
    assert guard.strength == 3.0 and "strength 3, pulling after steps if they are SGD's\n" in str(guard)
    plain = sum((o * (p - guard.anchor[n]) ** 2).sum() for (n, p), o in _pairs(model, guard))
    torch.testing.assert_close(guard.penalty(), 3 * plain, **CLOSE)
    guard.strength = BY_PATTERN
    assert guard.penalty().item() == of_five
    assert f"the penalty is {of_five:.3g}" in str(guard)


def _pairs(model, guard):
    return [((n, p), guard.importance[n]) for n, p in model.named_parameters()]


@pytest.mark.daily
@pytest.mark.parametrize(
    ("strength", "said"),
    [
        ({"0.*": 1.0}, "says nothing of the protected parameter '2.weight'"),
        ({"0.*": 1.0, "body.*": 2.0, "*": 1.0}, r"strength\['body.\*'\] matches no protected parameter"),
        ({"*": 1.0, "0.*": 2.0}, r"comes after '\*'"),
        ({}, "expected a number from 0"),
        ({1: 2.0}, "expected a number from 0"),
        ({"*": -1.0}, r"strength\['\*'\]=-1.0"),
        ({"*": float("nan")}, r"strength\['\*'\]=nan"),
        ({"*": "1"}, r"strength\['\*'\]"),
        ({"0.*": 1e-20, "*": 1e20}, "no more than 1e"),
        ("2", "expected a number from 0"),
    ],
)
def test_strengths_that_cannot_be_meant_are_refused(strength, said):
    with pytest.raises(ConfigurationError, match=said):
        anchorhold.Guard(net(), "EWC", strength=strength)
    model = net()
    guard = after_two_tasks(model, 2.0)
    moved(model, 3)
    before = guard.penalty()
    with pytest.raises(ConfigurationError, match=said):
        guard.strength = strength
    assert guard.strength == 2.0 and torch.equal(guard.penalty(), before)


@pytest.mark.parametrize("form", ["rotated", "kronecker", "dense", "lowrank"])
def test_a_matrix_has_one_strength(form):
    with pytest.raises(ConfigurationError, match=f"in the form '{form}' one matrix holds both"):
        anchorhold.Guard(net(), "EWC", strength=WITH_BIASES, form=form)
    anchorhold.Guard(net(), "EWC", strength={"0.weight": 2.0, "*": 2.0}, form=form)
    anchorhold.Guard(net(), "EWC", strength=WITH_BIASES)


def test_what_is_protected_later_needs_a_strength_too():
    model = nn.Sequential(net(), nn.Linear(3, 3).double())
    for parameter in model[1].parameters():
        parameter.requires_grad_(False)
    guard = anchorhold.Guard(model, "EWC", strength={"0.*": 2.0, "1.weight": 1.0})  # frozen ones count as there
    guard.consolidate([batch(0)])
    for parameter in model[1].parameters():
        parameter.requires_grad_(True)
    with pytest.raises(ConfigurationError, match=r"says nothing of the protected parameter '1.bias'"):
        guard.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    assert guard.tasks == 1 and guard.strength == {"0.*": 2.0, "1.weight": 1.0}


def test_folded_layers_have_one_strength():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)).double().eval()
    patterns = {"0.*": 2.0, "1.*": 2.0, "3.*": 0.5}
    guard = anchorhold.Guard(model, "EWC", strength=patterns, batch_norm="fold")
    guard.consolidate([batch(0)])
    plain = copy.deepcopy(guard)
    plain.strength = 1.0
    moved(model, 1)
    put(plain._core.runtime.model, row(model))
    expected = slopes_of(plain, plain._core.runtime.model)
    for name, slope in slopes_of(guard, model).items():
        torch.testing.assert_close(slope, strength_of(patterns, name) * expected[name], **CLOSE)
    split = anchorhold.Guard(model, "EWC", strength={"1.*": 1.0, "*": 2.0}, batch_norm="fold")
    with pytest.raises(ConfigurationError, match="batch_norm='fold' they are held as one"):
        split.consolidate([batch(0)])
    assert split.tasks == 0 and not split.anchor


def test_warnings_name_the_strength_of_the_weight():
    model = net()
    guard = after_two_tasks(model, {"0.*": 1.0, "2.*": 1e6}, implicit=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    with pytest.warns(AnchorholdWarning, match=r"strength=1e\+06 is too much for SGD .* a weight of '2\.") as told:
        train(model, optimizer, steps=1)
    largest = max(float(guard.importance[name].max()) for name in ("2.weight", "2.bias"))
    assert f"with importance {largest:.3g}" in str(told[0].message)
    fresh = anchorhold.Guard(net(), "EWC", strength=BY_PATTERN)
    optimizer = torch.optim.SGD(fresh._core.runtime.model.parameters(), lr=0.1)
    fresh.attach(optimizer)
    with pytest.warns(AnchorholdWarning, match=r"so strength=\{'0.\*': 5.0, '\*': 0.5\} has nothing to pull at"):
        train(fresh._core.runtime.model, optimizer, steps=1)


# Relative strengths


@pytest.mark.parametrize("form", ["diagonal", "rotated", "kronecker", "dense", "lowrank"])
@pytest.mark.parametrize("measure", ["EWC", "MAS", "sqrtFisher"])
def test_a_relative_strength_is_found_from_the_trace(form, measure):
    if measure != "EWC" and form in ("kronecker", "dense", "lowrank"):
        pytest.skip("of squares alone")
    model = net()
    guard = anchorhold.Guard(model, measure, relative_strength=0.3, form=form)
    assert guard.strength == 0 and guard.relative_strength == 0.3 and guard.penalty() == 0
    assert "relative strength 0.3, of which the first consolidation makes a strength" in str(guard)
    guard.consolidate([batch(0)])
    p = sum(parameter.numel() for parameter in model.parameters())
    trace = sum(float(matrix.trace()) for matrix in guard.held.matrices.values())
    c = 0.3 * p / trace
    assert guard.strength == pytest.approx(c, rel=1e-12)
    if form in ("diagonal", "rotated", "dense"):
        assert trace == pytest.approx(sum(float(omega.sum()) for omega in guard.importance.values()), rel=1e-10)
    assert f"relative strength 0.3, which is strength {c:g}" in str(guard)
    moved(model, 1)
    penalty = guard.penalty()
    assert penalty.item() > 0
    found = guard.strength
    guard.consolidate([batch(1)])
    assert guard.strength == found  # fixed from the first task on


def test_it_is_of_the_protected_weights_and_of_the_measure_that_holds():
    model = net()
    guard = anchorhold.Guard(model, "EWC", relative_strength=2.0, protect="2.*", watch=["MAS"])
    guard.consolidate([batch(0)])
    trace = sum(float(guard.importance[name].sum()) for name in ("2.weight", "2.bias"))
    assert guard.strength == pytest.approx(2.0 * 18 / trace, rel=1e-12)


def test_a_relative_strength_along_the_path_and_of_clamped_totals():
    model = net()
    guard = anchorhold.Guard(
        model,
        anchorhold.SI(clamp="total"),
        relative_strength=0.5,
        from_scratch=True,
        options=anchorhold.GuardOptions(implicit=False),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=2.0)
    guard.attach(optimizer)
    train(model, optimizer, steps=9)
    guard.consolidate()
    guard.detach()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    guard.attach(optimizer)
    totals = torch.cat([matrix.omega.flatten() for matrix in guard._core.state.driving.total.values()])
    assert (totals < 0).any()
    assert guard.strength == pytest.approx(0.5 * totals.numel() / float(totals.clamp(min=0).sum()), rel=1e-12)
    other = net()
    put(other, row(model))
    anchor, omega, c = guard.anchor, guard.importance, guard.strength
    for step in range(3):
        own = torch.autograd.grad(loss(other, batch(step)), list(other.parameters()))
        with torch.no_grad():
            for (name, p), g in zip(other.named_parameters(), own, strict=True):
                p.sub_(0.05 * (g + 2 * c * omega[name] * (p - anchor[name])))
    train(model, optimizer, steps=3)
    torch.testing.assert_close(row(model), row(other), **CLOSE)


def test_a_relative_strength_in_fewer_bits_is_of_what_was_measured():
    found = []
    for dtype in (None, torch.bfloat16):
        guard = anchorhold.Guard(
            net(), "EWC", relative_strength=1.0, options=anchorhold.GuardOptions(state_dtype=dtype)
        )
        guard.consolidate([batch(0)])
        found.append(guard.strength)
    assert found[0] == found[1]


def test_setting_a_strength_does_without_the_relative_one():
    guard = anchorhold.Guard(net(), "EWC", relative_strength=0.3)
    guard.strength = 7.0
    assert guard.relative_strength is None
    guard.consolidate([batch(0)])
    assert guard.strength == 7.0
    guard = anchorhold.Guard(net(), "EWC", relative_strength=0.3)
    guard.consolidate([batch(0)])
    guard.strength = {"0.*": 7.0, "*": 1.0}
    assert guard.relative_strength is None and guard.strength == {"0.*": 7.0, "*": 1.0}


@pytest.mark.parametrize("given", [0.0, -1.0, float("nan"), float("inf"), "1", True, {"*": 1.0}])
def test_relative_strengths_that_make_no_sense(given):
    with pytest.raises(ConfigurationError, match="relative_strength="):
        anchorhold.Guard(net(), "EWC", relative_strength=given)


def test_one_or_the_other():
    for strength in (1.0, 2.0, {"*": 1.0}):
        with pytest.raises(ConfigurationError, match="expected one of both"):
            anchorhold.Guard(net(), "EWC", strength=strength, relative_strength=1.0)
    with pytest.raises(ConfigurationError, match="fine-tune, which finds no importance"):
        anchorhold.Guard(net(), "fine-tune", relative_strength=1.0)


def test_a_trace_of_nothing_is_refused_and_nothing_is_lost():
    model = net()
    guard = anchorhold.Guard(model, "MAS", relative_strength=1.0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    before = guard.state_dict()
    with pytest.raises(NotFiniteError, match=r"add up to 0, so there is no strength .* nothing was consolidated"):
        guard.consolidate([torch.zeros(4, 4, dtype=torch.float64)], forward=lambda model, x: 0 * model(x))
    assert guard.tasks == 0 and not guard.anchor and guard.strength == 0
    assert guard.state_dict().keys() == before.keys()
    moved(model, 0)
    guard.consolidate([batch(0)])
    assert guard.strength > 0


def test_it_is_told_that_nothing_is_held_yet():
    model = net()
    guard = anchorhold.Guard(model, "EWC", relative_strength=0.3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    with pytest.warns(AnchorholdWarning, match=r"so relative_strength=0\.3 has nothing to pull at"):
        train(model, optimizer, steps=1)


# States


@pytest.mark.parametrize("settings", [{"strength": WITH_BIASES}, {"relative_strength": 0.3}])
@pytest.mark.parametrize("way", ["file", "dict"])
def test_they_are_saved_and_go_on_exactly(settings, way, tmp_path):
    model = net()
    guard = anchorhold.Guard(model, "EWC", **grouped(**settings))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    guard.consolidate([batch(0)])
    guard.attach(optimizer)
    train(model, optimizer, steps=2)
    guard.save(tmp_path / "guard.safetensors")
    other = copy.deepcopy(model)
    resumed = anchorhold.Guard(other, "EWC")  # as with a number, the state says how strongly
    if way == "file":
        resumed.load(tmp_path / "guard.safetensors")
    else:
        resumed.load_state_dict(guard.state_dict())
    assert resumed.strength == guard.strength and resumed.relative_strength == guard.relative_strength
    again = torch.optim.SGD(other.parameters(), lr=0.05)
    resumed.attach(again)
    for m, o in ((model, optimizer), (other, again)):
        train(m, o, steps=2, seed=5)
    assert torch.equal(row(model), row(other))
    resumed.consolidate([batch(3)])
    guard.consolidate([batch(3)])
    assert torch.equal(resumed.penalty(), guard.penalty()) and resumed.strength == guard.strength


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable or uninitialized")
@pytest.mark.parametrize("settings", [{"strength": WITH_BIASES}, {"relative_strength": 0.3}])
def test_a_distributed_checkpoint_has_them_in_their_order(settings, tmp_path):
    guard = anchorhold.Guard(net(), "EWC", **grouped(**settings))
    guard.consolidate([batch(0)])
    checkpoint.save({"guard": guard.state_dict()}, checkpoint_id=tmp_path, no_dist=True)
    resumed = anchorhold.Guard(net(), "EWC")
    state = {"guard": anchorhold.guard.blank_state_dict(resumed, checkpoint.FileSystemReader(tmp_path).read_metadata())}
    checkpoint.load(state, checkpoint_id=tmp_path, no_dist=True)
    resumed.load_state_dict(state["guard"])
    assert resumed.relative_strength == guard.relative_strength
    assert list(_items(resumed.strength)) == list(_items(guard.strength))


def _items(strength):
    return strength.items() if isinstance(strength, dict) else [strength]


def test_a_relative_one_may_be_saved_before_it_is_found(tmp_path):
    guard = anchorhold.Guard(net(), "EWC", relative_strength=0.3)
    guard.save(tmp_path / "guard.safetensors")
    resumed = anchorhold.Guard(net(), "EWC")
    resumed.load(tmp_path / "guard.safetensors")
    assert resumed.strength == 0 and resumed.relative_strength == 0.3
    for each in (guard, resumed):
        each.consolidate([batch(0)])
    assert resumed.strength == guard.strength > 0


def test_a_number_is_saved_as_it_was_before_there_were_others():
    guard = anchorhold.Guard(net(), "EWC", strength=2.0)
    assert not {"strengths", "relative_strength"} & guard.state_dict().keys()
    guard.strength = BY_PATTERN
    assert guard.state_dict()["strengths"] == [["0.*", 5.0], ["*", 0.5]]
    other = anchorhold.Guard(net(), "EWC", strength=BY_PATTERN)
    with pytest.warns(anchorhold.AnchorholdWarning, match=r"made with strength=\{.*has strength=2,"):
        other.load_state_dict(anchorhold.Guard(net(), "EWC", strength=2.0).state_dict())
    assert other.strength == 2.0


@pytest.mark.daily
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("strengths", {"*": 1.0}),
        ("strengths", [["*"]]),
        ("strengths", []),
        ("strengths", [["*", float("nan")]]),
        ("strengths", [["0.*", 1.0]]),
        ("strength", {"*": 1.0}),
        ("relative_strength", -1.0),
        ("relative_strength", None),
    ],
)
def test_damaged_states_are_refused_and_nothing_is_lost(key, value):
    model = net()
    guard = after_two_tasks(model, BY_PATTERN)
    moved(model, 0)
    before = guard.penalty()
    with pytest.raises(StateError):
        guard.load_state_dict({**guard.state_dict(), key: value})
    assert guard.strength == BY_PATTERN and torch.equal(guard.penalty(), before)


def test_copies_have_them_too():
    guard = after_two_tasks(net(), BY_PATTERN)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert copy.deepcopy(guard).strength == BY_PATTERN
