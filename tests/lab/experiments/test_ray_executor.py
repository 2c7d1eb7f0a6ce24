"""Runs on a real Ray: the results of the local executor, whatever happens to the workers."""

import dataclasses
import os

import pytest

from anchorhold.errors import ClusterError, ConfigurationError, DataError
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
from anchorhold_lab.experiments.on_ray import ray_executor
from anchorhold_lab.experiments.on_ray.ray_executor import execute_on_ray
from anchorhold_lab.experiments.on_ray.worker import run_group
from tests.lab.experiments.helpers import StopAfter, same_result, small_spec
from tests.lab.experiments.ray_helpers import Killer, MailboxKiller, kill_mailbox, post_until_stopped

# A Ray takes seconds to start, and so does every worker after one was killed.
pytestmark = pytest.mark.usefixtures("on_ray")


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """Results of the local executor, each run by itself."""
    store = Store(tmp_path_factory.mktemp("local"))

    def result_of(spec):
        execute(spec, store)
        return store.get(spec)

    return result_of


def kinds(events):
    return [type(event) for event in events if not isinstance(event, RunProgress)]


def names(store):
    return {str(path.relative_to(store.folder)) for path in store.folder.rglob("*") if path.is_file()}


def test_results_files_and_events_are_those_of_the_local_executor(store, tmp_path, local):
    specs = [small_spec(seed) for seed in range(3)] + [small_spec(watch=("EWC",), probes=("importances",))]
    events, expected = [], []
    summary = execute_on_ray(specs, store, on_event=events.append)
    here = Store(tmp_path / "local")
    execute(specs, here, on_event=expected.append)
    assert sorted(result.spec.id for result in summary.finished) == sorted(spec.id for spec in specs)
    assert (summary.failed, summary.skipped, summary.interrupted) == ([], [], False)
    assert all(same_result(store.get(spec), local(spec)) for spec in specs)
    assert names(store) == names(here)
    for spec in specs:

        def of_this(told, run=spec.id):
            for event in told:
                match event:
                    case RunProgress(specs=(one,)) if one.id == run:
                        yield event.progress.task, event.progress.step, event.progress.losses, event.outcomes
                    case RunStarted() if event.spec.id == run:
                        yield event
                    case RunFinished() if event.result.spec.id == run:
                        yield type(event)

        assert list(of_this(events)) == list(of_this(expected))
    assert str(store.observations(specs[-1])) == str(here.observations(specs[-1]))
    result, same = store.get(specs[0]), here.get(specs[0])
    assert (result.device, result.versions, result.side_by_side) == (same.device, same.versions, same.side_by_side)

    again = execute_on_ray(specs, store)
    assert [skipped.why for skipped in again.skipped] == ["finished already"] * 4 and not again.finished


def test_a_killed_worker_costs_a_retry_and_no_result(store, tmp_path, local, monkeypatch):
    # Deaths are counted from the last checkpoint that arrived, so the second is as good as the first.
    monkeypatch.setattr(ray_executor, "_DEATHS", 2)
    specs = [small_spec(seed) for seed in range(3)]
    with Killer(tmp_path, specs[1], times=2) as killer:
        summary = execute_on_ray(specs, store, on_event=killer.on_event, checkpoint_seconds=0)
    assert len(killer.killed) == 2
    assert len(summary.finished) == 3 and not summary.failed
    assert all(same_result(store.get(spec), local(spec)) for spec in specs)
    assert [store.get(spec).resumed for spec in specs] == [0, 2, 0]  # it went on from what it had sent
    started = [event.resumed for event in killer.events if isinstance(event, RunStarted) and event.spec == specs[1]]
    assert started == [False, True, True]
    assert not list(store.folder.rglob("*.safetensors"))


@pytest.mark.nightly
def test_a_killed_group_goes_on_together(store, tmp_path):
    specs = [small_spec(seed) for seed in range(3)]
    with Killer(tmp_path, specs[0], progress=8) as killer:
        summary = execute_on_ray(specs, store, side_by_side=3, on_event=killer.on_event, checkpoint_seconds=0)
    assert len(killer.killed) == 1
    assert [(result.side_by_side, result.resumed) for result in summary.finished] == [(3, 1)] * 3
    together = execute(specs, tmp_path / "local", side_by_side=3).finished
    assert all(same_result(store.get(result.spec), result) for result in together)
    assert not list(store.folder.glob("groups/*"))


@pytest.mark.nightly
def test_runs_over_which_workers_die_again_and_again_fail_and_the_others_go_on(store, tmp_path, local, monkeypatch):
    monkeypatch.setattr(ray_executor, "_DEATHS", 2)
    with Killer(tmp_path, small_spec(0), times=2, progress=2) as killer:
        summary = execute_on_ray([small_spec(0), small_spec(1)], store, on_event=killer.on_event)
    assert len(killer.killed) == 2
    assert [result.spec for result in summary.finished] == [small_spec(1)]
    (failed,) = summary.failed
    assert failed.spec == small_spec(0) and failed.reason.startswith("2 workers died over it, one after another: ")
    (failure,) = store.failures(small_spec(0))
    assert failure.reason == failed.reason and failure.device == "cpu"
    # It had sent no checkpoint in that time, so it begins anew.
    (result,) = execute_on_ray(small_spec(0), store, retry=True).finished
    assert result.resumed == 0 and same_result(result, local(small_spec(0)))


