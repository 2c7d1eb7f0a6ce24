"""The audit's own code: its metric, its definitions and its formulas, on anchorhold's results and on wrong ones."""

import importlib
import json
import logging
import math
import runpy
import sys
from hashlib import sha256

import pytest
import torch
from torch.nn.functional import cross_entropy

import anchorhold
from benchmarks.audit.adapters import anchorhold as adapter
from benchmarks.audit.cases import Case, Found
from benchmarks.audit.checkouts import FOLDER, Checkout, importable
from benchmarks.audit.comparison import compare, flat, relative_error
from benchmarks.audit.definitions import AFTER_TRAINING, after_training
from benchmarks.audit.formulas import absolute_batch_means, definition, squared_batch_means
from benchmarks.audit.path import FollowRWalk, FollowSI, Recorder
from benchmarks.audit.problem import digits_problem
from benchmarks.audit.rows import adapter_names, library, rows
from benchmarks.audit.rwalk_section import version_rows
from benchmarks.audit.table import add, markdown, page, write
from tests import oracles
from tests.docs.pages import run_page
from tests.path_oracle import Step, gradients, rescaled, snapshot


@pytest.fixture(scope="module")
def problem():
    return digits_problem(samples=48, hidden=(6, 5), epochs=8)


def test_the_metric_knows_equal_scaled_and_unrelated_importances():
    truth = {"w": torch.tensor([1.0, 2.0, 4.0]), "b": torch.tensor([3.0])}
    assert compare(truth, truth).correlation == pytest.approx(1, abs=1e-12)
    scaled = compare({name: 5 * value for name, value in truth.items()}, truth)
    assert (scaled.correlation, scaled.scale) == (pytest.approx(1, abs=1e-12), pytest.approx(5))
    reversed_ = compare({"w": torch.tensor([4.0, 3.0, 1.0]), "b": torch.tensor([2.0])}, truth)
    assert reversed_.correlation == pytest.approx(-1)
    assert reversed_.scale == pytest.approx(1)
    nothing = compare({name: torch.zeros_like(value) for name, value in truth.items()}, truth)
    assert math.isnan(nothing.correlation)
    assert nothing.scale == 0


def test_parameters_are_matched_by_name_and_may_be_left_out():
    truth = {"body": torch.tensor([1.0, 2.0, 3.0]), "head": torch.tensor([9.0])}
    assert compare({"body": truth["body"]}, truth).scale == pytest.approx(1)
    assert relative_error({"head": torch.tensor([9.9]), "body": truth["body"]}, truth) == pytest.approx(0.9 / 95**0.5)
    with pytest.raises(ValueError, match="no importance of neck; there are body, head"):
        flat(truth, ["neck"])


@pytest.mark.parametrize(
    ("name", "scores", "phi"),
    [
        ("Fisher", oracles.every_label, torch.square),
        ("empirical Fisher", oracles.true_label, torch.square),
        ("MAS on logits", oracles.squared_logits, torch.abs),
    ],
)
def test_the_definitions_are_those_of_the_oracles(problem, name, scores, phi):
    data = oracles.one_by_one(problem.inputs, problem.labels)
    expected = oracles.importance(problem.trained, data, scores, phi)
    assert relative_error(after_training(name, problem), expected) < 1e-10
    assert name in AFTER_TRAINING


def test_si_is_that_of_the_oracle_whatever_is_added_to_the_loss(problem):
    network = problem.network(trained=False).double()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    follower = FollowSI(damping=0.1)
    Recorder(problem, network, optimizer, follower, steps=6)
    steps = []
    for inputs, labels in zip(problem.inputs.split(8), problem.labels.split(8), strict=True):
        before = snapshot(network)
        loss = cross_entropy(network(inputs.double()), labels)
        task = gradients(loss, network)
        optimizer.zero_grad()
        (loss + sum((p - 1).square().sum() for p in network.parameters())).backward()
        optimizer.step()
        steps.append(Step(before, snapshot(network), task, task))
    expected = {name: rescaled(steps, name, "SI", 0.1) for name in before}
    assert relative_error(follower.importance(), expected) < 1e-10
    optimizer.step()  # one too many, which the recorder does not count
    assert relative_error(follower.importance(), expected) < 1e-10
    unclamped = {name: rescaled(steps, name, "SI", 0.1, clamp_task=False) for name in before}
    assert relative_error(follower.unclamped(), unclamped) < 1e-10


