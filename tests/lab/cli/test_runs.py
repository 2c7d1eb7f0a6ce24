import json
import re
import shutil

import pytest

from anchorhold_lab.experiments import Store
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


def test_all_runs_are_listed_the_unfinished_last(runs, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    header, *rows = runs("list").stdout.splitlines()
    assert header.split()[:3] == ["id", "scenario", "measure"] and header.endswith("not as usual")
    assert {row.split()[0] for row in rows} == {spec.id[:8] for spec in SPECS}
    assert "failed" in rows[-1] and not any("failed" in row for row in rows[:-1])


def test_what_is_not_as_usual_is_listed_within_any_width(runs, monkeypatch):
    for width in (80, 300):
        monkeypatch.setenv("COLUMNS", str(width))
        shown = runs("list").stdout
        assert max(map(len, shown.splitlines())) <= width
        words = " ".join(shown.split())
        assert words.count("tasks 2, hidden 10, engine plain, epochs 1") == 4
        assert words.count("optimizer sgd, learning_rate 1e+30, momentum 0") == 1
        assert "strength" not in words and "measure.damping" not in words


def test_the_list_for_machines(runs, store):
    listed = {row["id"]: row for row in lines_of(runs("list", "--json"))}
    assert set(listed) == {spec.id for spec in SPECS}
    assert listed[SPECS[0].id]["average_accuracy"] == store.get(SPECS[0].id).average_accuracy
    assert listed[SPECS[3].id]["status"] == "failed"
    assert [listed[SPECS[0].id][name] for name in ("judge_by", "holds", "source")] == ["test", "", None]
    assert listed[SPECS[0].id]["unusual"] == {"tasks": 2, "hidden": "10", "engine": "plain", "epochs": 1}


def test_test_and_validation_are_two_columns_of_the_list_and_two_tables_of_a_comparison(call, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    test, judged = small_spec("SI"), small_spec("SI", judge_by="validation")
    store, _ = small_store(tmp_path, test, judged)
    accuracies = {spec: f"{100 * store.get(spec).average_accuracy:.1f}" for spec in (test, judged)}
    header, *rows = [line for line in call("runs", "list", "--store", tmp_path).stdout.splitlines() if line[0] != " "]
    assert header.split()[5:7] == ["test", "valid."]
    ends = {name: header.index(name) + len(name) for name in ("test", "valid.")}
    for row in rows:
        (spec,) = [spec for spec in (test, judged) if row.startswith(spec.id[:8])]
        column = "test" if spec is test else "valid."
        assert row[: ends[column]].endswith(f"{accuracies[spec]} %")
    for by in ((), ("--by", "measure")):
        shown = call("runs", "compare", *by, "--store", tmp_path).stdout
        first, second = shown.split("\n\n")
        assert max(map(len, shown.splitlines())) <= 80
        for table, spec, name in ((first, test, "test"), (second, judged, "validation")):
            assert f"on {name} samples" in table and accuracies[spec] in table
    lines = lines_of(call("runs", "compare", "--by", "measure", "--json", "--store", tmp_path))
    assert [(line["judge_by"], line["runs"]) for line in lines] == [("test", 1), ("validation", 1)]
    (alone,) = lines_of(call("runs", "compare", "--where", "judge_by=validation", "--json", "--store", tmp_path))
    assert alone["average_accuracy"] == store.get(judged).average_accuracy


def test_a_run_that_was_stopped_is_told_from_one_that_goes_on(call, tmp_path):
    store, spec = Store(tmp_path), small_spec("SI")
    claim = store.claim(spec)
    for status in ("running", "stopped"):
        assert status in call("runs", "list", "--store", tmp_path).stdout
        (row,) = lines_of(call("runs", "list", "--store", tmp_path, "--json"))
        assert row["status"] == status
        shown = call("runs", "show", spec.id, "--store", tmp_path).stdout
        assert f"run {spec.id}: {status}" in shown
        claim.release()


def test_runs_can_be_picked_out(runs):
    def ids(*options):
        return {row["id"] for row in lines_of(runs("list", "--json", *options))}

    assert ids("-m", "si") == {SPECS[0].id, SPECS[1].id}
    assert ids("--measure", "SI", "--measure", "SOS", "--where", "seed=0") == {SPECS[0].id, SPECS[2].id}
    assert ids("--where", "status=failed") == {SPECS[3].id}
    assert ids("--where", "learning_rate=1e30", "--scenario", "permuted-digits") == {SPECS[3].id}
    assert ids("--where", "gradient_term=no", "--where", "network=-", "-m", "SOS") == {SPECS[2].id}
    assert ids("-m", "SOS", "--where", "seed=1") == set()
    assert ids("--where", "status=stopped") == ids("--where", "judge_by=validation") == set()
    (line,) = lines_of(runs("compare", "-m", "SI", "--where", "seed=1", "--json"))
    assert (line["measure"], line["runs"]) == ("SI", 1)
    assert "None of the 4 runs in" in runs("list", "-m", "SOS", "--where", "seed=1").stdout
    assert "None of the 3 finished runs in" in runs("compare", "-m", "SOS", "--where", "seed=1").stdout


def test_what_no_run_has_cannot_be_picked_out(runs):
    for command in ("list", "compare"):
        for options, told in (
            (("-m", "SII"), "No run here has measure 'SII'; there are "),
            (("--where", "epoch=1"), "No field of a run is called 'epoch'. Did you mean 'epochs' "),
            (("--where", "epochs"), "--where epochs: expected FIELD=VALUE"),
            (("--where", "epochs=many"), "No run here has epochs 'many'; there are 1."),
            (("--where", "status=over"), "No run here has status 'over'; there are damaged, failed, finished, "),
        ):
            shown = runs(command, *options)
            assert (shown.exit_code, shown.stdout) == (2, "") and told in shown.stderr


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
