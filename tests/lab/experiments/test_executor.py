"""The executor: every run once, side by side where that is possible, and one run's trouble stays its own."""

import dataclasses
import threading

import pytest
import torch

from anchorhold.errors import ConfigurationError, DataError
from anchorhold_lab.experiments import (
    CheckpointRejected,
    RunFailed,
    RunFinished,
    RunProgress,
    RunSkipped,
    RunStarted,
    Spec,
    Store,
    execute,
)
from anchorhold_lab.experiments.running import job
from anchorhold_lab.experiments.running.engines import start_engine
from tests.lab.experiments.helpers import StopAfter, following_spec, same_result, small_spec


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


@pytest.fixture
def side_by_side(monkeypatch):
    """Return the sizes of the groups that were started."""
    sizes = []

    def start(specs, datasets, device):
        sizes.append(len(specs))
        return start_engine(specs, datasets, device)

    monkeypatch.setattr(job, "start_engine", start)
    return sizes


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Results of four seeds, each run by itself."""
    store = Store(tmp_path_factory.mktemp("alone"))
    return {result.spec.id: result for result in execute([small_spec(i) for i in range(4)], store).finished}


def kinds(events):
    return [type(event) for event in events if not isinstance(event, RunProgress)]


def test_runs_finish_and_are_never_run_again(store):
    events = []
    specs = [small_spec(0), small_spec(1)]
    summary = execute([*specs, small_spec(0)], store, on_event=events.append)
    assert [result.spec for result in summary.finished] == specs
    assert (summary.failed, summary.skipped, summary.interrupted) == ([], [], False)
    assert kinds(events) == [RunStarted, RunFinished] * 2
    assert store.results() == summary.finished
    again = execute(specs, store, on_event=events.append)
    assert [(skipped.spec, skipped.why) for skipped in again.skipped] == [(s, "finished already") for s in specs]
    assert again.finished == []
    assert kinds(events)[4:] == [RunSkipped] * 2


def test_a_result_says_where_it_comes_from(store):
    (result,) = execute([small_spec()], store).finished
    assert len(result.matrix) == 3 and all(len(row) == 3 for row in result.matrix)
    assert result.average_accuracy > 0.3  # chance is 0.1
    assert result.versions["torch"] == torch.__version__
    assert 0 < result.training_seconds <= result.total_seconds
    assert (result.resumed, result.side_by_side) == (0, 1)


def test_the_same_spec_gives_the_same_result_and_another_seed_another(tmp_path, alone):
    (again,) = execute([small_spec()], Store(tmp_path)).finished
    assert same_result(again, alone[small_spec().id])
    assert len({result.state_digest for result in alone.values()}) == 4


def test_nothing_is_left_but_the_result(store):
    execute([small_spec()], store, checkpoint_seconds=0)
    names = sorted(path.name for path in store.run_folder(small_spec().id).iterdir())
    assert names == ["lock", "result.json", "spec.json"]


def test_progress_comes_with_what_came_out_so_far(store):
    events = []
    execute([small_spec()], store, on_event=events.append)
    progress = [event for event in events if isinstance(event, RunProgress)]
    assert [(e.progress.task, e.progress.learned) for e in progress] == [
        (task, learned) for task in range(3) for learned in (False, False, True)
    ]
    assert progress[-1].specs == (small_spec(),)
    assert [len(event.outcomes[0].matrix) for event in progress] == [0, 0, 1, 1, 1, 2, 2, 2, 3]


@pytest.mark.parametrize("stop_after", range(1, 9))
def test_a_run_that_was_stopped_anywhere_goes_on_exactly(store, alone, stop_after):
    """Nine times is progress told: after two epochs and the end of each of three tasks."""
    stop = StopAfter(stop_after)
    summary = execute([small_spec(), small_spec(1)], store, on_event=stop.on_event, stop=stop)
    assert summary.interrupted and summary.finished == []
    events = []
    summary = execute([small_spec()], store, on_event=events.append)
    assert same_result(summary.finished[0], alone[small_spec().id])
    assert summary.finished[0].resumed == 1
    assert events[0] == RunStarted(small_spec(), True, 1, 30)
    assert sum(isinstance(event, RunProgress) for event in events) == 9 - stop_after


def test_a_request_to_stop_before_anything_began(store):
    event = threading.Event()
    event.set()
    summary = execute([small_spec()], store, stop=event)
    assert summary.interrupted
    assert store.ids() == []


def test_without_a_checkpoint_within_a_task_the_last_finished_task_counts(store, alone):
    class Killed(BaseException):
        pass

    seen = []

    def die(event):
        seen.append(event)
        if isinstance(event, RunProgress) and event.progress.task == 1 and event.progress.epoch == 1:
            raise Killed

    with pytest.raises(Killed):
        execute([small_spec()], store, on_event=die)
    events = []
    summary = execute([small_spec()], store, on_event=events.append)
    first = next(event for event in events if isinstance(event, RunProgress))
    assert (first.progress.task, first.progress.step) == (1, 5)
    assert same_result(summary.finished[0], alone[small_spec().id])


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty"])
def test_a_damaged_checkpoint_is_reported_kept_and_does_not_matter(store, alone, damage):
    stop = StopAfter(5)
    execute([small_spec()], store, on_event=stop.on_event, stop=stop)
    folder = store.run_folder(small_spec().id)
    for path in folder.glob("*.safetensors"):  # both: within the second task, and after the first
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes({"truncated": content[:100], "flipped": content, "empty": b""}[damage])
    events = []
    summary = execute([small_spec()], store, on_event=events.append)
    rejected = [event for event in events if isinstance(event, CheckpointRejected)]
    assert len(rejected) == 2 and all(event.kept.exists() for event in rejected)
    assert {event.going_on for event in rejected} == {"from the beginning"}
    assert same_result(summary.finished[0], alone[small_spec().id])
    assert summary.finished[0].resumed == 0


def test_after_a_damaged_checkpoint_it_is_said_where_training_goes_on(store):
    stop = StopAfter(5)
    execute([small_spec()], store, on_event=stop.on_event, stop=stop)
    (store.run_folder(small_spec().id) / "within-task.safetensors").write_bytes(b"")
    events = []
    execute([small_spec()], store, on_event=events.append)
    (rejected,) = [event for event in events if isinstance(event, CheckpointRejected)]
    assert rejected.going_on == "from task 2, step 0"


def test_a_run_that_diverges_is_written_down_and_the_others_go_on(store):
    """A learning rate of 1e30 takes the weights beyond what a float can hold within a few steps."""
    diverging = small_spec(5, learning_rate=1e30)
    events = []
    summary = execute([diverging, small_spec()], store, on_event=events.append)
    assert kinds(events) == [RunStarted, RunFailed, RunStarted, RunFinished]
    (failed,) = summary.failed
    assert "of task 1: training has diverged" in failed.reason
    assert store.status(diverging.id) == "failed"
    assert [failure.reason for failure in store.failures(diverging.id)] == [failed.reason]
    assert [result.spec for result in store.results()] == [small_spec()]


def test_a_failed_run_is_tried_again_only_when_asked_to(store):
    diverging = small_spec(5, learning_rate=1e30)
    execute([diverging], store)
    (skipped,) = execute([diverging], store).skipped
    assert skipped.why == "failed before" and "training has diverged" in skipped.reason
    assert len(execute([diverging], store, retry=True).failed) == 1
    assert len(store.failures(diverging.id)) == 2


def test_a_failure_that_cannot_be_read_does_not_keep_the_others_from_running(store):
    diverging = small_spec(5, learning_rate=1e30)
    execute([diverging], store)
    (store.run_folder(diverging.id) / "failure-1.json").write_text("{")
    summary = execute([diverging, small_spec()], store)
    (skipped,) = summary.skipped
    assert skipped.why == "failed before" and "failure-1.json" in skipped.reason
    assert [result.spec for result in summary.finished] == [small_spec()]


def test_settings_that_do_not_fit_the_data_are_noticed_before_anything_runs(store):
    too_large = dataclasses.replace(small_spec(), settings=dataclasses.replace(small_spec().settings, batch_size=9999))
    with pytest.raises(ConfigurationError, match="batch_size=9999 for a task of 1438 samples"):
        execute([small_spec(), too_large], store)
    assert store.ids() == []


def test_one_spec_and_a_folder_will_do(tmp_path, alone):
    (result,) = execute(small_spec(), tmp_path / "store").finished
    assert same_result(result, alone[small_spec().id])
    assert Store(tmp_path / "store").results() == [result]


def test_missing_data_is_noticed_before_anything_runs(store, tmp_path):
    with pytest.raises(DataError, match="MNIST is not in"):
        execute([small_spec(), Spec("permuted-mnist")], store, data_dir=tmp_path)
    assert store.ids() == []


def test_a_bug_is_not_taken_for_a_failed_run(store):
    def bug(event):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        execute([small_spec()], store, on_event=bug)
    assert store.status(small_spec().id) == "started"


def test_arguments_that_make_no_sense(store):
    with pytest.raises(ConfigurationError, match="side_by_side=-1"):
        execute([], store, side_by_side=-1)
    with pytest.raises(ConfigurationError, match="checkpoint_seconds=nan"):
        execute([], store, checkpoint_seconds=float("nan"))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [("permuted-digits", "'permuted-digits'"), (["SI"], "'SI'"), (5, "a int"), ([small_spec(), None], "a NoneType")],
)
def test_what_is_no_spec_is_named(store, wrong, named):
    with pytest.raises(ConfigurationError, match=f"^specs has {named}; expected a Spec, or several"):
        execute(wrong, store)
    assert not store.folder.exists()


def test_a_run_that_another_process_has_is_left_to_it(store):
    claim = store.claim(small_spec())
    summary = execute([small_spec(), small_spec(1)], store)
    assert [(s.spec, s.why) for s in summary.skipped] == [(small_spec(), "being run by another process")]
    assert [result.spec for result in summary.finished] == [small_spec(1)]
    claim.release()
    assert len(execute([small_spec()], store).finished) == 1


def test_a_run_that_another_process_gave_up_meanwhile_is_made_after_all(store):
    claim = store.claim(small_spec())

    def free(event):
        if isinstance(event, RunFinished):
            claim.release()

    summary = execute([small_spec(), small_spec(1)], store, on_event=free)
    assert [result.spec for result in summary.finished] == [small_spec(1), small_spec()]


def test_what_a_process_left_that_was_killed_just_after_finishing_is_removed(store):
    stop = StopAfter(4)
    execute([small_spec()], store, on_event=stop.on_event, stop=stop)
    left = store.run_folder(small_spec().id) / "within-task.safetensors"
    content = left.read_bytes()
    execute([small_spec()], store)
    left.write_bytes(content)
    assert execute([small_spec()], store).skipped[0].why == "finished already"
    assert not left.exists()


def test_runs_that_differ_in_seed_and_strength_train_together(store, side_by_side, alone):
    others = [small_spec(measure="SOS"), small_spec(engine="plain"), small_spec(7, strength=1.0)]
    specs = [small_spec(i) for i in range(4)]
    summary = execute([*specs, *others], store, side_by_side=3)
    assert sorted(side_by_side) == [1, 1, 2, 3]
    assert len(summary.finished) == 7
    assert [store.get(spec.id).matrix for spec in specs] == [alone[spec.id].matrix for spec in specs]
    assert store.get(specs[0].id).side_by_side == 3
    assert not list(store.folder.glob("groups/*/*.safetensors"))


def test_groups_are_as_large_as_each_other(store, side_by_side):
    execute([small_spec(seed=seed) for seed in range(5)], store, side_by_side=4)
    assert side_by_side == [3, 2]


def test_what_was_begun_together_goes_on_together(store, side_by_side, alone):
    stop = StopAfter(5)
    specs = [small_spec(i) for i in range(4)]
    execute(specs[:3], store, side_by_side=3, on_event=stop.on_event, stop=stop)
    execute(reversed(specs), store, side_by_side=3)
    assert side_by_side == [3, 3, 1]
    assert [store.get(spec.id).matrix for spec in specs] == [alone[spec.id].matrix for spec in specs]
    assert [store.get(spec.id).resumed for spec in specs] == [1, 1, 1, 0]


@pytest.mark.parametrize("number", [1, 2, 8])
def test_what_was_begun_together_goes_on_together_whatever_the_number_is_now(store, side_by_side, number):
    stop = StopAfter(5)
    specs = [small_spec(i) for i in range(3)]
    execute(specs, store, side_by_side=3, on_event=stop.on_event, stop=stop)
    summary = execute(specs, store, side_by_side=number)
    assert side_by_side == [3, 3]
    assert [result.resumed for result in summary.finished] == [1, 1, 1]
    assert list(store.folder.glob("groups/*")) == []


def test_what_is_left_of_a_group_goes_once_its_runs_have_finished(store):
    stop = StopAfter(5)
    specs = [small_spec(i) for i in range(2)]
    execute(specs, store, side_by_side=2, on_event=stop.on_event, stop=stop)
    for spec in specs:  # each by itself, so that the group's checkpoint is not taken up
        execute(spec, store)
    assert list(store.folder.glob("groups/*")) == []


def test_a_group_killed_between_two_results_writes_the_other_one(store, side_by_side, alone):
    class Killed(BaseException):
        pass

    def die(event):
        if isinstance(event, RunFinished):
            raise Killed

    specs = [small_spec(0), small_spec(1)]
    with pytest.raises(Killed):
        execute(specs, store, side_by_side=2, on_event=die)
    first = (store.run_folder(specs[0].id) / "result.json").stat()
    summary = execute(specs, store, side_by_side=2)
    assert [result.spec for result in summary.finished] == [specs[1]]
    assert summary.finished[0].resumed == 1
    assert summary.finished[0].matrix == alone[specs[1].id].matrix
    assert (store.run_folder(specs[0].id) / "result.json").stat() == first


def test_a_run_that_diverges_beside_others_is_written_down_once(store, side_by_side):
    """SGD with a strength of 1e38 takes the weights beyond what a float can hold, once there is something to hold."""
    specs = [
        small_spec(seed, measure="L2", strength=strength, optimizer="sgd")
        for seed, strength in enumerate((0.01, 1e38, 0.02))
    ]
    stop = StopAfter(6)
    summary = execute(specs, store, side_by_side=3, on_event=stop.on_event, stop=stop)
    assert summary.interrupted and [failed.spec for failed in summary.failed] == [specs[1]]
    assert "of task 2" in summary.failed[0].reason
    summary = execute(specs, store, side_by_side=3)
    assert side_by_side == [3, 3]
    assert [result.spec for result in summary.finished] == [specs[0], specs[2]]
    assert [skipped.why for skipped in summary.skipped] == ["failed before"]
    assert len(store.failures(specs[1].id)) == 1


def test_a_group_that_is_out_of_memory_is_tried_again_in_halves(store, monkeypatch):
    """This engine has room for one run less than three."""
    sizes = []

    def start(specs, datasets, device):
        sizes.append(len(specs))
        if len(specs) > 2:
            raise torch.OutOfMemoryError("no room")
        return start_engine(specs, datasets, device)

    monkeypatch.setattr(job, "start_engine", start)
    summary = execute([small_spec(i) for i in range(5)], store, side_by_side=5)
    assert sizes == [5, 2, 3, 1, 2]
    assert len(summary.finished) == 5 and summary.failed == []


@pytest.mark.parametrize("stop_after", [3, 5])
def test_a_run_with_a_tolerance_that_was_stopped_goes_on_exactly_from_its_files(store, tmp_path, stop_after):
    spec = following_spec()
    stop = StopAfter(stop_after)
    assert execute(spec, store, device="cpu", on_event=stop.on_event, stop=stop).interrupted
    execute(spec, store, device="cpu")
    execute(spec, tmp_path / "whole", device="cpu")
    again, whole = store.get(spec), Store(tmp_path / "whole").get(spec)
    assert again.resumed == 1 and same_result(again, whole) and again.retention == whole.retention
