import json
import os
import signal
import subprocess
import sys

import pytest

from anchorhold_lab.cli.progress.labels import label_in_search
from anchorhold_lab.experiments import Store, search
from tests.lab.cli.small import CHANGES, OPTIONS, small_spec

RANGE = ("--from", "10", "--to", "20", "--seeds", "2")


@pytest.fixture
def find(call, tmp_path):
    def in_store(*arguments, options=OPTIONS):
        return call("search", *arguments, *options, "--store", tmp_path / "store")

    return in_store


def test_what_run_can_ask_for_search_can_too(find, tmp_path):
    unlike = ("--sizes", "1,0.5", "--order", "1,0", "--rate-decay", "0.5", "--tasks", "2", "--search-seeds", "1")
    shown = find("permuted-digits", "-m", "si", "--from", "10", "--to", "10", "--seeds", "1", "--no-reinit", *unlike)
    assert shown.exit_code == 0
    specs = [result.spec for result in Store(tmp_path / "store").results()]
    assert {(spec.sizes, spec.order, spec.settings.rate_decay) for spec in specs} == {((1.0, 0.5), (1, 0), 0.5)}


def last_event(shown):
    return json.loads(shown.stdout.splitlines()[-1])


def test_the_grid_the_choice_and_its_test_are_shown(find, tmp_path):
    shown = find("permuted-digits", "-m", "si", *RANGE)
    assert shown.exit_code == 0
    found = search("permuted-digits", "SI", Store(tmp_path / "store"), low=10, high=20, seeds=range(2), **CHANGES)
    title, header, *lines = shown.stdout.splitlines()
    judged = "accuracy in % on validation data, of one seed where no number is given"
    assert title == f"SI on permuted-digits: {judged}"
    assert header.split() == ["c", "no", "re-init", "re-init"]
    rows = {float(line.split()[0]): line for line in lines if line.split()[:1] and line.split()[0][0].isdigit()}
    assert set(rows) == {point.strength for point in found.points}
    for point in found.points:
        shown_error = f" ± {100 * point.error:.1f} (3 seeds)" if point.seeds == 3 else "  "
        assert f"{100 * point.accuracy:.1f}{shown_error}" in f"{rows[point.strength]}  "
    assert "\n".join(rows.values()).count("(3 seeds)") == 4
    assert [strength for strength, row in rows.items() if "← chosen" in row] == [found.choice.strength]
    assert found.why in shown.stdout
    assert f"over 2 other seeds: {100 * found.test.accuracy:.1f} ± " in lines[-1]


def test_while_it_runs_strengths_tell_runs_apart(find):
    lines = find("permuted-digits", "-m", "SI", *RANGE, "--reinit").stderr.splitlines()
    assert lines[0] == "SI seed 1000 re-init, c = 10 starts, 40 steps in 2 tasks"
    assert lines[1].startswith("SI seed 1000 re-init, c = 10: task 1/2")
    assert lines[5].startswith("SI seed 1000 re-init, c = 20: task 1/2")


def test_the_second_time_nothing_runs(find):
    first = find("permuted-digits", "-m", "SI", *RANGE)
    again = find("permuted-digits", "-m", "SI", *RANGE)
    assert (again.exit_code, again.stdout, again.stderr) == (0, first.stdout, "")


def test_json_ends_with_the_whole_search(find, tmp_path):
    shown = find("permuted-digits", "-m", "SI", *RANGE, "--no-reinit", "--search-seeds", "2", "--json")
    told = last_event(shown)
    store = Store(tmp_path / "store")
    choices = {"seeds": range(2), "search_seeds": (1000, 1001), "reinitialise": False}
    found = search("permuted-digits", "SI", store, low=10, high=20, **choices, **CHANGES)
    assert told == {"event": "search", **found.to_dict(), "store": str(store.folder)}
    assert sorted(point["seeds"] for point in told["points"])[-4:] == [2, 2, 2, 2]
    assert all(len(point["accuracies"]) == point["seeds"] for point in told["points"])
    started = [json.loads(line) for line in shown.stdout.splitlines() if '"started"' in line]
    assert {event["strength"] for event in started} == {point["strength"] for point in told["points"]}


def test_options_reach_the_runs(find, tmp_path):
    find("permuted-digits", "-m", "SI", "--set", "damping=0.5", "--lr", "0.01", *RANGE, "--no-reinit")
    specs = [result.spec for result in Store(tmp_path / "store").results()]
    assert {(spec.measure_settings["damping"], spec.settings.learning_rate) for spec in specs} == {(0.5, 0.01)}


