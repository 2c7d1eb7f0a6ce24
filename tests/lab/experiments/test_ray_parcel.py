"""What travels between stores: everything of a few runs, what has changed since, and a result only when it is whole."""

import numpy as np
import pytest

from anchorhold import registry
from anchorhold.errors import StoreError
from anchorhold_lab.experiments import Failure, RunFinished, Store, execute, load_source, paper_spec
from anchorhold_lab.experiments.on_ray.parcel import Changes, Parcel, pack
from anchorhold_lab.experiments.store.packing import pack as pack_store
from tests.lab.experiments.helpers import StopAfter, same_result, small_spec
from tests.lab.experiments.study_file import write_study


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "here")


@pytest.fixture
def other(tmp_path):
    return Store(tmp_path / "there")


def files(store):
    found = {str(path.relative_to(store.folder)): path for path in store.folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if path.name != "lock"}


def stop_within(store, *specs, **options):
    stop = StopAfter(4)
    assert execute(specs, store, on_event=stop.on_event, stop=stop, checkpoint_seconds=0, **options).interrupted


@pytest.mark.parametrize("together", [1, 2])
def test_a_stopped_run_goes_on_elsewhere_and_comes_back(store, other, tmp_path, together):
    specs = [small_spec(seed) for seed in range(together)]
    stop_within(store, *specs, side_by_side=together)
    parcel = pack(store, specs)
    assert parcel.has_checkpoint
    parcel.unpack(other)
    assert files(other) == files(store)
    changes = Changes(other)
    assert all(result.resumed for result in execute(specs, other, side_by_side=together).finished)
    changes.parcel(checkpoints=True).unpack(store)
    assert files(store) == files(other)
    assert not list(store.folder.rglob("*.safetensors")) and not list(store.folder.glob("groups/*"))
    whole = execute(specs, tmp_path / "whole", side_by_side=together).finished
    assert all(same_result(store.get(result.spec), result) for result in whole)


def test_the_failures_of_a_packed_run_travel_too_and_the_next_one_is_numbered_after_them(store, other):
    spec = small_spec()
    fail(store, spec, "too bad")
    pack_store(store)
    claim = store.claim(spec)
    pack(store, [spec]).unpack(other)
    assert set(files(other)) == {f"runs/{spec.id}/spec.json", f"runs/{spec.id}/failure-1.json"}
    changes = Changes(other)
    fail(other, spec, "once more")
    changes.parcel(checkpoints=True).unpack(store)
    claim.release()
    assert [failure.reason for failure in store.failures(spec)] == ["too bad", "once more"]


def fail(store, spec, reason):
    claim = store.claim(spec)
    claim.fail(Failure(reason, "2026-01-01T00:00:00", "cpu", None, {}))
    claim.release()


def test_only_what_has_changed_travels_and_checkpoints_only_when_asked_for(store):
    changes = Changes(store)
    stop_within(store, small_spec())
    run = f"runs/{small_spec().id}"
    assert set(changes.parcel(checkpoints=False).written) == {f"{run}/spec.json"}
    later = changes.parcel(checkpoints=True)
    assert later.has_checkpoint and f"{run}/spec.json" not in later.written
    assert changes.parcel(checkpoints=True) == Parcel({}, ())
    execute(small_spec(), store)
    last = changes.parcel(checkpoints=False)
    assert set(last.written) == {f"{run}/result.json"} and last.removed == ()
    assert set(changes.parcel(checkpoints=True).removed) == set(later.written)


def test_a_file_that_goes_while_it_is_looked_at_is_left_for_the_next_time(store, monkeypatch):
    changes = Changes(store)
    stop_within(store, small_spec())
    read = np.fromfile

    def too_late(path, kind):
        if path.name.endswith("-task.safetensors"):
            path.unlink()
        return read(path, kind)

    monkeypatch.setattr(np, "fromfile", too_late)
    assert not changes.parcel(checkpoints=True).has_checkpoint
    assert changes.parcel(checkpoints=True) == Parcel({}, ())


def test_observations_come_before_the_result_that_says_they_are_there(store, other, monkeypatch):
    spec = small_spec(watch=("EWC",), probes=("importances",))
    changes = Changes(store)
    sent = []
    execute(
        spec, store, on_event=lambda e: isinstance(e, RunFinished) and sent.append(changes.parcel(checkpoints=False))
    )
    replaced = []
    monkeypatch.setattr("pathlib.Path.replace", lambda self, target: replaced.append(target.name))
    sent[0].unpack(other)
    assert replaced[-1] == "result.json" and "observations.safetensors" in replaced
    monkeypatch.undo()
    sent[0].unpack(other)
    assert set(other.observations(spec)) == {"importances"}


def test_the_file_that_runs_are_made_from_travels_with_them_and_not_back(store, other, tmp_path):
    loaded = load_source(write_study(tmp_path))
    spec = paper_spec("blobs", "SI", epochs=5)
    stop_within(store, spec)
    kept = f"sources/{loaded.digest}.py"
    assert bytes(pack(store, [spec]).written[kept]) == loaded.content
    pack(store, [spec]).unpack(other)
    assert files(other) == files(store)
    registry._FILES.clear()
    changes = Changes(other)
    execute(spec, other)
    parcel = changes.parcel(checkpoints=True)
    assert kept not in (*parcel.written, *parcel.removed)
    parcel.unpack(store)
    assert store.get(spec).resumed == 1


def test_a_result_is_never_overwritten(store, other):
    changes = Changes(store)
    execute(small_spec(), store)
    parcel = changes.parcel(checkpoints=True)
    parcel.unpack(other)
    with pytest.raises(StoreError, match=r"result\.json exists already"):
        parcel.unpack(other)
