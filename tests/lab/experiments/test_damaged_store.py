"""Files of a store that were changed from outside: each is named, none is believed, and the rest goes on."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from anchorhold.errors import DamagedError
from anchorhold_lab.cli.app import app
from anchorhold_lab.experiments import Failure, Store, StoreDamaged, execute
from anchorhold_lab.experiments.store.checkpoints import has_checkpoint
from tests.lab.experiments.helpers import StopAfter, result_of, same_result, small_spec

PUBLISHED = Path(__file__).parents[3] / "results" / "paper" / "store"


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def finished(store, spec, accuracy=0.5):
    claim = store.claim(spec)
    claim.finish(result_of(spec, accuracy))
    claim.release()
    return store.run_folder(spec.id) / "result.json"


def anchorhold(*arguments):
    found = CliRunner().invoke(app, list(map(str, arguments)))
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    return found


# Results


def test_every_change_to_a_result_is_noticed(store):
    """Values that would each be right by themselves; ``torture/bit_flips.py`` flips bits."""
    spec = small_spec()
    path = finished(store, spec)
    whole = path.read_text()
    for one, other in (
        ("0.5", "0.7"),
        ('"a device"', '"b device"'),
        ('"resumed": 0', '"resumed": 2'),
        ("2026", "2025"),
    ):
        path.write_text(whole.replace(one, other, 1))
        with pytest.raises(DamagedError, match="does not match its checksum"):
            store.get(spec)
    path.write_text(json.dumps(json.loads(whole)))  # the same, in other words
    assert store.get(spec) == result_of(spec, 0.5)


def without_checksum(path, **changes):
    """Write a result as 0.1.0 did, with other values."""
    values = json.loads(path.read_text())
    values.pop("checksum", None)
    path.write_text(json.dumps(values | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"matrix": [[0.5, 0.5, -5]] * 3},
        {"matrix": [[0.5, 0.5, math.nan]] * 3},
        {"matrix": [[0.5, 0.5, 1.5]] * 3},
        {"matrix": [[0.5, 0.5, True]] * 3},
        {"matrix": [[0.5, 0.5, 0.4]] * 3},  # which the metrics tell
        {"untrained": [0.5, math.inf, 0.5]},
        {"untrained": [0.5, 0.1, 0.5]},
        {"metrics": {}},
        {"metrics": None},
        {"side_by_side": 0},
        {"side_by_side": 1.5},
        {"side_by_side": -1},
        {"resumed": -1},
        {"training_seconds": -1.0},
        {"training_seconds": math.nan},
        {"total_seconds": math.inf},
        {"state_digest": 3},
        {"device": None},
        {"commit": 7},
        {"versions": {"torch": 2}},
        {"finished_at": "yesterday"},
    ],
    ids=str,
)
def test_results_without_a_checksum_are_in_range_or_refused(store, changes):
    spec = small_spec()
    path = finished(store, spec)
    without_checksum(path)
    assert store.get(spec) == result_of(spec, 0.5)
    without_checksum(path, **changes)
    with pytest.raises(DamagedError, match=r"is damaged \(.*Restore or remove it"):
        store.get(spec)
    assert [entry.status for entry in store.entries()] == ["damaged"]


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a":' * 100_000, "9" * 5000, '{"checksum": 3}', "\ud800"])
def test_json_that_would_end_the_reader_is_damage(store, content):
    spec = small_spec()
    path = finished(store, spec)
    for name in ("result.json", "spec.json"):
        (path.parent / name).write_text(content, errors="surrogatepass")
    with pytest.raises(DamagedError, match=r"result\.json"):
        store.get(spec)
    with pytest.raises(DamagedError, match=r"spec\.json"):
        store.spec(spec.id)


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="not a checkout")
def test_published_results_are_whole_as_they_are():
    """They were written before there were checksums."""
    some = sorted(Store(PUBLISHED).ids())[::40]
    assert len(some) > 5
    assert {Store(PUBLISHED).entry(run).status for run in some} <= {"finished", "failed"}  # a strength that diverged


def test_a_damaged_result_is_told_as_damaged_and_neither_made_again_nor_lost(store):
    spec, other = small_spec(), small_spec(seed=1, epochs=1)
    path = finished(store, spec)
    damaged = path.read_text().replace("0.5", "0.7", 1)
    path.write_text(damaged)
    summary = execute([spec, other], store, device="cpu")
    (skipped,) = summary.skipped
    assert (skipped.spec, skipped.why) == (spec, "damaged") and str(path) in skipped.reason
    assert [result.spec for result in summary.finished] == [other] and path.read_text() == damaged


def test_the_command_line_names_it_and_goes_on(store):
    spec, other = small_spec(), small_spec(seed=1)
    path = finished(store, spec)
    finished(store, other, 0.25)
    without_checksum(path, side_by_side=0)
    for command in ("list", "compare"):
        found = anchorhold("runs", command, "--store", store.folder)
        assert found.exit_code == 4 and "25.0" in found.output and str(path) in found.stderr
    shown = anchorhold("runs", "show", spec.id[:8], "--store", store.folder)
    assert shown.exit_code == 4 and "permuted-digits" in shown.stdout and shown.stderr.count(str(path)) == 1


# Failures


def test_a_stray_copy_of_a_failure_is_named_and_hides_nothing(store):
    spec, other = small_spec(), small_spec(seed=1)
    claim = store.claim(spec)
    claim.fail(Failure("too bad", "2026-01-01T00:00:00+00:00", "a device", None, {"torch": "2"}))
    claim.release()
    finished(store, other)
    first = store.run_folder(spec.id) / "failure-1.json"
    stray = first.with_name("failure-1 (copy).json")
    stray.write_bytes(first.read_bytes())
    assert [failure.reason for failure in store.failures(spec)] == ["too bad"]
    entries = {entry.id: entry for entry in store.entries()}
    assert entries[other.id].status == "finished" and str(stray) in entries[spec.id].damage
    assert entries[spec.id].failures == tuple(store.failures(spec))
    assert execute([spec], store, device="cpu").skipped[0].reason == "too bad"
    found = anchorhold("runs", "show", spec.id, "--store", store.folder)
    assert found.exit_code == 4 and "too bad" in found.stdout and str(stray) in found.stderr


@pytest.mark.parametrize("change", [("too bad", "too good"), ('"a device"', "3"), ("{", "[")])
def test_a_damaged_failure_is_named(store, change):
    spec = small_spec()
    claim = store.claim(spec)
    claim.fail(Failure("too bad", "2026-01-01T00:00:00+00:00", "a device", None, {"torch": "2"}))
    claim.release()
    path = store.run_folder(spec.id) / "failure-1.json"
    path.write_text(path.read_text().replace(*change, 1))
    with pytest.raises(DamagedError, match=r"failure-1.json"):
        store.failures(spec)
    assert str(path) in execute([spec], store, device="cpu").skipped[0].reason


# Runs that were begun together


def begun(store, specs):
    """Begin some runs together, and return their group's folder, which has a checkpoint."""
    stop = StopAfter(3)
    execute(specs, store, device="cpu", side_by_side=len(specs), on_event=stop.on_event, stop=stop)
    (folder,) = (path for path in store.folder.glob("groups/*") if has_checkpoint(path))
    return folder