def test_where_everything_diverges_it_says_so(find):
    wild = ("--optimizer", "sgd", "--lr", "1e30", "--no-reinit", "--from", "1", "--to", "1")
    shown = find("permuted-digits", "-m", "SI", *wild)
    assert shown.exit_code == 1
    assert "training has diverged" in shown.stderr.splitlines()[-1]
    assert "failed" in shown.stdout


def test_runs_of_another_process_are_named_as_the_reason(find, tmp_path):
    spec = small_spec(seed=1000, strength=10.0, reinitialise=False, judge_by="validation")
    claim = Store(tmp_path / "store").claim(spec)
    shown = find("permuted-digits", "-m", "SI", *RANGE, "--no-reinit")
    claim.release()
    assert shown.exit_code == 1
    assert "Another process is making" in shown.stderr
    assert "chosen" not in shown.stdout


def test_with_one_seed_the_table_names_none(find):
    shown = find("permuted-digits", "-m", "SI", *RANGE, "--no-reinit", "--search-seeds", "1")
    assert shown.stdout.splitlines()[0] == "SI on permuted-digits: accuracy in % on validation data"
    assert "seeds)" not in shown.stdout and "← chosen" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["permuted-digits", "-m", "fine-tune"], "fine-tune has no strength to search for"),
        (["permutd-digits"], "Did you mean 'permuted-digits'"),
        (["permuted-digits", "-m", "SO"], "Did you mean 'SOS'?"),
        (["permuted-digits", "--from", "2", "--to", "1"], "the smaller one first"),
        (["permuted-digits", "--seeds", "1001"], "none in both"),
    ],
)
def test_mistakes_are_explained_in_a_line(find, tmp_path, arguments, message):
    shown = find(*arguments, options=())
    assert shown.exit_code == 2
    assert message in shown.stderr
    assert len(shown.stderr.splitlines()) == 1 and shown.stdout == ""
    assert not (tmp_path / "store").exists()


def test_runs_in_a_search_have_short_names():
    runs = [small_spec(seed=1000, strength=strength, reinitialise=True) for strength in (0.1, 0.2, 5.0)]
    assert label_in_search(runs) == "SI seed 1000 re-init, c = 0.1 … 5"
    assert label_in_search([small_spec(seed=3, strength=20.0, reinitialise=False)]) == "SI seed 3, c = 20"


@pytest.mark.nightly
def test_ctrl_c_saves_and_the_same_command_goes_on_to_the_same_choice(call, tmp_path):
    long = ("--epochs", "30", "--batch-size", "256", "--search-seeds", "1")
    arguments = ("search", "permuted-digits", "-m", "SI", *RANGE, "--no-reinit", *OPTIONS, *long, "--json", "--store")
    with subprocess.Popen(
        [sys.executable, "-m", "anchorhold_lab", *arguments, str(tmp_path / "stopped")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as child:
        for line in child.stdout:
            told = json.loads(line)
            if told["event"] == "progress" and told["task"] == 1:  # of the first run
                child.send_signal(signal.SIGINT)
                break
        *_, last = child.stdout
        complaints = child.stderr.read()
    assert child.returncode == 130
    assert complaints == "Stopped with 0 points of the grid tried. The same command goes on.\n"
    assert json.loads(last)["stopped"] == "interrupted" and json.loads(last)["choice"] is None
    again = call(*arguments, tmp_path / "stopped")
    assert again.exit_code == 0
    assert json.loads(again.stdout.splitlines()[0])["resumed"]
    whole = last_event(call(*arguments, tmp_path / "whole"))
    assert last_event(again) == {**whole, "store": str(tmp_path / "stopped")}


def test_relative_strengths_are_searched_for(find, tmp_path):
    asked = (
        "--relative-strength",
        "--from",
        "0.01",
        "--to",
        "0.02",
        "--seeds",
        "1",
        "--search-seeds",
        "1",
        "--no-reinit",
    )
    shown = find("permuted-digits", "-m", "EWC", *asked)
    assert shown.exit_code == 0, shown.stderr
    _, header, *lines = shown.stdout.splitlines()
    assert header.split()[0] == "s" and any(line.startswith("s = ") for line in lines)
    assert "EWC seed 1000, s = 0.01" in shown.stderr
    tried = {result.spec.relative_strength for result in Store(tmp_path / "store").results()}
    assert {0.01, 0.02} <= tried and None not in tried
    assert last_event(find("permuted-digits", "-m", "EWC", *asked, "--json"))["choice"]["relative_strength"] in tried
