"""The store: what was finished stays, and what is damaged from outside is named."""

import dataclasses
import json
import re

import pandas as pd
import pytest

from anchorhold.errors import AnchorholdWarning, ConfigurationError, DamagedError, StoreError
from anchorhold_lab.experiments import Failure, Result, Store, execute
from tests.lab.experiments.helpers import following_spec, small_spec


def make_result(spec, last=0.75):
    matrix = ((0.9, 0.1, 0.2), (0.8, 0.9, 0.3), (0.6, 0.9, last))
    return Result(
        spec, matrix, (0.1, 0.1, 0.1), 1.0, 2.0, 1, 0, "d" * 64, "a device", None, {"torch": "2"}, "2026-01-01T00:00:00"
    )


def make_failure(reason):
    return Failure(reason, "2026-01-01T00:00:00+00:00", "a device", None, {"torch": "2"})


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def test_nothing_is_written_by_looking(store):
    assert (store.ids(), store.results(), store.get("abc"), store.failures("abc")) == ([], [], None, [])
    assert store.status("abc") == "unknown"
    assert store.frame().empty and store.curves().empty
    assert not store.folder.exists()


def test_a_result_comes_back_as_it_was_and_is_never_overwritten(store):
    spec = small_spec()
    claim = store.claim(spec)
    assert store.status(spec.id) == "started"
    claim.finish(make_result(spec))
    assert store.get(spec.id) == make_result(spec)
    assert store.status(spec.id) == "finished"
    with pytest.raises(StoreError, match=r"never overwritten"):
        claim.finish(make_result(spec, last=0.1))
    assert store.results() == [make_result(spec)]
    assert store.spec(spec.id) == spec


def test_the_file_tells_the_figures_by_itself(store):
    spec = small_spec()
    store.claim(spec).finish(make_result(spec))
    content = json.loads((store.run_folder(spec.id) / "result.json").read_text())
    assert content["metrics"]["average_accuracy"] == pytest.approx(0.75)
    assert content["metrics"]["forgetting"] == pytest.approx(0.15)
    one_task = dataclasses.replace(make_result(spec), matrix=((0.5,),), untrained=(0.1,))
    assert one_task.to_dict()["metrics"]["forgetting"] is None
    json.dumps(one_task.to_dict(), allow_nan=False)


def test_failures_add_up(store):
    spec = small_spec()
    claim = store.claim(spec)
    for i in range(11):
        claim.fail(make_failure(f"reason {i}"))
    assert [failure.reason for failure in store.failures(spec.id)] == [f"reason {i}" for i in range(11)]
    assert store.status(spec.id) == "failed"
    claim.finish(make_result(spec))
    assert store.status(spec.id) == "finished"


def test_a_run_is_claimed_once_at_a_time(store):
    claim = store.claim(small_spec())
    assert store.claim(small_spec()) is None
    assert store.claim(small_spec(seed=1)) is not None
    claim.release()
    claim.release()
    assert store.claim(small_spec()) is not None


def test_what_a_killed_process_was_writing_is_removed_by_the_next(store):
    folder = store.run_folder(small_spec().id)
    folder.mkdir(parents=True)
    (folder / ".result.json.0123.part").write_bytes(b"{")
    store.claim(small_spec())
    assert sorted(path.name for path in folder.iterdir()) == ["lock", "spec.json"]


def damaged_by(change):
    """Return a result's file with something in it that does not belong there."""

    def changed(content):
        values = json.loads(content)
        change(values)
        return json.dumps(values)

    return changed


@pytest.mark.parametrize(
    "damage",
    [
        *(
            lambda _, content=content: content
            for content in ("", "{", "[]", "{}", "1", "null", '"text"', '{"spec": 1}')
        ),
        lambda content: content[:100],
        damaged_by(lambda values: values.update(colour="red")),
        damaged_by(lambda values: values.update(matrix=5)),
        damaged_by(lambda values: values.update(matrix=[])),
        damaged_by(lambda values: values["matrix"][1].pop()),
        damaged_by(lambda values: values["untrained"].__setitem__(0, "a")),
        damaged_by(lambda values: values.update(training_seconds=None)),
        damaged_by(lambda values: values.update(versions=[], finished_at=3)),
        damaged_by(lambda values: values.update(spec=1)),
    ],
)
def test_a_damaged_result_is_named_with_its_remedy(store, damage):
    spec = small_spec()
    store.claim(spec).finish(make_result(spec))
    path = store.run_folder(spec.id) / "result.json"
    path.write_text(damage(path.read_text()))
    with pytest.raises(DamagedError) as error:
        store.results()
    first = str(error.value).splitlines()[0]
    assert first.startswith(f"{path} is damaged (") and first.endswith(". Restore or remove it.")
    for field in dataclasses.fields(Result):
        assert len(re.findall(rf"\b{field.name}\b", first.removeprefix(str(path)))) <= 1
    path.unlink()
    assert store.status(spec) == "started"  # so that it is made again


