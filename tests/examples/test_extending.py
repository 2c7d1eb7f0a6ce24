"""The examples that extend anchorhold do what their docstrings say, as a user would copy and run them."""

import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import anchorhold
from anchorhold_lab.cli.app import app
from anchorhold_lab.cli.exits import ExitCode
from anchorhold_lab.cli.progress.lines import Lines
from anchorhold_lab.experiments import RunProgress, Store
from tests.calling import caller

ROOT = Path(__file__).parents[2]
EXTENDING = ROOT / "examples" / "extending"
SCENARIO, NETWORK, MEASURE, HOLD = (EXTENDING / f"{kind}.py" for kind in ("scenario", "network", "measure", "hold"))
QUICK = ("--tasks", "2", "--epochs", "1", "--device", "cpu")
PROGRAM = """
import json, sys
from anchorhold_lab.experiments import SCENARIOS, Store
store = Store(sys.argv[1])
results = store.results()
print(json.dumps({
    "known": list(SCENARIOS), "ids": store.ids(), "rows": len(store.frame()),
    "accuracies": [result.average_accuracy for result in results],
    "named": [[result.spec.scenario, result.spec.network, result.spec.source] for result in results],
    "measures": [[result.spec.measure, list(result.spec.holds)] for result in results],
}))
"""


@pytest.fixture
def call(monkeypatch):
    return caller(app, monkeypatch)


