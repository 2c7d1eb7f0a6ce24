"""Measures that are not the paper's: several states, some of which last, and totals of every kind."""

import copy
import dataclasses
from functools import partial
from typing import ClassVar

import pytest
import torch
from torch import nn

import anchorhold
from anchorhold.errors import ConfigurationError
from anchorhold.guard.stepping import bundles
from anchorhold.measures import register_measure
from anchorhold.measures.base import Finished, Needs
from tests import helpers

X = torch.linspace(-1, 1, 60, dtype=torch.float64).reshape(20, 3)


@dataclasses.dataclass(frozen=True)
class Walk(anchorhold.measures.PathMeasure):
    """Two states, one of which lasts; each scaled by its largest over the network; every third step counts twice."""

    choose_when: ClassVar[str] = "never"
    kind: str = "replace"

    @property
    def needs(self):
        return Needs(gradient=True, step=True, number=True)

    @property
    def running(self):
        return {"far": "task", "size": "lasting"}

    @property
    def total(self):
        return self.kind

    def update_(self, states, seen):
        states["far"].add_(seen.step.abs())
        states["size"].add_(seen.gradient.abs(), alpha=2.0 if seen.number % 3 == 0 else 1.0)

    def importance(self, states, displacement, steps):
        raise AssertionError("it is finished as a whole")

    def finish(self, task):
        far = {name: task.states(name)["far"] for name in task.parameters}
        size = {name: task.states(name)["size"] for name in task.parameters}
        scales = task.largest(far), task.largest(size)
        found = {name: far[name] / scales[0] + size[name] / scales[1] for name in far}
        return Finished(found, {"size": {name: value / 2 for name, value in size.items()}})


network = partial(helpers.network, 3, 4, 2)


