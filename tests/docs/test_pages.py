"""The code on the pages is run as it stands, in its order."""

import re
import shlex
import shutil

import pytest
import torch
from typer.testing import CliRunner

from anchorhold_lab.cli.app import app
from anchorhold_lab.cli.exits import ExitCode
from anchorhold_lab.cli.progress.json_lines import plain
from anchorhold_lab.data.locations import Datasets
from anchorhold_lab.experiments import SCENARIOS
from tests.docs.pages import DOCS, blocks, page, run_page
from tests.lab.cli.small import small_spec, small_store


def test_the_scenarios_of_ones_own(capsys):
    torch.manual_seed(0)
    scope = run_page("scenarios.md")
    assert capsys.readouterr().out.count("task ") == 3
    last = scope["run"].outcomes[0].matrix[-1]
    assert last[-1] > 0.8  # it has learned something
    assert scope["runs"].outcomes[0].matrix[-1] == pytest.approx(last, abs=0.011)


@pytest.mark.nightly
def test_experiments_in_python(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    scope = run_page("experiments.md")
    assert {"SI", "SOS", "fine-tune"} == set(scope["frame"].measure)
    assert scope["curves"].epochs.notna().all()
    assert scope["again"].outcomes[0].matrix == scope["whole"].outcomes[0].matrix
    assert "c = " in capsys.readouterr().out
    assert set(scope["store"].frame().scenario) == {"permuted-digits", "points", "few-digits"}
    assert scope["spec"].make_network(scope["spec"].make_scenario(Datasets())).body[0].out_features == 50


@pytest.mark.daily
@pytest.mark.parametrize("name", sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")))
def test_comments_stay_within_the_page(name):
    for block in re.findall(r"```(?:python|sh|text)\n(.*?)```", page(name), flags=re.DOTALL):
        assert [line for line in block.splitlines() if "  # " in line and len(line) > 98] == []


def test_the_table_of_scenarios_is_complete():
    rows = dict(re.findall(r"^\| `([\w-]+)` \| (\d+)", page("scenarios.md"), flags=re.MULTILINE))
    assert {name: int(tasks) for name, tasks in rows.items()} == {name: k.tasks for name, k in SCENARIOS.items()}
    for name, kind in SCENARIOS.items():
        if kind.hidden is not None:
            assert re.search(rf"`{name}`.*-{'-'.join(map(str, kind.hidden))}-", page("scenarios.md"))


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "fewest"), [("command-line.md", 20), ("../lab/README.md", 4)])
def test_the_commands(name, fewest, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANCHORHOLD_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("ANCHORHOLD_STORE", raising=False)
    shutil.copytree(DOCS.parent / "examples" / "extending", tmp_path / "examples" / "extending")
    commands = [line for block in blocks(page(name), "sh") for line in block.splitlines()]
    assert len(commands) >= fewest
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "anchorhold-lab"
        done = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert done.exit_code == 0, (command, done.stderr)


def test_every_event_has_the_keys_of_the_table(tmp_path):
    rows = re.findall(r"^\| `([a-z ]+)` \| (.*) \|$", page("command-line.md"), flags=re.MULTILINE)
    documented = {event: set(re.findall(r"`(\w+)`", text)) for event, text in rows}
    _, told = small_store(tmp_path, small_spec())
    seen = {found["event"]: set(found) - {"event"} for found in map(plain, told)}
    assert set(seen) == {"started", "progress", "finished"}
    assert {event: documented[event] for event in seen} == seen


def test_every_exit_code_is_explained():
    rows = re.findall(r"^\| (\d+) \| ", page("command-line.md"), flags=re.MULTILINE)
    assert [int(row) for row in rows] == [int(code) for code in ExitCode]
