import json
import re
import shutil

import pytest

from tests.lab.cli.small import OPTIONS, small_spec, small_store

SPECS = [
    small_spec("SI", 0),
    small_spec("SI", 1),
    small_spec("SOS", 0),
    small_spec("fine-tune", 0, optimizer="sgd", learning_rate=1e30, momentum=0.0),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    made, _ = small_store(tmp_path_factory.mktemp("store"), *SPECS)
    return made


@pytest.fixture
def runs(call, store):
    return lambda *arguments: call("runs", *arguments, "--store", store.folder)


def lines_of(shown):
    return [json.loads(line) for line in shown.stdout.splitlines()]


def test_all_runs_are_listed_the_unfinished_last(runs):
    header, *rows = runs("list").stdout.splitlines()
    assert header.split()[:3] == ["id", "scenario", "measure"]
    assert {row.split()[0] for row in rows} == {spec.id[:8] for spec in SPECS}
    assert "failed" in rows[-1] and not any("failed" in row for row in rows[:-1])


def test_the_list_for_machines(runs, store):
    listed = {row["id"]: row for row in lines_of(runs("list", "--json"))}
    assert set(listed) == {spec.id for spec in SPECS}
    assert listed[SPECS[0].id]["average_accuracy"] == store.get(SPECS[0].id).average_accuracy
    assert listed[SPECS[3].id]["status"] == "failed"


def test_a_run_is_shown_by_the_beginning_of_its_id(runs, store):
    shown = runs("show", SPECS[0].id[:6].upper()).stdout
    assert f"run {SPECS[0].id}: finished" in shown
    assert re.search(r"measure.damping +0.1 ", shown)
    assert re.search(r"reinitialise +no", shown) and "_" not in shown.split("What came out")[0]
    result = store.get(SPECS[0].id)
    assert f"{100 * result.matrix[1][0]:.1f}" in shown and result.device in shown


def test_a_failed_run_says_why(runs):
    assert re.search(r"failed at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC on", runs("show", SPECS[3].id).stdout)
    (shown,) = lines_of(runs("show", SPECS[3].id, "--json"))
    assert shown["result"] is None and "diverged" in shown["failures"][0]["reason"]
    assert shown["spec"] == SPECS[3].to_dict()


def test_ids_that_name_no_run_or_several(runs):
    nothing = runs("show", "xyz")
    assert nothing.exit_code == 2 and "No run in" in nothing.stderr
    several = runs("show", "")
    assert several.exit_code == 2 and "4 runs begin with ''" in several.stderr


def test_finished_runs_are_compared(runs, store):
    rows = {row["measure"]: row for row in lines_of(runs("compare", "--json"))}
    assert {name: row["runs"] for name, row in rows.items()} == {"SI": 2, "SOS": 1}
    accuracies = [store.get(spec.id).average_accuracy for spec in SPECS[:2]]
    assert rows["SI"]["average_accuracy"] == pytest.approx(sum(accuracies) / 2)
    assert rows["SI"]["average_accuracy_error"] == pytest.approx(abs(accuracies[0] - accuracies[1]) / 2)
    table = runs("compare").stdout.splitlines()
    assert len(table) == 4 and "±" in runs("compare").stdout


def test_runs_can_be_compared_by_any_field(runs):
    (row,) = lines_of(runs("compare", "--by", "scenario", "--json"))
    assert (row["scenario"], row["runs"]) == ("permuted-digits", 3)
    by_seed = lines_of(runs("compare", "--by", "seed", "--json"))
    assert {row["seed"]: row["runs"] for row in by_seed} == {0: 2, 1: 1}
    wrong = runs("compare", "--by", "measur")
    assert wrong.exit_code == 2 and "Did you mean 'measure'" in wrong.stderr


@pytest.fixture
def damaged(store, tmp_path):
    """A copy in which one result is cut short, and one spec of a run that has none is nonsense."""
    folder = tmp_path / "damaged"
    shutil.copytree(store.folder, folder)
    paths = [folder / "runs" / SPECS[0].id / "result.json", folder / "runs" / SPECS[3].id / "spec.json"]
    paths[0].write_text(paths[0].read_text()[:100])
    paths[1].write_text("[]")
    return folder, paths


def test_damaged_runs_are_named_and_do_not_hide_the_others(call, damaged):
    folder, paths = damaged
    for command in ("list", "compare"):
        shown = call("runs", command, "--store", folder)
        assert shown.exit_code == 4
        assert all(str(path) in shown.stderr for path in paths)
        assert "SOS" in shown.stdout
    statuses = {row["id"]: row["status"] for row in lines_of(call("runs", "list", "--store", folder, "--json"))}
    assert statuses == dict(zip((s.id for s in SPECS), ("damaged", "finished", "finished", "damaged"), strict=True))
    compared = lines_of(call("runs", "compare", "--store", folder, "--json"))
    assert {row["measure"]: row["runs"] for row in compared} == {"SI": 1, "SOS": 1}


def test_a_result_whose_spec_is_damaged_is_whole_for_every_command(call, store, tmp_path):
    folder = tmp_path / "store"
    shutil.copytree(store.folder, folder)
    path = folder / "runs" / SPECS[0].id / "spec.json"
    path.write_text(path.read_text()[:30])
    for command in (["list"], ["compare"], ["show", SPECS[0].id], ["show", SPECS[0].id, "--json"]):
        shown = call("runs", *command, "--store", folder)
        assert (shown.exit_code, shown.stderr) == (0, ""), command
    assert f"run {SPECS[0].id}: finished" in call("runs", "show", SPECS[0].id, "--store", folder).stdout
    assert call("run", "permuted-digits", "-m", "SI", *OPTIONS, "--store", folder).exit_code == 0
    assert json.loads(path.read_text()) == SPECS[0].to_dict()


def test_observations_that_were_removed_are_named_by_every_command(call, tmp_path):
    spec = small_spec("SI", probes=("importances",))
    small_store(tmp_path, spec)
    path = tmp_path / "runs" / spec.id / "observations.safetensors"
    path.unlink()
    run = ["run", "permuted-digits", "-m", "SI", "--probe", "importances", *OPTIONS]
    for command in (run, ["runs", "list"], ["runs", "compare"], ["runs", "show", spec.id]):
        shown = call(*command, "--store", tmp_path)
        assert (shown.exit_code, f"error: {path} is missing" in shown.stderr) == (4, True), command
    (line,) = lines_of(call("runs", "compare", "--store", tmp_path, "--json"))
    assert line["runs"] == 1


def test_a_folder_that_is_not_there(call, tmp_path):
    for command in (["list"], ["compare"], ["show", "abc"]):
        shown = call("runs", *command, "--store", tmp_path / "typo")
        assert shown.exit_code == 4 and f"There is no folder {tmp_path / 'typo'}" in shown.stderr


def test_an_empty_store(call, tmp_path):
    assert "There are no runs in" in call("runs", "list", "--store", tmp_path).stdout
    assert "no finished runs" in call("runs", "compare", "--store", tmp_path).stdout
    assert call("runs", "list", "--store", tmp_path, "--json").stdout == ""