def gone_on(store, specs, side_by_side=1):
    events = []
    summary = execute(specs, store, device="cpu", side_by_side=side_by_side, on_event=events.append)
    assert len(summary.finished) == len(specs)
    told = [event.reason for event in events if isinstance(event, StoreDamaged)]
    assert told == summary.damaged
    return summary, told


DAMAGED = ["", "{", "null", "[]", "[1, 2]", '["a", "b"]', "[" * 100_000]


@pytest.mark.parametrize("content", DAMAGED, ids=lambda text: text[:10])
def test_which_runs_were_begun_together_is_read_from_their_checkpoint(store, content, tmp_path):
    specs = [small_spec(0), small_spec(1)]
    folder = begun(store, specs)
    (folder / "members.json").write_text(content)
    summary, told = gone_on(store, specs)
    assert told == [] and all(result.resumed == 1 and result.side_by_side == 2 for result in summary.finished)
    alone = execute(specs, Store(tmp_path / "alone"), device="cpu", side_by_side=2).finished
    assert all(same_result(*pair) for pair in zip(summary.finished, alone, strict=True))


def test_a_group_that_cannot_be_read_is_named_once_and_the_rest_goes_on(store):
    specs = [small_spec(0), small_spec(1)]
    folder = begun(store, specs)
    members = folder / "members.json"
    members.write_text("[")
    for checkpoint in folder.glob("*.safetensors"):
        checkpoint.write_bytes(b"nothing")
    summary, told = gone_on(store, [*specs, small_spec(2)])
    assert len(told) == 1 and str(members) in told[0] and "begin anew" in told[0]
    assert all(result.resumed == 0 for result in summary.finished)
    assert members.read_text() == "["
    place = ("--store", store.folder, "--device", "cpu")
    options = ("--tasks", 2, "--epochs", 1, "--samples", 50, "--hidden", 8)
    found = anchorhold("run", "permuted-digits", "-m", "SI", *options, *place)
    assert found.exit_code == 4 and str(members) in found.stderr and "%" in found.stdout