@pytest.mark.parametrize("square_of_mean", [False, True])
def test_rwalk_from_its_formulas(problem, square_of_mean):
    alpha, every, epsilon = 0.7, 3, 1e-3
    network = problem.network(trained=False).double()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    follower = FollowRWalk(network, alpha, every, epsilon, square_of_mean=square_of_mean)
    Recorder(problem, network, optimizer, follower)
    steps, fishers = [], []
    for inputs, labels in zip(problem.inputs.split(8), problem.labels.split(8), strict=True):
        before = snapshot(network)
        loss = cross_entropy(network(inputs.double()), labels)
        task = gradients(loss, network)
        data = oracles.one_by_one(inputs, labels)
        per_sample = oracles.importance(network, data, oracles.true_label, torch.square)
        fishers.append({n: g.square() for n, g in task.items()} if square_of_mean else per_sample)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps.append(Step(before, snapshot(network), task, task))
    running, score = {}, {}
    for name in before:
        fisher, gained, start = fishers[0][name], 0, steps[0].before[name]
        score[name] = torch.zeros_like(fisher)
        for n, step in enumerate(steps):
            if n:
                fisher = alpha * fishers[n][name] + (1 - alpha) * fisher
            gained = gained - step.gradient[name] * (step.after[name] - step.before[name])
            if (n + 1) % every == 0:
                score[name] += gained / (0.5 * fisher * (step.after[name] - start) ** 2 + epsilon)
                gained, start = 0, step.after[name]
        running[name] = fisher
    highest_fisher = max(value.max() for value in running.values())
    highest_score = max(value.max() for value in score.values())
    expected = {n: f / highest_fisher + score[n].clamp(min=0) / highest_score for n, f in running.items()}
    assert relative_error(follower.importance(), expected) < 1e-10


def test_the_formulas_are_the_definitions_at_batch_size_1_and_no_longer_above(problem):
    empirical, mas = after_training("empirical Fisher", problem), after_training("MAS on logits", problem)
    assert relative_error(squared_batch_means(problem, 1), empirical) < 1e-10
    assert relative_error(absolute_batch_means(0.5)(problem, 1), {n: v / 2 for n, v in mas.items()}) < 1e-10
    together = compare(squared_batch_means(problem, 16), empirical)
    assert together.correlation < 0.99
    assert together.scale < 0.5
    assert relative_error(absolute_batch_means()(problem, 16), mas) > 0.05
    summed = definition("empirical Fisher", samples=1, batch_size=-1)(problem, 16)
    assert relative_error(summed, {n: v * 3 for n, v in empirical.items()}) < 1e-10


def test_a_right_and_a_wrong_library_in_one_table(problem, tmp_path):
    def right(problem, batch):
        return Found(anchorhold.Fisher(labels="true").measure(problem.network(), problem.loader(batch)))

    def wrong(problem, batch):
        return Found({name: value.float() for name, value in squared_batch_means(problem, batch).items()})

    def nothing(problem, batch):
        return Found({name: torch.zeros_like(p) for name, p in problem.trained.named_parameters()})

    cases = [
        Case("right", ("empirical Fisher",), right, "The definition.", definition("empirical Fisher")),
        Case("wrong", ("empirical Fisher", "Fisher"), wrong, "Squares means.", squared_batch_means),
        Case("misexplained", ("empirical Fisher",), wrong, "The definition.", definition("empirical Fisher")),
        Case("nothing", ("Fisher",), nothing, "Nothing.", batches=(16,)),
    ]
    found = rows(problem, "library", "1.0", cases, [1, 16])
    assert [(row.method, row.against) for row in found[:3]] == [
        ("right", "empirical Fisher"), ("wrong", "empirical Fisher"), ("wrong", "Fisher"),
    ]  # fmt: skip
    assert found[0].agreements[16].correlation == pytest.approx(1, abs=1e-6)
    assert found[1].agreements[16].correlation < 0.99
    lines = markdown(found, [1, 16])
    assert lines[0] == "| library | method | beside | batch 1 | 16 | what it computes |"
    assert lines[2] == "| library 1.0 | right | empirical Fisher | 1.00<br>×1 | 1.00<br>×1 | The definition. ✓ |"
    assert lines[3].endswith("Squares means. ✓ |")
    assert lines[4].endswith("| as above |")
    assert lines[5].endswith("The definition. |")  # a formula that does not give the numbers earns no mark
    assert lines[6] == "| library 1.0 | nothing | Fisher | –<br>– | –<br>×0 | Nothing. |"
    write(tmp_path, found, version_rows(problem))
    assert "library 1.0" in (tmp_path / "audit.md").read_text(encoding="utf-8")
    document = json.loads((tmp_path / "audit.json").read_text(encoding="utf-8"))
    assert document["rows"][-1]["correlation"] == {"16": None}
    names = [row["version"] for row in document["rwalk_versions"]]
    assert names == ["the authors' code", "Avalanche", "FACIL"]  # which need no library


def test_anchorhold_passes_its_own_audit(problem, monkeypatch):
    monkeypatch.setattr(adapter, "EPOCHS", 2)
    for row in rows(problem, "anchorhold", "0", [c for c in adapter.cases() if not c.drawn], [1, 8]):
        for agreement in row.agreements.values():
            assert agreement.correlation == pytest.approx(1, abs=1e-6), row
            assert agreement.scale == pytest.approx(1, abs=1e-5), row