def test_a_damaged_result_is_not_made_again_over(store):
    spec, other = small_spec(), small_spec(seed=1, epochs=1)
    store.claim(spec).finish(make_result(spec))
    path = store.run_folder(spec.id) / "result.json"
    path.write_text("{")
    summary = execute([spec, other], store, device="cpu")
    assert ([result.spec for result in summary.finished], path.read_text()) == ([other], "{")
    assert [skipped.spec for skipped in summary.skipped] == [spec]


def test_a_file_of_another_run_is_refused(store):
    mine, other = small_spec(0), small_spec(1)
    for spec in (mine, other):
        store.claim(spec).finish(make_result(spec))
    for name in ("result.json", "spec.json"):
        path = store.run_folder(mine.id) / name
        path.write_text((store.run_folder(other.id) / name).read_text())
    with pytest.raises(StoreError, match=f"result.json belongs to run {other.id}, not to {mine.id}"):
        store.get(mine)
    with pytest.raises(StoreError, match=f"spec.json belongs to run {other.id}, not to {mine.id}"):
        store.spec(mine.id)
    with pytest.raises(StoreError, match="belongs to run"):
        store.results()


def test_damage_to_one_run_does_not_hide_the_others(store):
    late, early, bad = (small_spec(seed) for seed in range(3))
    for spec, day in ((late, 2), (early, 1), (bad, 3)):
        result = dataclasses.replace(make_result(spec), finished_at=f"2026-01-0{day}T00:00:00")
        store.claim(spec).finish(result)
    paths = [store.run_folder(bad.id) / name for name in ("result.json", "spec.json")]
    for path in paths:
        path.write_text("{")
    assert [(entry.id, entry.status) for entry in store.entries()] == [
        (early.id, "finished"),
        (late.id, "finished"),
        (bad.id, "damaged"),
    ]
    assert all(str(path) in store.entries()[-1].damage for path in paths)
    with pytest.warns(AnchorholdWarning, match="result.json"):
        frame = store.frame()
    assert frame.id.tolist() == [early.id, late.id, bad.id]
    assert str(paths[0]) in frame.reason.iloc[-1]
    with pytest.warns(AnchorholdWarning, match="result.json"):
        assert set(store.curves().id) == {early.id, late.id}


def test_a_result_whose_spec_was_removed_is_not_forgotten(store):
    spec = small_spec()
    claim = store.claim(spec)
    claim.finish(make_result(spec))
    claim.release()
    path = store.run_folder(spec.id) / "spec.json"
    whole = path.read_text()
    for damage in (path.unlink, lambda: path.write_text(whole[:30]), lambda: path.write_text("[]")):
        damage()
        (entry,) = store.entries()
        assert (entry.status, entry.spec, store.spec(spec.id), entry.damage) == ("finished", spec, spec, "")
    assert path.read_text() == "[]"  # looking changes nothing
    assert execute(spec, store, device="cpu").skipped[0].why == "finished already"
    assert path.read_text() == whole


def test_the_damaged_spec_of_an_unfinished_run_is_written_again_when_it_goes_on(store):
    spec = small_spec(epochs=1)
    store.claim(spec).release()
    path = store.run_folder(spec.id) / "spec.json"
    whole = path.read_text()
    path.write_text(whole[:30])
    assert [entry.status for entry in store.entries()] == ["damaged"]
    assert len(execute(spec, store, device="cpu").finished) == 1
    assert path.read_text() == whole and [entry.status for entry in store.entries()] == ["finished"]


def test_observations_that_were_removed_are_damage_and_the_result_still_counts(store):
    spec = small_spec(probes=("importances",))
    store.claim(spec).finish(make_result(spec), {"importances": {"tasks": []}})
    path = store.run_folder(spec.id) / "observations.safetensors"
    assert store.has_observations(spec) and [entry.status for entry in store.entries()] == ["finished"]
    path.unlink()
    with pytest.raises(DamagedError, match=rf"{path} is missing: .*or remove the folder {path.parent} to make"):
        store.observations(spec)
    (entry,) = store.entries()
    assert (entry.status, entry.result) == ("damaged", make_result(spec)) and str(path) in entry.damage
    assert store.status(spec) == "finished" and not store.has_observations(spec)
    with pytest.warns(AnchorholdWarning, match="is missing"):
        assert store.frame().average_accuracy.tolist() == pytest.approx([0.75])
    with pytest.warns(AnchorholdWarning, match="is missing"):
        assert len(store.curves()) == 12


