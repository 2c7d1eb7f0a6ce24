"""The table of families: its formulas, its verdicts, and that it can say WRONG."""

import json
import runpy
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.families import brute_force, measuring, optimisers, trainers
from benchmarks.families.everything import rows_of, trials, wanted
from benchmarks.families.family import Case
from benchmarks.families.measuring import measured
from benchmarks.families.optimisers.judging import Trained, plain
from benchmarks.families.table import Row, counts, markdown, write
from benchmarks.families.verdicts import (
    CRASHED,
    FALLBACK,
    NOT_INSTALLED,
    NOT_RUN,
    REFUSED,
    RIGHT,
    RIGHTLY_REFUSED,
    WARNED,
    WRONG,
    Outcome,
    attempted,
    worst,
)
from tests import oracles

FAST = {
    "MLP": RIGHT,
    "CNN": RIGHT,
    "regression": RIGHT,
    "Llama": RIGHT,
    "GCN": RIGHT,
    "neural ODE": RIGHT,
    "weight norm": FALLBACK,
    "RNN": FALLBACK,
    "SimCLR": RIGHTLY_REFUSED,
    "SGD, plain": RIGHT,
    "Adam with a closure": RIGHT,
    "overwrites gradients": RIGHT,
    "maximize": RIGHTLY_REFUSED,
}


def of_name(name):
    return next(trial for trial in trials() if trial.family.name == name)


def classifier():
    return Case(
        nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), torch.randn(4, 4), torch.tensor([0, 1, 2, 0])
    )


@pytest.mark.parametrize("name", FAST)
def test_the_verdict_on_some_families(name):
    family, judge = of_name(name)
    outcome = attempted(lambda: judge(family.make))
    assert outcome.verdict == FAST[name], outcome
    assert family.what
    if outcome.verdict in (RIGHT, FALLBACK):
        assert 0 <= outcome.difference <= 1e-8


def test_brute_force_is_that_of_the_tests():
    torch.manual_seed(0)
    case = classifier()
    model, inputs = case.model.double(), case.inputs.double()
    found = brute_force.of_classes(model, inputs, case.targets, brute_force.call)
    data = oracles.one_by_one(inputs, case.targets)
    for name, scores, phi in (
        ("Fisher", oracles.every_label, torch.square),
        ("empirical Fisher", oracles.true_label, torch.square),
        ("AF", oracles.every_label, torch.abs),
        ("MAS", oracles.squared_norm, torch.abs),
    ):
        for key, value in oracles.importance(model, data, scores, phi).items():
            torch.testing.assert_close(found[name][key], value, rtol=1e-10, atol=1e-14)


def test_brute_force_of_values_and_of_labels_that_are_0_or_1():
    model, inputs = nn.Linear(3, 2).double(), torch.randn(4, 3).double()
    targets = torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0], [1.0, 0.0]]).double()
    z = model(inputs).detach()
    of_values = brute_force.of_numbers(model, inputs, 2 * targets, brute_force.call, binary=False)
    torch.testing.assert_close(of_values["Fisher"]["weight"], inputs.square().mean(0).expand(2, 3))
    torch.testing.assert_close(of_values["empirical Fisher"]["bias"], (z - 2 * targets).square().mean(0))
    of_labels = brute_force.of_numbers(model, inputs, targets, brute_force.call, binary=True)
    p = z.sigmoid()
    torch.testing.assert_close(of_labels["Fisher"]["bias"], (p * (1 - p)).mean(0))
    torch.testing.assert_close(of_labels["empirical Fisher"]["bias"], (p - targets).square().mean(0))


@pytest.mark.parametrize("mistake", ["square of the mean", "one weight", "one parameter missing", "not a number"])
def test_a_wrong_measure_is_called_wrong(mistake):
    def wrong(measure, model, parameters, batches, forward):
        found = measured(measure, model, parameters, batches, forward)
        if mistake == "one weight":
            found.values["0.weight"][1, 2] *= 1 + 1e-6
        elif mistake == "one parameter missing":
            del found.values["2.bias"]
        elif mistake == "not a number":
            found.values["0.bias"][0] = torch.nan
        elif measure.name == "EWC-empirical":
            inputs, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
            loss = F.cross_entropy(model(inputs), targets)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            found.values = dict(zip(found.values, [g.square() for g in gradients], strict=True))
        return found

    assert measuring.judge(classifier).verdict == RIGHT
    outcome = measuring.judge(classifier, wrong)
    assert outcome.verdict == WRONG
    assert outcome.notes


def test_an_error_is_a_refusal_only_if_it_is_the_librarys():
    def broken(*_):
        raise RuntimeError("shapes cannot be multiplied")

    assert measuring.judge(classifier, broken).verdict == CRASHED

    outcome = measuring.judge(of_name("actor-critic as it is").family.make)
    assert outcome.verdict == REFUSED
    assert any("BatchError" in note for note in outcome.notes)


