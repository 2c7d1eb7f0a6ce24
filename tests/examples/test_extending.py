"""The examples that extend holdfast do what their docstrings say, as a user would copy and run them."""

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
from typer.testing import CliRunner

from holdfast.lab.cli.app import app
from holdfast.lab.cli.exits import ExitCode
from holdfast.lab.cli.progress.lines import Lines
from holdfast.lab.experiments import RunProgress, Store

ROOT = Path(__file__).parents[2]
EXTENDING = ROOT / "examples" / "extending"
SCENARIO, NETWORK = EXTENDING / "scenario.py", EXTENDING / "network.py"
QUICK = ("--tasks", "2", "--epochs", "1", "--device", "cpu")
PROGRAM = """
import json, sys
from holdfast.lab.experiments import SCENARIOS, Store
store = Store(sys.argv[1])
results = store.results()
print(json.dumps({
    "known": list(SCENARIOS), "ids": store.ids(), "rows": len(store.frame()),
    "accuracies": [result.average_accuracy for result in results],
    "named": [[result.spec.scenario, result.spec.network, result.spec.source] for result in results],
}))
"""


@pytest.fixture
def call(monkeypatch):
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    monkeypatch.delenv("HOLDFAST_DATA", raising=False)
    return lambda *arguments: CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)


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


@pytest.mark.slow
@pytest.mark.parametrize("file", sorted(EXTENDING.glob("*.py")), ids=lambda path: path.name)
def test_the_commands_in_its_docstring(call, tmp_path, monkeypatch, file):
    monkeypatch.chdir(ROOT)
    commands = re.findall(r"^    holdfast (.*)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert commands
    for command in commands:
        done = call(*shlex.split(command), "--store", tmp_path / "store", "--device", "cpu")
        assert done.exit_code == 0, (command, done.stderr)
    assert Store(tmp_path / "store").results()


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


@pytest.mark.parametrize(
    "command",
    [
        (f"{SCENARIO}:turned-digits", "-m", "SI", *QUICK),
        ("permuted-digits", "--network", "residual", "--with", str(NETWORK), "--hidden", "32", "-m", "SI", *QUICK),
    ],
    ids=["scenario", "network"],
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