def test_a_run_is_found_by_its_spec_and_by_the_beginning_of_its_id(store):
    specs = [small_spec(seed) for seed in range(20)]
    for spec in specs:
        store.claim(spec).finish(make_result(spec))
    for run in (specs[0], specs[0].id, specs[0].id[:8]):
        assert store.get(run) == make_result(specs[0])
        assert store.status(run) == "finished" and store.failures(run) == [] and store.observations(run) == {}
    with pytest.raises(ConfigurationError, match=r"runs begin with '.': .*Give more of the id"):
        store.get(next(s.id[0] for s in specs if sum(t.id[0] == s.id[0] for t in specs) > 1))


def test_a_file_is_no_store(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="is a file; expected a folder"):
        Store(tmp_path / "file")


def test_an_empty_store_has_the_columns_of_every_other(store):
    empty = store.frame()
    spec = small_spec(measure="fine-tune", strength=0.0)
    store.claim(spec).finish(make_result(spec))
    assert [name for name in store.frame().columns if not name.endswith("_version")] == list(empty.columns)


def test_a_run_that_is_not_there_is_asked_for(store):
    with pytest.raises(StoreError, match="There is no run 'abc'"):
        store.spec("abc")


def test_the_frame_has_a_row_for_every_run(store):
    finished, failed, started = small_spec(0, watch=("SOS", "EWC")), small_spec(1), small_spec(2, measure="SOS")
    store.claim(finished).finish(make_result(finished))
    store.claim(failed).fail(make_failure("too bad"))
    store.claim(started)
    frame = store.frame().set_index("id")
    assert frame.loc[[finished.id, failed.id, started.id], "status"].tolist() == ["finished", "failed", "started"]
    row = frame.loc[finished.id]
    assert (row.scenario, row.measure, row.strength, row.seed, row.epochs) == ("permuted-digits", "SI", 10.0, 0, 2)
    assert (row.hidden, row.watch, row["measure.damping"], row.torch_version) == ("32", "EWC SOS", 0.1, "2")
    assert row.average_accuracy == pytest.approx(0.75)
    assert (row.backward_transfer, row.forward_transfer) == (pytest.approx(-0.15), pytest.approx(0.1))
    assert row.finished_at == pd.Timestamp("2026-01-01")
    assert frame.loc[failed.id, "reason"] == "too bad"
    assert frame.average_accuracy.isna().tolist().count(True) == 2


def test_curves_have_a_row_for_every_accuracy(store):
    spec = small_spec()
    store.claim(spec).finish(make_result(spec))
    curves = store.curves()
    assert len(curves) == 12
    assert curves[(curves.learned == 2) & (curves.task == 1)].accuracy.tolist() == [0.8]
    assert curves[curves.learned == 0].accuracy.tolist() == [0.1] * 3
    assert curves.pivot_table(index="learned", columns="task", values="accuracy").loc[3].tolist() == [0.6, 0.9, 0.75]


def test_what_a_run_noted_of_how_it_was_held_comes_back(store):
    usual, relative, following = small_spec(), small_spec(strength=0.0, relative_strength=0.3), following_spec()
    execute([usual, relative, following], store, device="cpu")
    plain, found, followed = (store.get(spec) for spec in (usual, relative, following))
    assert plain.retention == () and "retention" not in plain.to_dict()
    assert (plain.found_strength, plain.worst_kl) == (None, None)
    assert found.found_strength > 0 and found.worst_kl is None
    assert [noted.strength for noted in found.retention] == [found.found_strength] * 3
    assert followed.found_strength == followed.retention[-1].strength == followed.retention[-1].trace[-1].strength
    assert 0 < followed.worst_kl <= 0.05 and [len(noted.sets) for noted in followed.retention] == [0, 1, 2]
    assert Result.from_dict(json.loads(json.dumps(followed.to_dict()))) == followed
    frame = store.frame().set_index("id")
    assert frame.found_strength[relative.id] == found.found_strength and pd.isna(frame.found_strength[usual.id])
    assert frame.worst_kl[following.id] == followed.worst_kl