def test_a_damaged_spec_of_a_run_in_a_group_does_not_stop_the_others(store):
    """One of them has failed and its spec is damaged, so that nobody knows what trained beside the other."""
    specs = [small_spec(0), small_spec(1)]
    begun(store, specs)
    claim = store.claim(specs[0])
    claim.fail(Failure("too bad", "2026-01-01T00:00:00+00:00", "a device", None, {"torch": "2"}))
    claim.release()
    path = store.run_folder(specs[0].id) / "spec.json"
    path.write_text("{")
    summary, told = gone_on(store, [specs[1], small_spec(2)])
    assert len(told) == 1 and str(path) in told[0]
    assert [result.resumed for result in summary.finished] == [0, 0]


def test_a_checkpoint_of_something_else_is_set_aside(store):
    """Its checksum fits: it is what a probe has seen, under another name."""
    spec = small_spec(probes=("importances",))
    stop = StopAfter(3)
    execute(spec, store, device="cpu", on_event=stop.on_event, stop=stop)
    elsewhere = Store(store.folder.parent / "elsewhere")
    execute(spec, elsewhere, device="cpu")
    folder = store.run_folder(spec.id)
    for checkpoint in folder.glob("*.safetensors"):
        checkpoint.write_bytes((elsewhere.run_folder(spec.id) / "observations.safetensors").read_bytes())
    (result,) = execute(spec, store, device="cpu").finished
    assert result.resumed == 0 and list(folder.glob("rejected-*"))


def test_observations_that_are_something_else_are_refused(store):
    """A checkpoint under another name, whose checksum fits."""
    spec = small_spec(probes=("importances",))
    stop = StopAfter(3)
    execute(spec, store, device="cpu", on_event=stop.on_event, stop=stop)
    folder = store.run_folder(spec.id)
    checkpoint = next(folder.glob("*.safetensors")).read_bytes()
    execute(spec, store, device="cpu")
    (folder / "observations.safetensors").write_bytes(checkpoint)
    with pytest.raises(DamagedError, match="is not what probes have seen"):
        store.observations(spec)


def test_a_result_is_written_as_it_always_was_but_for_its_checksum(store):
    path = finished(store, small_spec())
    values = json.loads(path.read_text())
    assert len(values.pop("checksum")) == 16
    assert values == json.loads(json.dumps(result_of(small_spec(), 0.5).to_dict()))
    fields = {field.name for field in dataclasses.fields(result_of(small_spec(), 0.5))}
    assert fields - set(values) == {
        "retention",
        "strength_record",
    }  # which came later, and are left out where there are none