@pytest.mark.nightly
def test_a_killed_mailbox_costs_a_retry_and_no_result(store, tmp_path, local):
    done, under_way = small_spec(0), small_spec(1)
    with MailboxKiller(tmp_path, done, under_way) as killer:
        summary = execute_on_ray([done, under_way], store, on_event=killer.on_event, checkpoint_seconds=0)
    assert len(summary.finished) == 2 and not summary.failed
    assert all(same_result(store.get(spec), local(spec)) for spec in (done, under_way))
    started = [(event.spec, event.resumed) for event in killer.events if isinstance(event, RunStarted)]
    assert sorted(started, key=lambda of: (of[0].seed, of[1])) == [(done, False), (under_way, False), (under_way, True)]
    assert not list(store.folder.rglob("*.safetensors"))
    kill_mailbox()  # and one that dies between two calls costs nothing
    assert len(execute_on_ray(small_spec(2), store).finished) == 1


def test_mailboxes_that_die_again_and_again_end_the_call_and_the_next_goes_on(store, tmp_path, local, monkeypatch):
    monkeypatch.setattr(ray_executor, "_DEATHS", 1)
    done, under_way = small_spec(0), small_spec(1)
    with MailboxKiller(tmp_path, done, under_way) as killer, pytest.raises(ClusterError) as ending:
        execute_on_ray([done, under_way], store, on_event=killer.on_event, checkpoint_seconds=0)
    assert "Ray has ended while runs were under way: The actor died" in str(ending.value)
    assert "\n" not in str(ending.value)
    assert store.status(under_way) == "started" and store.failures(under_way) == []
    (result,) = execute_on_ray([done, under_way], store).finished
    assert result.resumed == 1 and same_result(result, local(under_way))


def test_a_run_that_diverges_is_written_down_and_the_others_go_on(store):
    bad, good = small_spec(optimizer="sgd", learning_rate=1e20), small_spec()
    events = []
    summary = execute_on_ray([bad, good], store, on_event=events.append)
    assert [result.spec for result in summary.finished] == [good]
    assert [failed.spec for failed in summary.failed] == [bad]
    assert kinds(events).count(RunFailed) == 1
    assert [failure.reason for failure in store.failures(bad)] == [summary.failed[0].reason]
    assert "diverged" in summary.failed[0].reason
    assert [skipped.why for skipped in execute_on_ray(bad, store).skipped] == ["failed before"]
    assert len(execute_on_ray(bad, store, retry=True).failed) == 1
    assert len(store.failures(bad)) == 2


def test_a_request_to_stop_saves_and_either_executor_goes_on(store, local, monkeypatch):
    specs = [small_spec(seed) for seed in range(4)]
    stop = StopAfter(1)

    def patient(attempt, specs, parcel, work, mailbox):
        return run_group(attempt, specs, parcel, work, post_until_stopped(mailbox))

    monkeypatch.setattr(ray_executor, "_run_and_post", patient)
    summary = execute_on_ray(specs, store, on_event=stop.on_event, stop=stop)
    assert summary.interrupted and not summary.finished
    begun = [spec for spec in specs if list(store.run_folder(spec.id).glob("*-task.safetensors"))]
    assert 1 <= len(begun) <= 2  # the others, for which there was no core, were called off
    monkeypatch.undo()
    # The claims are gone, so this process can go on with them.
    (result,) = execute(begun[0], store).finished
    assert result.resumed == 1 and same_result(result, local(begun[0]))
    execute_on_ray(specs, store)
    assert all(same_result(store.get(spec), local(spec)) for spec in specs)
    assert all(store.get(spec).resumed == 1 for spec in begun)


def test_a_request_to_stop_calls_off_a_worker_that_has_begun_and_not_said_so(store, tmp_path, monkeypatch, local):
    begun = tmp_path / "begun"

    def silent(attempt, specs, parcel, work, mailbox):
        begun.touch()
        while begun.exists():  # until it is interrupted
            pass

    monkeypatch.setattr(ray_executor, "_run_and_post", silent)
    summary = execute_on_ray(small_spec(), store, stop=begun.exists)
    assert summary.interrupted and not summary.finished and not summary.failed
    assert store.status(small_spec()) == "started"
    monkeypatch.undo()
    (result,) = execute_on_ray(small_spec(), store).finished
    assert same_result(result, local(small_spec()))


def test_a_request_to_stop_before_anything_began(store):
    summary = execute_on_ray(small_spec(), store, stop=lambda: True)
    assert summary.interrupted and not store.folder.exists()


