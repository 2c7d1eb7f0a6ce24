"""Holds beside the guard's own: before a step, after it, from data of their own; none of them seen by measures."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import anchorhold
from anchorhold.errors import ConfigurationError, NotFiniteError, StateError
from anchorhold.holds import HOLDS, Hold, register_hold
from tests.helpers import grouped

X = torch.linspace(-1, 1, 60, dtype=torch.float64).reshape(20, 3)
Y = torch.arange(20) % 2


class Halfway(Hold):
    """Acts after the step: brings every weight halfway back to the anchor."""

    def after_step(self, held):
        with torch.no_grad():
            for name, parameter in held.parameters.items():
                if name in held.anchor:
                    parameter.add_(held.anchor[name] - parameter, alpha=0.5)


class Rehearsal(Hold):
    """Acts before the step, with a batch: the loss of inputs that it was given, on labels that the old model gave."""

    runs_model = True

    def __init__(self, inputs, strength=1.0):
        super().__init__(strength)
        self.inputs, self.labels = inputs, None

    def end_task(self, held):
        with torch.no_grad():
            self.labels = held.model(self.inputs).argmax(1)

    def value(self, held):
        return None if self.labels is None else self.strength * F.cross_entropy(held.model(self.inputs), self.labels)

    def gradient(self, held):
        value = self.value(held)
        if value is None:
            return {}
        return dict(zip(held.parameters, torch.autograd.grad(value, list(held.parameters.values())), strict=True))

    def state(self):
        return {} if self.labels is None else {"labels": self.labels}

    def load_state(self, state):
        self.labels = state.get("labels")


for _name, _kind in {"toy-halfway": Halfway, "toy-rehearsal": Rehearsal}.items():
    if _name not in HOLDS:
        register_hold(_name)(_kind)


def linear():
    torch.manual_seed(0)
    return nn.Linear(3, 2).double()


def step(model, optimizer, x=X):
    optimizer.zero_grad()
    F.cross_entropy(model(x), Y).backward()
    optimizer.step()


def started(measure="SI", strength=2.0, **settings):
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = anchorhold.Guard(model, measure, strength=strength, **grouped(**settings))
    guard.attach(optimizer)
    step(model, optimizer)
    guard.consolidate([(X, Y)])
    return model, optimizer, guard


@pytest.mark.parametrize("measure", ["SI", "EWC"])
def test_a_hold_that_acts_after_the_step_moves_the_weights_once_more(measure):
    model, optimizer, guard = started(measure, holds=["toy-halfway"])
    plain, twin_optimizer, _ = started(measure)
    assert torch.equal(model.weight, plain.weight)  # there was nothing to hold to before
    step(model, optimizer)
    step(plain, twin_optimizer)
    torch.testing.assert_close(model.weight, (plain.weight + guard.anchor["weight"]) / 2)


def test_measures_see_the_optimizers_step_without_it():
    paths = []
    for holds in ([], ["toy-halfway"]):
        model, optimizer, guard = started(holds=holds)
        step(model, optimizer)
        paths.append(guard.gradients.path.running["SI"]["path"]["weight"].clone())
    assert torch.equal(*paths)


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize("measure", ["SI", "EWC"])
def test_a_hold_with_a_batch_adds_the_gradient_of_its_value(measure, closure):
    inputs = -2 * X
    model, optimizer, guard = started(measure, holds=[Rehearsal(inputs, strength=0.3)], implicit=False)
    with torch.no_grad():
        model.weight.mul_(-1)
    twin = copy.deepcopy(model)
    labels = guard.options.holds[0].labels
    loss = F.cross_entropy(twin(X), Y) + 0.3 * F.cross_entropy(twin(inputs), labels)
    for name, parameter in twin.named_parameters():
        loss = loss + 2.0 * (guard.importance[name] * (parameter - guard.anchor[name]).square()).sum()
    expected = torch.autograd.grad(loss, list(twin.parameters()))
    before = [p.detach().clone() for p in model.parameters()]
    if closure:

        def evaluate():
            optimizer.zero_grad()
            value = F.cross_entropy(model(X), Y)
            value.backward()
            return value

        torch.testing.assert_close(optimizer.step(evaluate), loss.detach())
    else:
        step(model, optimizer)
    for parameter, old, gradient in zip(model.parameters(), before, expected, strict=True):
        torch.testing.assert_close(parameter.detach(), old - 0.1 * gradient)
    assert guard.penalty().requires_grad


def test_measures_see_the_tasks_gradient_and_so_does_the_user():
    seconds = []
    for holds in ([], [Rehearsal(-X, strength=5.0)]):
        model, optimizer, guard = started("SOS", holds=holds)
        step(model, optimizer)
        seconds.append(guard.gradients.path.running["SOS"]["second_moment"]["weight"].clone())
    assert torch.equal(*seconds)
    model, optimizer, guard = started("SI", strength=0.0, holds=[Rehearsal(-X, strength=5.0)])
    F.cross_entropy(model(X), Y).backward()
    own = model.weight.grad
    values = own.clone()
    optimizer.step()
    assert model.weight.grad is own and torch.equal(own, values)


def test_a_loss_scale_is_the_holds_too():
    """A fused optimizer unscales by itself, so what is added has to be scaled as the gradient is."""

    def moved(scale):
        model = linear().float()
        guard = anchorhold.Guard(model, "EWC", strength=2.0, holds=[Rehearsal(-X.float())])
        guard.consolidate([(X.float(), Y)])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
        guard.attach(optimizer)
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(scale), torch.tensor(0.0)
        with torch.no_grad():
            model.weight.mul_(-1)
        (scale * F.cross_entropy(model(X.float()), Y)).backward()
        optimizer.step()
        return model.weight.detach()

    torch.testing.assert_close(moved(256.0), moved(1.0))


def test_its_state_travels_with_the_guards(tmp_path):
    _, _, guard = started(holds=[Rehearsal(X)])
    guard.save(tmp_path / "state")
    other = anchorhold.Guard(linear(), "SI", holds=[Rehearsal(X)])
    other.load(tmp_path / "state")
    assert torch.equal(other.options.holds[0].labels, guard.options.holds[0].labels)
    with pytest.raises(StateError, match="holds="):
        anchorhold.Guard(linear(), "SI").load(tmp_path / "state")
    _, _, plain = started()
    plain.save(tmp_path / "plain")
    with pytest.raises(StateError, match="holds="):
        anchorhold.Guard(linear(), "SI", holds=["toy-halfway"]).load(tmp_path / "plain")


def test_a_hold_that_refuses_a_task_leaves_all_as_they_were():
    class Refusing(Hold):
        name = "refusing"

        def end_task(self, held):
            assert held.anchor["weight"] is not None and held.importance["weight"].omega is not None
            raise ConfigurationError("not this one")

    kept = Rehearsal(X)
    model, optimizer, guard = started(holds=[kept])
    guard._core.options.holds.append(Refusing())
    labels, anchor = kept.labels.clone(), guard.anchor["weight"].clone()
    kept.inputs = -X
    step(model, optimizer)
    with pytest.raises(ConfigurationError, match="not this one"):
        guard.consolidate()
    assert guard.tasks == 1 and guard.gradients.path.steps == 1
    assert torch.equal(kept.labels, labels) and torch.equal(guard.anchor["weight"], anchor)


def test_a_step_that_is_skipped_pulls_nothing():
    model, _, guard = started("EWC", holds=["toy-halfway"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    guard.attach(optimizer)
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(1.0), torch.tensor(1.0)
    with torch.no_grad():
        model.weight.add_(1.0)
    before = model.weight.detach().clone()
    F.cross_entropy(model(X), Y).backward()
    optimizer.step()
    assert torch.equal(model.weight, before)


def test_observing_alone_pulls_nothing():
    model, optimizer, guard = started("EWC", holds=["toy-halfway"])
    guard.attach(optimizer, hold=False)
    twin = copy.deepcopy(model)
    step(model, optimizer)
    step(twin, torch.optim.SGD(twin.parameters(), lr=0.1))
    torch.testing.assert_close(model.weight, twin.weight)


@pytest.mark.parametrize(
    ("holds", "message"),
    [
        (["toy-halfwey"], r"No hold is called 'toy-halfwey'\. Did you mean 'toy-halfway'"),
        ([Halfway], "with its parentheses"),
        ("toy-halfway", "expected a list of holds"),
        (["toy-halfway", "toy-halfway"], "each of them once"),
        ([3], "holds has int"),
    ],
)
def test_what_is_no_list_of_holds_is_refused(holds, message):
    with pytest.raises(ConfigurationError, match=message):
        anchorhold.Guard(linear(), "SI", holds=holds)


def test_a_strength_that_makes_no_sense_is_refused():
    with pytest.raises(ConfigurationError, match="strength=-1"):
        Halfway(strength=-1)


class Constant(Hold):
    """Pulls every weight by the same number."""

    name = "constant"

    def __init__(self, pull, strength=1.0):
        super().__init__(strength)
        self.pull = pull

    def gradient(self, held):
        return {name: torch.full_like(parameter, self.pull) for name, parameter in held.parameters.items()}


class Scripted(Hold):
    """Answers what it is told."""

    name = "scripted"

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def gradient(self, held):
        return self.answer()


@pytest.mark.parametrize("measure", ["SOS", "SI", "EWC"])
def test_a_hold_that_raises_has_changed_nothing_and_the_step_can_be_tried_again(measure):
    def raising():
        raise KeyError("not today")

    weights, states = [], []
    for fails in (True, False):
        hold = Scripted(dict)
        model, optimizer, guard = started(measure, holds=[hold])
        optimizer.zero_grad()
        F.cross_entropy(model(X), Y).backward()
        if fails:
            hold.answer = raising
            with pytest.raises(KeyError, match="not today"):
                optimizer.step()
            hold.answer = dict
        optimizer.step()
        weights.append(model.weight.detach().clone())
        states.append(guard.state_dict()["tensors"])
    assert torch.equal(*weights)
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[1])


@pytest.mark.parametrize("measure", ["SI", "EWC"])
def test_shared_and_expanded_gradients_are_pulled_once(measure):
    pair = nn.ParameterList([nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))])
    optimizer = torch.optim.SGD(pair.parameters(), lr=1.0)
    guard = anchorhold.Guard(pair, "SI" if measure == "SI" else "L2", strength=0.0, holds=[Constant(1.0)])
    guard.attach(optimizer)
    pair[0].grad = pair[1].grad = torch.full((3,), 10.0)
    pair[2].grad = torch.full((1,), 10.0).expand(3)
    optimizer.step()
    assert [parameter.tolist() for parameter in pair] == [[-11.0] * 3] * 3


def test_a_parameter_without_a_gradient_is_pulled_measured_and_left_without():
    pair = nn.ParameterList([nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))])
    optimizer = torch.optim.SGD(pair.parameters(), lr=1.0)
    guard = anchorhold.Guard(pair, "SI", strength=0.0, holds=[Constant(3.0)])
    guard.attach(optimizer)
    pair[0].sum().backward()
    optimizer.step()
    assert pair[1].tolist() == [-3.0] * 2 and pair[1].grad is None
    assert (
        torch.equal(guard._core.task.start["1"], torch.zeros(2)) and "1" in guard.gradients.path.running["SI"]["path"]
    )


def test_a_pull_beyond_float16_stays_a_number():
    model = linear().half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    guard = anchorhold.Guard(model, "L2", strength=0.0, holds=[Constant(100.0)])
    guard.attach(optimizer)
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(65536.0), torch.tensor(0.0)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())


@pytest.mark.daily
@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (lambda: None, ConfigurationError, "returned a NoneType as its gradient"),
        (lambda: {"weight": torch.ones(1)}, ConfigurationError, r"of shape \(1,\) for 'weight', which has \(2, 3\)"),
        (lambda: {"weight": 1.0}, ConfigurationError, "of shape float for 'weight'"),
        (lambda: {"wieght": torch.ones(2, 3)}, ConfigurationError, "for 'wieght', which is no protected parameter"),
        (lambda: {"weight": torch.full((2, 3), torch.nan)}, NotFiniteError, "of the hold 'scripted' for 'weight'"),
    ],
)
def test_what_is_no_gradient_is_refused_before_anything_has_changed(answer, error, message):
    model, optimizer, guard = started("SOS", holds=[Scripted(dict)])
    guard.options.holds[0].answer = answer
    optimizer.zero_grad()
    F.cross_entropy(model(X), Y).backward()
    before, grad = model.weight.detach().clone(), model.weight.grad.clone()
    with pytest.raises(error, match=message):
        optimizer.step()
    assert (
        torch.equal(model.weight, before) and torch.equal(model.weight.grad, grad) and guard.gradients.path.steps == 0
    )


class Counting(Hold):
    """Remembers in place, and refuses states of another kind."""

    def __init__(self, name, refuses=False):
        super().__init__()
        self.name, self.refuses, self.count = name, refuses, torch.zeros(())

    def end_task(self, held):
        self.count.add_(1)
        if self.refuses:
            raise ConfigurationError("not this one")

    def state(self):
        return {"count": self.count}

    def load_state(self, state):
        self.count = state["count"].clone()


def test_holds_that_remember_in_place_are_as_they_were_too():
    first, second = Counting("first"), Counting("second", refuses=True)
    guard = anchorhold.Guard(linear(), "L2", holds=[first, second])
    with pytest.raises(ConfigurationError, match="not this one"):
        guard.consolidate()
    assert first.count == 0 and second.count == 0 and guard.tasks == 0


def test_a_state_that_one_hold_refuses_is_taken_by_none():
    saved = anchorhold.Guard(linear(), "L2", holds=[Counting("first"), Counting("second")])
    saved.consolidate()
    state = saved.state_dict()
    del state["tensors"]["hold/second/count"]
    state["tensor_count"] -= 1  # as a hold of that name would have written it that keeps nothing
    guard = anchorhold.Guard(linear(), "L2", holds=[Counting("first"), Counting("second")])
    with pytest.raises(StateError, match=r"The hold 'second' cannot go on from this state.*KeyError"):
        guard.load_state_dict(state)
    assert guard.options.holds[0].count == 0 and guard.tasks == 0


def test_a_hold_without_a_name_is_told_how_it_gets_one():
    with pytest.raises(ConfigurationError, match=r"has the name ''.*register_hold"):
        anchorhold.Guard(linear(), "L2", holds=[Hold()])


def test_weights_that_a_hold_spoils_are_told_as_its_own():
    class Spoiling(Hold):
        name = "spoiling"

        def after_step(self, held):
            held.parameters["bias"].fill_(torch.nan)

    with pytest.raises(NotFiniteError, match="The hold 'spoiling' left a NaN or an infinity in the weights 'bias'"):
        started(holds=[Spoiling()])


def test_a_value_that_is_no_number_is_told():
    class Valued(Hold):
        name = "valued"

        def value(self, held):
            return 1.5

    with pytest.raises(ConfigurationError, match="has a value of type float; expected a tensor of one number"):
        started(holds=[Valued()])[2].penalty()