def read_elsewhere(store):
    """Return what a fresh process, which has loaded no file, finds in a store."""
    command = [sys.executable, "-c", PROGRAM, str(store.folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd="/")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def only_id(call, store, *command):
    done = call("run", *command, "--store", store.folder)
    assert done.exit_code == 0, done.stderr
    (found,) = store.ids()
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("file", sorted(EXTENDING.glob("*.py")), ids=lambda path: path.name)
def test_the_commands_in_its_docstring(call, tmp_path, monkeypatch, file):
    monkeypatch.chdir(ROOT)
    commands = re.findall(r"^    anchorhold-lab (.*)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert commands
    for command in commands:
        done = call(*shlex.split(command), "--store", tmp_path / "store", "--device", "cpu")
        assert done.exit_code == 0, (command, done.stderr)
    assert Store(tmp_path / "store").results()


@pytest.mark.nightly
def test_a_scenario_is_learned_and_read_where_nobody_knows_it(call, tmp_path):
    store = Store(tmp_path / "store")
    found = only_id(call, store, f"{SCENARIO}:turned-digits", "-m", "SI", *QUICK)
    (result,) = store.results()
    assert result.matrix[0][0] > 0.6  # it has learned something
    read = read_elsewhere(store)
    assert "turned-digits" not in read["known"] and read["ids"] == [found] and read["rows"] == 1
    assert read["named"] == [["turned-digits", None, result.spec.source]]
    assert read["accuracies"] == [result.average_accuracy]


def test_a_network_is_learned_and_read_where_nobody_knows_it(call, tmp_path):
    store = Store(tmp_path / "store")
    command = ("permuted-digits", "--network", "residual", "--with", NETWORK, "--hidden", "32,16", "-m", "SOS", *QUICK)
    only_id(call, store, *command)
    (result,) = store.results()
    assert result.matrix[0][0] > 0.6
    read = read_elsewhere(store)
    assert read["named"] == [["permuted-digits", "residual", result.spec.source]]
    assert read["accuracies"] == [result.average_accuracy]


@pytest.mark.nightly
def test_a_measure_and_a_hold_are_read_where_nobody_knows_them(call, tmp_path):
    small = ("--hidden", "32", *QUICK)
    for name, command in {
        "measure": ("permuted-digits", "-m", "agreement", "-c", "1", "--with", MEASURE, *small),
        "hold": ("permuted-digits", "-m", "SI", "--hold", "StartPoint", "--set", "start-point.after=0", "--with", HOLD),
    }.items():
        store = Store(tmp_path / name)
        only_id(call, store, *command, *(small if name == "hold" else ()))
        (result,) = store.results()
        assert result.spec.source is not None
        read = read_elsewhere(store)
        assert read["measures"] == [[result.spec.measure, list(result.spec.holds)]]
        assert read["accuracies"] == [result.average_accuracy]
    assert result.spec.hold_settings["start-point"]["after"] == 0 and result.spec.engine == "plain"


def test_the_fast_engine_takes_the_measure_and_refuses_the_hold(call, tmp_path):
    runs = []
    for engine in ("fast", "plain"):
        store = Store(tmp_path / engine)
        command = ("permuted-digits", "-m", "agreement", "-c", "1", "--with", MEASURE, "--engine", engine)
        only_id(call, store, *command, "--hidden", "32", *QUICK)
        runs.append(store.results()[0].matrix)
    torch.testing.assert_close(torch.tensor(runs[0]), torch.tensor(runs[1]), rtol=0, atol=0.02)
    command = ("permuted-digits", "-m", "SI", "--hold", "start-point", "--with", HOLD, "--engine", "fast", *QUICK)
    done = call("run", *command, "--store", tmp_path / "store")
    assert done.exit_code == ExitCode.USAGE and "engine='plain'" in done.stderr


def loaded(path):
    """Return what a file holds, registered as if a user had imported it."""
    specification = importlib.util.spec_from_file_location(f"extending_{path.stem}", path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def linear():
    torch.manual_seed(0)
    return torch.nn.Linear(3, 2).double()


X, Y = torch.linspace(-1, 1, 60, dtype=torch.float64).reshape(20, 3), torch.arange(20) % 2


def losses(model, scale):
    return torch.nn.functional.cross_entropy(model(scale * X), Y)


def test_agreement_is_what_its_formula_says(tmp_path):
    loaded(MEASURE)
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = anchorhold.Guard(model, "agreement", strength=0.0)
    guard.attach(optimizer)
    for scales in ((1, 2, 3), (3, -1, 0.5)):
        seen = {name: [] for name, _ in model.named_parameters()}
        for scale in scales:
            optimizer.zero_grad()
            losses(model, scale).backward()
            for name, parameter in model.named_parameters():
                seen[name].append(parameter.grad.clone())
            optimizer.step()
        guard.save(tmp_path / "state")
        guard.load(tmp_path / "state")
        guard.consolidate()
    shares = {}
    for name, gradients in seen.items():
        stacked = torch.stack(gradients)
        shares[name] = stacked.mean(0).square() / (stacked.square().mean(0) + 1e-8)
    largest = max(float(share.max()) for share in shares.values())
    for name, share in shares.items():  # of the last task alone
        torch.testing.assert_close(guard.importance[name], share / largest)


@pytest.mark.filterwarnings("ignore:The model's weights are .* away from those that:anchorhold.AnchorholdWarning")
@pytest.mark.parametrize("closure", [False, True])
def test_the_hold_to_the_start_pulls_as_its_formula_says(tmp_path, closure):
    module = loaded(HOLD)
    model, strength, pull = linear(), 2.0, 0.7
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = anchorhold.Guard(
        model,
        "EWC",
        strength=strength,
        holds=[module.StartPoint(pull)],
        options=anchorhold.GuardOptions(implicit=False),
    )
    guard.attach(optimizer)
    began = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    losses(model, 1).backward()
    optimizer.step()
    guard.consolidate([(X, Y)])
    guard.save(tmp_path / "state")
    guard.load(tmp_path / "state")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, dtype=torch.float64))
    expected = {}
    for name, parameter in model.named_parameters():
        task = torch.autograd.grad(losses(model, -1), parameter)[0]
        held = guard.importance[name] * (parameter.detach() - guard.anchor[name])
        back = parameter.detach() - began[name]
        expected[name] = parameter.detach() - 0.1 * (task + 2 * strength * held + 2 * pull * back)

    def evaluate():
        optimizer.zero_grad()
        loss = losses(model, -1)
        loss.backward()
        return loss

    guard.attach(optimizer, hold=False)  # while the penalty is looked at by itself
    value = torch.autograd.grad(guard.penalty(), list(model.parameters()))
    guard.attach(optimizer)
    if closure:
        optimizer.step(evaluate)
    else:
        evaluate()
        optimizer.step()
    for (name, parameter), pulled in zip(model.named_parameters(), value, strict=True):
        torch.testing.assert_close(parameter.detach(), expected[name])
        assert pulled.shape == parameter.shape


@pytest.mark.parametrize(
    "command",
    [
        (f"{SCENARIO}:turned-digits", "-m", "SI", *QUICK),
        ("permuted-digits", "--network", "residual", "--with", str(NETWORK), "--hidden", "32", "-m", "SI", *QUICK),
        ("permuted-digits", "-m", "agreement", "-c", "1", "--with", str(MEASURE), "--hidden", "32", *QUICK),
        ("permuted-digits", "-m", "SI", "--hold", "start-point", "--with", str(HOLD), "--hidden", "32", *QUICK),
    ],
    ids=["scenario", "network", "measure", "hold"],
)
def test_a_stopped_run_goes_on_to_the_same_result(call, tmp_path, monkeypatch, command):
    stopped, whole = Store(tmp_path / "stopped"), Store(tmp_path / "whole")
    show = Lines.__call__

    def interrupted(self, event):
        show(self, event)
        if isinstance(event, RunProgress):
            signal.raise_signal(signal.SIGINT)  # as Ctrl-C does

    with monkeypatch.context() as patched:
        patched.setattr(Lines, "__call__", interrupted)
        done = call("run", *command, "--store", stopped.folder)
    assert done.exit_code == ExitCode.INTERRUPTED, done.stderr
    assert stopped.results() == []
    found = only_id(call, stopped, *command)
    assert only_id(call, whole, *command) == found
    assert stopped.get(found).resumed == 1
    assert stopped.get(found).state_digest == whole.get(found).state_digest


def test_the_content_of_the_file_is_in_the_id_and_its_place_is_not(call, tmp_path):
    copied, changed = tmp_path / "mine.py", tmp_path / "changed.py"
    shutil.copy(SCENARIO, copied)
    changed.write_text(SCENARIO.read_text(encoding="utf-8") + "\n# Another thought.\n", encoding="utf-8")
    ids = [
        only_id(call, Store(tmp_path / path.stem), f"{path}:turned_digits", "-m", "SI", *QUICK)
        for path in (SCENARIO, copied, changed)
    ]
    assert ids[0] == ids[1] != ids[2]