def by_hand(model, tasks, kind, strength=0.0):
    """Return what Walk finds, from its words."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    names = [name for name, _ in model.named_parameters()]
    size = dict.fromkeys(names, 0.0)
    totals = []
    for task in range(tasks):
        far = dict.fromkeys(names, 0.0)
        for step in range(4):
            optimizer.zero_grad()
            model((1 + task) * X).square().mean().backward()
            before = {name: p.detach().clone() for name, p in model.named_parameters()}
            optimizer.step()
            for name, p in model.named_parameters():
                far[name] = far[name] + (p.detach() - before[name]).abs()
                size[name] = size[name] + (2 if step % 3 == 0 else 1) * p.grad.abs()
        largest = max(float(v.max()) for v in far.values()), max(float(v.max()) for v in size.values())
        totals.append({name: far[name] / largest[0] + size[name] / largest[1] for name in names})
        size = {name: value / 2 for name, value in size.items()}
    if kind == "replace":
        return totals[-1]
    summed = {name: sum(total[name] for total in totals) for name in names}
    return {name: value / (tasks if kind == "average" else 1) for name, value in summed.items()}


@pytest.mark.parametrize("small", [bundles.SMALL, 0], ids=["rows", "alone"])
@pytest.mark.parametrize("kind", ["add", "replace", "average"])
def test_its_states_and_totals_are_those_of_its_definition(kind, small, monkeypatch, tmp_path):
    monkeypatch.setattr(bundles, "SMALL", small)
    expected = by_hand(network(), 3, kind)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = anchorhold.Guard(model, Walk(kind), strength=0.0)
    guard.attach(optimizer)
    for task in range(3):
        for step in range(4):
            if (task, step) == (1, 2):  # in the middle of a task, with a lasting state from before it
                guard.save(tmp_path / "state")
                guard.detach()
                guard = anchorhold.Guard(model, Walk(kind), strength=0.0)
                guard.load(tmp_path / "state")
                guard.attach(optimizer)
            optimizer.zero_grad()
            model((1 + task) * X).square().mean().backward()
            optimizer.step()
        guard.consolidate()
    for name, value in expected.items():
        torch.testing.assert_close(guard.importance[name], value)


def test_a_copy_goes_on_by_itself():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = anchorhold.Guard(model, Walk(), strength=0.0)
    guard.attach(optimizer)
    model(X).square().mean().backward()
    optimizer.step()
    with pytest.warns(anchorhold.AnchorholdWarning, match="attached to nothing"):
        twin = copy.deepcopy(guard)
    size = twin.gradients.path.running["Walk"]["size"]["0.weight"].clone()
    optimizer.step()
    assert torch.equal(twin.gradients.path.running["Walk"]["size"]["0.weight"], size)
    assert not torch.equal(guard.gradients.path.running["Walk"]["size"]["0.weight"], size)


def broken(change):
    @dataclasses.dataclass(frozen=True)
    class Broken(anchorhold.measures.WeightMeasure):
        choose_when: ClassVar[str] = "never"

        def importance(self, parameter):
            return torch.ones_like(parameter)

        def finish(self, task):
            return Finished(*change(super().finish(task).importance))

    return Broken()


@pytest.mark.daily
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: ({**found, "0.weight": torch.ones(3)},), r"of shape \(3,\) for '0.weight', which has \(4, 3\)"),
        (lambda found: ({**found, "0.weight": 1.0},), r"of shape float for '0.weight'"),
        (lambda found: ({k: v for k, v in found.items() if k != "2.bias"},), r"lacks 2\.bias"),
        (lambda found: ({**found, "3.bias": found["2.bias"]},), r"has an unknown 3\.bias"),
        (lambda found: (found, {"size": {}}), r"a state 'size' to be kept; those of its that last are \[\]"),
    ],
)
def test_what_does_not_fit_the_parameters_is_refused_and_nothing_changes(change, message):
    guard = anchorhold.Guard(network(), broken(change))
    with pytest.raises(ConfigurationError, match=message):
        guard.consolidate()
    assert guard.tasks == 0 and not guard.anchor


def test_one_that_is_registered_works_by_name():
    @register_measure("own-magnitude")
    @dataclasses.dataclass(frozen=True)
    class Own(anchorhold.measures.WeightMeasure):
        power: float = 1.0
        choose_when: ClassVar[str] = "never"

        def importance(self, parameter):
            return parameter.abs() ** self.power

    guard = anchorhold.Guard(network(), "own-magnitude")
    assert guard.measures == {"own-magnitude": Own()}
    assert anchorhold.measures.measure("Own_Magnitude", power=2.0) == Own(2.0)
    with pytest.raises(ConfigurationError, match=r"'ownmagnitud'\. Did you mean 'own-magnitude'"):
        anchorhold.measures.measure("ownmagnitud")
    with pytest.raises(ConfigurationError, match="called 'own-magnitude' already"):
        register_measure("OWN-magnitude")(Walk)


def test_one_that_cannot_be_made_or_has_another_name_is_not_registered():
    @dataclasses.dataclass(frozen=True)
    class NoDefault(anchorhold.measures.WeightMeasure):
        power: float
        choose_when: ClassVar[str] = "never"

        def importance(self, parameter):
            return parameter

    with pytest.raises(ConfigurationError, match="cannot be made without settings"):
        register_measure("no-default")(NoDefault)

    class Named(anchorhold.SI):
        @property
        def name(self):
            return "named"

    with pytest.raises(ConfigurationError, match="calls itself 'named' was registered as 'other'"):
        register_measure("other")(Named)
    with pytest.raises(ConfigurationError, match="expected a class of measures"):
        register_measure("other")(anchorhold.SI())
    with pytest.raises(ConfigurationError, match="expected a text without spaces"):
        register_measure("two words")(Walk)


@dataclasses.dataclass(frozen=True)
class Sized(anchorhold.measures.WeightMeasure):
    """The weights themselves, as they are."""

    choose_when: ClassVar[str] = "never"
    kind: str = "add"

    @property
    def total(self):
        return self.kind

    def importance(self, parameter):
        return parameter


@pytest.mark.parametrize("size", [3, bundles.SMALL + 1])
def test_what_is_given_back_as_it_was_got_does_not_go_on_changing(size):
    model = nn.ParameterList([nn.Parameter(torch.ones(size)), nn.Parameter(torch.ones(2))])
    guard = anchorhold.Guard(model, Sized())
    guard.consolidate()
    with torch.no_grad():
        model[0].add_(5.0)
    assert bool((guard.importance["0"] == 1).all())


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_an_average_is_over_the_tasks_that_a_parameter_was_in(decay, tmp_path):
    model = nn.ParameterList([nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2), requires_grad=False)])
    guard = anchorhold.Guard(model, Sized("average"), decay=decay)
    values = (1.0, 4.0, 10.0)
    for task, value in enumerate(values):
        model[1].requires_grad_(task > 0)
        with torch.no_grad():
            for parameter in model:
                parameter.fill_(value)
        guard.refresh()
        guard.consolidate()
        guard.save(tmp_path / "state")
        guard.load(tmp_path / "state")
    ages = [decay**age for age in (2, 1, 0)]
    both = sum(w * v for w, v in zip(ages, values, strict=True)) / sum(ages)
    late = sum(w * v for w, v in zip(ages[1:], values[1:], strict=True)) / sum(ages[1:])
    assert guard.importance["0"][0].item() == pytest.approx(both)
    assert guard.importance["1"][0].item() == pytest.approx(late)


def test_a_parameter_that_rests_for_a_task_has_its_lasting_states():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = anchorhold.Guard(model, Walk(), strength=0.0)
    guard.attach(optimizer)
    for task in range(2):
        model[2].requires_grad_(task == 0)
        optimizer.zero_grad()
        model(X).square().mean().backward()
        optimizer.step()
        found = guard.consolidate()["Walk"].importance
    assert bool((found["2.weight"] > 0).any())  # what lasts of the first task


def incomplete(**parts):
    return dataclasses.dataclass(frozen=True)(
        type("Incomplete", (anchorhold.measures.Measure,), {"finish": lambda *_: None, **parts})
    )()


@pytest.mark.daily
@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"needs": Needs(gradient=True)}, "expected one derived from PathMeasure"),
        ({"needs": Needs(data=True)}, "expected one derived from SampleMeasure"),
        ({"needs": Needs(data=True, step=True)}, "of one or the other"),
        ({"total": "sum"}, "total='sum'; expected 'add', 'replace' or 'average'"),
        ({"running": {"far": "forever"}}, "each to be 'task' or 'lasting'"),
        ({"name": "a/b"}, "one with '/' in it"),
    ],
)
def test_parts_that_do_not_fit_together_are_told_at_once(parts, message):
    with pytest.raises(ConfigurationError, match=message):
        anchorhold.Guard(network(), incomplete(**parts))


def test_a_path_measure_without_a_state_is_told_at_once():
    class Stateless(Walk):
        running: ClassVar = {}

    with pytest.raises(ConfigurationError, match="has no running state"):
        anchorhold.Guard(network(), Stateless())


def test_an_importance_below_0_is_refused_unless_the_total_is_clamped():
    @dataclasses.dataclass(frozen=True)
    class Signed(Sized):
        clamps: bool = False

        @property
        def clamps_total(self):
            return self.clamps

    with pytest.raises(ConfigurationError, match=r"importance of -.*expected none below 0.*clamps_total"):
        anchorhold.Guard(network(), Signed()).consolidate()
    guard = anchorhold.Guard(network(), Signed(clamps=True))
    guard.consolidate()
    assert all(bool((omega >= 0).all()) for omega in guard.importance.values())


@pytest.mark.parametrize("given", [None, {}], ids=str)
def test_what_is_not_finished_is_told(given):
    with pytest.raises(ConfigurationError, match=r"finish\(\) returned a .*expected Finished\(importance\)"):
        anchorhold.Guard(network(), incomplete(finish=lambda *_: given)).consolidate()


@pytest.mark.parametrize("register", [anchorhold.register_measure, anchorhold.register_form, anchorhold.register_hold])
def test_a_decorator_without_its_name_is_refused(register):
    with pytest.raises(ConfigurationError, match=r"was given Walk; expected a name first: @register_\w+\(.my-walk"):
        register(Walk)