def test_a_library_that_is_missing_is_said_to_be(monkeypatch):
    monkeypatch.setitem(sys.modules, "benchmarks.audit.adapters.avalanche", None)
    missing = library("avalanche")
    assert isinstance(missing, str)
    assert missing.startswith("avalanche: not installed")
    assert library("anchorhold").package == "anchorhold"
    assert {"avalanche", "capymoa", "laplace", "nngeometry", "backpack", "anchorhold"} <= set(adapter_names())


@pytest.mark.parametrize("names", [[], ["anchorhold", "avalanche"]])
def test_nothing_is_measured_or_written_while_a_library_is_missing(monkeypatch, capsys, tmp_path, names):
    for name in adapter_names():
        if name != "anchorhold":  # loading those that are here would take long
            monkeypatch.setitem(sys.modules, f"benchmarks.audit.adapters.{name}", None)
    monkeypatch.setattr(logging, "disable", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["audit", *names, "--results", str(tmp_path)])
    with pytest.raises(SystemExit) as ending:
        runpy.run_module("benchmarks.audit", run_name="__main__")
    told = capsys.readouterr()
    assert (ending.value.code, told.out) == (1, "")
    assert "avalanche: not installed" in told.err and "make audit" in told.err
    assert not list(tmp_path.iterdir())


def test_the_page_that_explains_it():
    found = run_page("why-our-ewc-differs.md")
    assert set(found["theirs"]) == set(found["ours"])


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    file = tmp_path / "copied" / "methods" / "importance_of.py"
    file.parent.mkdir(parents=True)
    file.write_text("ANSWER = 42\n")
    monkeypatch.setenv(FOLDER, str(tmp_path))
    return Checkout("someone/copied", "0123456789", "methods/importance_of.py", sha256(file.read_bytes()).hexdigest())


def test_a_checkout_is_imported_and_its_common_names_are_forgotten(checkout):
    with importable(checkout.folder(), "methods"):
        answer = importlib.import_module("methods.importance_of").ANSWER
    assert (answer, checkout.version) == (42, "0123456")
    assert "methods" not in sys.modules
    assert str(checkout.folder()) not in sys.path


def test_what_is_no_checkout_of_that_commit_is_refused(checkout, monkeypatch, tmp_path):
    wanted = "https://github.com/someone/copied at commit 0123456789 in the folder copied"
    (tmp_path / "copied" / "methods" / "importance_of.py").write_text("ANSWER = 43\n")
    with pytest.raises(ImportError, match=rf"has the SHA-256 [0-9a-f]+, that of commit 0123456 is .*{wanted}"):
        checkout.folder()
    monkeypatch.setenv(FOLDER, str(tmp_path / "elsewhere"))
    with pytest.raises(ImportError, match=rf"no file .*importance_of.py.* is to hold {wanted}"):
        checkout.folder()
    monkeypatch.delenv(FOLDER)
    with pytest.raises(ImportError, match=rf"{FOLDER} is not set.*{wanted}"):
        checkout.folder()


def test_rows_are_added_to_the_audit_that_there_is(problem, tmp_path):
    def half(problem, batch):
        importance = squared_batch_means(problem, batch)
        return Found({name: value / 2 for name, value in importance.items()})

    def of(library, measure):
        case = Case("EWC", ("empirical Fisher",), measure, "Why.", squared_batch_means)
        return rows(problem, library, "1", [case], [1, 16])

    def whole(problem, batch):
        return Found(squared_batch_means(problem, batch))

    write(tmp_path, of("anchorhold", whole) + of("b", half), version_rows(problem))
    before = json.loads((tmp_path / "audit.json").read_text(encoding="utf-8"))
    add(tmp_path, of("b", whole) + of("A", whole))
    document = json.loads((tmp_path / "audit.json").read_text(encoding="utf-8"))
    assert [row["library"] for row in document["rows"]] == ["anchorhold", "A", "b"]
    assert document["rows"][0] == before["rows"][0]
    assert (before["rows"][1]["size"]["1"], document["rows"][2]["size"]["1"]) == (
        pytest.approx(0.5), pytest.approx(1),
    )  # fmt: skip
    assert document["date"] == before["date"]
    assert [one["libraries"] for one in document["added"]] == [["A", "b"]]
    add(tmp_path, of("A", half))
    document = json.loads((tmp_path / "audit.json").read_text(encoding="utf-8"))
    assert [one["libraries"] for one in document["added"]] == [["A"]]
    assert (tmp_path / "audit.md").read_text(encoding="utf-8") == page(document)
    assert "| A 1 | EWC | empirical Fisher | 1.00<br>×0.5 |" in page(document)