def test_what_the_local_executor_began_goes_on_from_there(store, local):
    stop = StopAfter(4)
    execute(small_spec(), store, on_event=stop.on_event, stop=stop)
    (result,) = execute_on_ray(small_spec(), store).finished
    assert result.resumed == 1 and same_result(result, local(small_spec()))


def test_a_damaged_checkpoint_is_kept_in_the_store(store, local):
    stop = StopAfter(2)
    execute(small_spec(), store, on_event=stop.on_event, stop=stop)
    (checkpoint,) = store.folder.rglob("*-task.safetensors")
    checkpoint.write_bytes(b"damage")
    events = []
    (result,) = execute_on_ray(small_spec(), store, on_event=events.append).finished
    assert same_result(result, local(small_spec()))
    (rejected,) = [event for event in events if isinstance(event, CheckpointRejected)]
    assert rejected.kept.read_bytes() == b"damage" and rejected.kept.parent == store.run_folder(small_spec().id)


def test_a_run_that_another_process_has_is_left_to_it(store):
    claim = store.claim(small_spec(0))
    summary = execute_on_ray([small_spec(0), small_spec(1)], store)
    claim.release()
    assert summary.skipped == [RunSkipped(small_spec(0), "being run by another process")]
    assert [result.spec for result in summary.finished] == [small_spec(1)]


def test_others_leave_alone_what_is_being_made_here(store):
    seen = []

    def look(event):
        if isinstance(event, RunStarted):
            seen.append(execute(small_spec(), store).skipped[0].why)

    assert len(execute_on_ray(small_spec(), store, on_event=look).finished) == 1
    assert seen == ["being run by another process"]


def test_missing_data_is_noticed_before_anything_runs_and_the_node_is_named(store, tmp_path):
    with pytest.raises(DataError, match=r"MNIST.* on node .*: every node of the cluster needs the data"):
        execute_on_ray([small_spec(), Spec("permuted-mnist")], store, data_dir=tmp_path / "none")
    assert not store.folder.exists()


def test_settings_that_do_not_fit_the_data_are_noticed_before_anything_runs(store):
    too_large = dataclasses.replace(small_spec(), settings=dataclasses.replace(small_spec().settings, batch_size=9999))
    with pytest.raises(ConfigurationError, match=r"batch_size=9999 for a task of 1438 samples.* on node "):
        execute_on_ray([small_spec(), too_large], store)
    assert not store.folder.exists()


def test_a_bug_is_not_taken_for_a_failed_run_and_the_others_save(store, tmp_path, monkeypatch, local):
    broken, good = small_spec(0), small_spec(1)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def buggy(attempt, specs, parcel, work, mailbox):
        if specs[0] == broken:
            pipe.read_text()
            raise KeyError("a bug")
        return run_group(attempt, specs, parcel, work, post_until_stopped(mailbox))

    def go_wrong_now(event):
        if isinstance(event, RunProgress) and pipe.exists():
            pipe.write_text("")
            pipe.unlink()

    monkeypatch.setattr(ray_executor, "_run_and_post", buggy)
    with pytest.raises(KeyError, match="a bug"):
        execute_on_ray([good, broken], store, on_event=go_wrong_now)
    monkeypatch.undo()
    assert store.status(broken) == "started" and store.failures(broken) == []
    assert len(execute_on_ray([good, broken], store).finished) == 2
    assert same_result(store.get(good), local(good)) and store.get(good).resumed == 1


@pytest.mark.nightly
def test_a_listener_that_raises_ends_everything_at_once(store):
    with pytest.raises(KeyboardInterrupt):
        execute_on_ray([small_spec(seed, epochs=4000) for seed in range(3)], store, on_event=_interrupt)
    assert all(store.claim(small_spec(seed, epochs=4000)) is not None for seed in range(3))  # nobody holds them now
    # The cores are free again: what comes next does not wait for minutes.
    assert len(execute_on_ray(small_spec(), store).finished) == 1


def _interrupt(event):
    if isinstance(event, RunProgress):
        raise KeyboardInterrupt


def test_arguments_that_make_no_sense(store):
    with pytest.raises(ConfigurationError, match="expected 'cuda' or 'cpu'"):
        execute_on_ray(small_spec(), store, device="cuda:1")
    with pytest.raises(ConfigurationError, match="device='cuda', of which the Ray cluster has none"):
        execute_on_ray(small_spec(), store, device="cuda")
    with pytest.raises(ConfigurationError, match="side_by_side=0"):
        execute_on_ray(small_spec(), store, side_by_side=0)
    with pytest.raises(ConfigurationError, match="checkpoint_seconds=-1"):
        execute_on_ray(small_spec(), store, checkpoint_seconds=-1)
    with pytest.raises(ConfigurationError, match="connected to Ray already"):
        execute_on_ray(small_spec(), store, address="auto")
    assert not store.folder.exists()