def test_samples_that_depend_on_each_other_must_not_be_measured_as_if_they_did_not():
    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, 2)

        def forward(self, x):
            return self.head(x + x.mean(0))

    def mixing():
        return Case(Centred(), torch.randn(4, 3), torch.tensor([0, 1, 0, 1]), mixes=True)

    assert measuring.judge(mixing).verdict == RIGHTLY_REFUSED

    def blind(measure, model, parameters, batches, forward):
        model = model.head  # as if nothing were mixed
        found = measured(measure, model, None, batches, None)
        found.values = {f"head.{name}": value for name, value in found.values.items()}
        return found

    assert measuring.judge(mixing, blind).verdict == WRONG


def test_measuring_that_leaves_a_trace_is_wrong():
    def careless(measure, model, parameters, batches, forward):
        found = measured(measure, model, parameters, batches, forward)
        with torch.no_grad():
            model[0].bias.mul_(2)
        return found

    outcome = measuring.judge(classifier, careless)
    assert outcome.verdict == WRONG


class Blind(torch.optim.SGD):
    """Steps that no hook sees."""

    def quietly(self):
        with torch.no_grad():
            for p in self.param_groups[0]["params"]:
                p.sub_(p.grad, alpha=0.1)


def test_an_optimiser_that_is_not_seen_is_called_wrong_or_warned_of():
    def step(optimizer, loss):
        optimizer.zero_grad()
        loss().backward()
        optimizer.quietly()

    outcome = optimisers.judge(lambda: Trained(lambda m: Blind(m.parameters(), lr=0.1), step, 0.1))
    assert outcome.verdict in (WRONG, WARNED)
    assert any("100 % as far" in note for note in outcome.notes)
    seen = optimisers.judge(lambda: Trained(lambda m: Blind(m.parameters(), lr=0.1), plain, 0.1))
    assert seen.verdict == RIGHT


def test_what_is_missing_or_does_not_run_is_said_to_be():
    def missing():
        raise ImportError("No module named 'schedulefree'")

    assert attempted(lambda: measuring.judge(missing)) == Outcome(
        NOT_INSTALLED, None, ("No module named 'schedulefree'",)
    )
    assert attempted(lambda: measuring.judge(lambda: Case(nn.Linear(3, 2), torch.randn(4, 5)))).verdict == NOT_RUN
    assert trainers.judge(lambda: ("tests/benchmarks", "a word that no test has" + "!")).verdict == NOT_RUN
    assert worst([Outcome(RIGHT, 1e-16), Outcome(WRONG, 0.5, ("a",)), Outcome(RIGHT, None, ("a",))]) == Outcome(
        WRONG, 0.5, ("a",)
    )


def test_the_table(tmp_path):
    rows = [
        Row("Vision", "ViT", "patches", Outcome(RIGHT, 1.4e-15)),
        Row("Vision", "Swin", "windows", Outcome(FALLBACK, 4e-16, ("torch.func: bias",))),
        Row("Optimisers", "SAM", "two steps", Outcome(WRONG, 0.7, ("Fisher: x", "AF: x", "MAS: y"))),
    ]
    assert counts(rows) == {RIGHT: 1, FALLBACK: 1, WRONG: 1}
    lines = markdown(rows)
    assert "| ViT | patches | right | 1e-15 |  |" in lines
    assert "| SAM | two steps | WRONG | 7e-01 | Fisher: x; MAS: y |" in lines
    assert lines.index("## Vision") < lines.index("## Optimisers")
    write(tmp_path, rows)
    document = json.loads((tmp_path / "families.json").read_text(encoding="utf-8"))
    assert [row["verdict"] for row in document["rows"]] == [RIGHT, FALLBACK, WRONG]
    assert "torch " in document["versions"]
    assert "## Vision" in (tmp_path / "families.md").read_text(encoding="utf-8")


def test_names_choose_families_and_no_two_are_alike():
    assert {trial.family.name for trial in wanted(["lstm"])} >= {"LSTM", "LSTM, packed sequences"}
    assert all(trial.family.section == "Mixtures of experts" for trial in wanted(["mixtures of"]))
    names = [(trial.family.section, trial.family.name) for trial in trials()]
    assert len(names) == len(set(names)) > 300
    assert [row.outcome.verdict for row in rows_of(wanted(["soft decision tree"]))] == [RIGHT]


@pytest.mark.parametrize(("names", "code"), [(["discrete actor"], 0), (["no such family"], 2)])
def test_the_command(monkeypatch, capsys, tmp_path, names, code):
    monkeypatch.setattr(sys, "argv", ["families", *names, "--results", str(tmp_path)])
    monkeypatch.setattr("logging.disable", lambda _: None)
    monkeypatch.setattr("warnings.simplefilter", lambda *_: None)
    with pytest.raises(SystemExit) as ending:
        runpy.run_module("benchmarks.families", run_name="__main__")
    assert ending.value.code == code
    told = capsys.readouterr()
    assert ("1 right" in told.out) == (code == 0)
    assert not list(tmp_path.iterdir())  # some families are no table
