import dataclasses
import json

import pytest

from anchorhold_lab.experiments import Store
from studies.benzing2020 import ITEMS, PRESETS
from studies.benzing2020.relatives import Row, Study
from studies.benzing2020.relatives.study import strengths
from tests.calling import python
from tests.studies.benzing2020.tiny import tiny_preset


@pytest.fixture
def reproduce(call, tmp_path, monkeypatch):
    monkeypatch.setitem(PRESETS, "digits", tiny_preset())

    def in_store(*arguments):
        return call(
            *(*arguments, "--preset", "digits", "--device", "cpu"),
            *("--store", tmp_path / "store", "--out", tmp_path / "report"),
        )

    return in_store


def test_without_items_they_are_listed(call):
    shown = call()
    assert shown.exit_code == 0
    assert [line.split()[0] for line in shown.stdout.splitlines()[1:]] == list(ITEMS)


def test_options_without_items_are_not_ignored_in_silence(call, monkeypatch, tmp_path):
    shown = call("--preset", "digits")
    assert (shown.exit_code, shown.stdout) == (0, call().stdout)
    assert shown.stderr == "Nothing was run or reported: name items, or all, beside the options.\n"
    monkeypatch.setenv("ANCHORHOLD_STORE", str(tmp_path))
    assert call().stderr == ""


def test_an_item_is_run_and_reported(reproduce, tmp_path):
    shown = reproduce("long-training")
    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout.splitlines()[-1] == f"The report: {tmp_path / 'report' / 'index.html'}"
    assert (tmp_path / "report" / "table1.csv").exists()
    assert len(Store(tmp_path / "store").results()) == 4
    again = reproduce("long-training")
    assert (again.exit_code, again.stderr) == (0, "")


def test_the_budget_ends_it_and_the_same_command_goes_on(reproduce, tmp_path):
    stopped = reproduce("long-training", "--budget", "0")
    assert stopped.exit_code == 130
    assert "Stopped with 0 of 4 runs finished. The same command goes on." in stopped.stderr
    assert (tmp_path / "report" / "index.html").exists()
    assert reproduce("long-training", "--budget", "600").exit_code == 0


def test_the_budget_may_end_while_something_is_tried(reproduce, monkeypatch, tmp_path):
    rows = (Row("EWC", "EWC", tried=strengths(1.0, 2.0)),)
    study = Study("tried", "Tried", "permuted-digits", {"tasks": 2, "epochs": 1, "hidden": (5,)}, rows, 1)
    monkeypatch.setitem(PRESETS, "digits", dataclasses.replace(tiny_preset(), relatives=(study,)))
    stopped = reproduce("relatives", "--study", "tried", "--budget", "0")
    assert stopped.exit_code == 130 and "The same command goes on." in stopped.stderr
    assert reproduce("relatives", "--study", "tried", "--method", "ewc").exit_code == 0
    assert len(Store(tmp_path / "store").results()) == 3


def test_a_report_alone_makes_no_runs(reproduce, tmp_path):
    shown = reproduce("table1", "--only-report")
    assert shown.exit_code == 0
    assert not (tmp_path / "store").exists()
    assert "Not run: no run of SI on P-MNIST" in " ".join(shown.stdout.split())


def test_json_ends_with_the_report(reproduce, tmp_path):
    told = [json.loads(line) for line in reproduce("long-training", "--json").stdout.splitlines()]
    last = told[-1]
    assert (last["event"], last["runs"], last["finished"], last["failed"]) == ("report", 4, 4, 0)
    assert last["report"] == str(tmp_path / "report" / "index.html")
    assert {event["event"] for event in told} == {"started", "progress", "finished", "report"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tabel1"], "Did you mean 'table1'?"),
        (["table1", "--preset", "digit"], "Did you mean 'digits'?"),
        (["table1", "--budget", "1", "--only-report"], "one or the other"),
        (["table1", "--device", "abacus"], "cannot be used"),
        (["relatives", "--study", "one-passs"], "Did you mean 'one-pass'?"),
        (["relatives", "overview", "--method", "GPM"], "expected that item alone"),
    ],
)
def test_mistakes_are_explained_in_a_line(call, tmp_path, arguments, message):
    shown = call(*arguments, "--store", tmp_path / "store", "--out", tmp_path / "report")
    assert shown.exit_code == 2
    assert message in shown.stderr
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize("only_report", [(), ("--only-report",)])
def test_a_report_that_cannot_be_written_is_refused_in_a_line_before_anything_runs(call, tmp_path, only_report):
    (tmp_path / "file").write_text("something of value")
    options = ("--preset", "digits", "--device", "cpu", "--store", tmp_path / "store", "--out", tmp_path / "file")
    shown = call("long-training", *options, *only_report)
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert shown.stderr.startswith(f"error: The report cannot be written to {tmp_path / 'file'}: it is a file.")
    assert len(shown.stderr.splitlines()) == 1
    assert not (tmp_path / "store").exists()


def test_a_damaged_result_is_named_after_the_report(reproduce, tmp_path):
    reproduce("long-training")
    path = next((tmp_path / "store").glob("runs/*/result.json"))
    path.write_text("{")
    for options in (("--only-report",), ()):
        shown = reproduce("long-training", *options)
        assert shown.exit_code == 4
        assert shown.stdout.splitlines()[-1] == f"The report: {tmp_path / 'report' / 'index.html'}"
        assert shown.stderr.startswith(f"error: {path} is damaged (") and shown.stderr.endswith(
            "Restore or remove it.\n"
        )
    told = json.loads(reproduce("long-training", "--only-report", "--json").stdout.splitlines()[-1])
    assert (told["finished"], len(told["damaged"]), path.read_text()) == (3, 1, "{")
    path.unlink()
    assert reproduce("long-training").exit_code == 0


def test_missing_data_names_the_command_that_gets_it(call, tmp_path):
    folders = ("--data-dir", tmp_path / "nothing", "--store", tmp_path / "store", "--out", tmp_path / "report")
    shown = call("table1", "--preset", "quick", "--device", "cpu", *folders)
    assert shown.exit_code == 3
    assert "anchorhold-lab data fetch" in shown.stderr


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (("--only-report", "--out", "x" * 300), "File name too long"),
        (("--budget", "nan"), "--budget nan: expected a number"),
    ],
)
def test_values_that_nobody_means(call, tmp_path, monkeypatch, line, said):
    monkeypatch.chdir(tmp_path)
    shown = call("table1", "--preset", "digits", *line)
    assert shown.exit_code == 2 and said in " ".join(shown.stderr.split())
    assert not list(tmp_path.iterdir())


HELP = """
import sys
from typer.testing import CliRunner
from studies.benzing2020.command import app

shown = CliRunner().invoke(app, ["-h"], catch_exceptions=False)
print(shown.exit_code, [name for name in ("torch", "numpy", "matplotlib", "pandas") if name in sys.modules])
"""


def test_help_comes_without_torch():
    assert python(HELP).stdout == "0 []\n"
