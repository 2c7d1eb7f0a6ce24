import shutil

import numpy as np
import pytest

from anchorhold_lab.experiments import Store
from studies.benzing2020.drawing import task_columns
from studies.benzing2020.drawing.summed_importance import sums_over_tasks
from studies.benzing2020.findings import NotMeasuredError, Results
from studies.benzing2020.needed_runs import control_runs, correlation_runs

pytestmark = pytest.mark.nightly


def seen(results, runs, probe):
    return [results.store.observations(spec.id)[probe]["tasks"] for spec in runs]


def si_with_sos(runs):
    return [[task["correlations"]["after"]["SI|SOS"] for task in run] for run in runs]


def test_there_is_a_row_for_each_run_and_a_column_for_each_task(results):
    found = task_columns.correlations(results, "P-MNIST", "SI", "SOS")
    expected = si_with_sos(seen(results, correlation_runs(results.preset, "P-MNIST"), "importances"))
    assert found.shape == (2, 2)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(found, task_columns.correlations(results, "P-MNIST", "SOS", "SI"))


def test_before_and_after_rescaling_differ(results):
    before = task_columns.correlations(results, "CIFAR", "SI", "SOS", when="before")
    assert not np.array_equal(before, task_columns.correlations(results, "CIFAR", "SI", "SOS"))


def test_the_decrease_in_loss_is_what_training_took_off_it(results):
    tasks = seen(results, correlation_runs(results.preset, "CIFAR"), "path")
    expected = [[task["loss_before"] - task["loss_after"] for task in run] for run in tasks]
    np.testing.assert_array_equal(task_columns.loss_decreases(results, "CIFAR"), expected)
    np.testing.assert_array_equal(
        task_columns.full_paths(results, "CIFAR"), [[task["full_path"] for task in run] for run in tasks]
    )


def test_the_controls_are_runs_of_their_own(results):
    expected = si_with_sos(seen(results, control_runs(results.preset, "c = 0"), "importances"))
    np.testing.assert_array_equal(task_columns.control_correlations(results, "c = 0"), expected)


def test_each_task_is_averaged_over_runs():
    first, second = task_columns.each_task(np.array([[1.0, 5.0], [3.0, 5.0]]))
    assert (first.mean, first.error, first.count) == (2.0, 1.0, 2)
    assert (second.mean, second.error) == (5.0, 0.0)


def test_what_was_not_measured_is_named(nothing):
    with pytest.raises(NotMeasuredError, match="none of the 2 runs on split-digits that look at path has finished"):
        task_columns.full_paths(nothing, "CIFAR")


def test_a_store_without_what_was_seen_is_as_good_as_one_without_the_runs(results, tmp_path):
    store = Store(tmp_path / "store")
    for spec in correlation_runs(results.preset, "CIFAR"):
        store.run_folder(spec.id).mkdir(parents=True)
        shutil.copy(results.store.run_folder(spec.id) / "result.json", store.run_folder(spec.id))
    with pytest.raises(NotMeasuredError, match="that look at path has left in the store what it saw"):
        task_columns.full_paths(Results(store, results.preset), "CIFAR")


def test_heads_have_a_part_of_the_path_where_tasks_have_heads(results):
    tasks = seen(results, correlation_runs(results.preset, "CIFAR"), "path")
    expected = [[task["head_path"] for task in run] for run in tasks]
    np.testing.assert_array_equal(task_columns.head_paths(results, "CIFAR"), expected)
    assert task_columns.head_paths(results, "CIFAR").all()
    assert not task_columns.head_paths(results, "P-MNIST").any()


def test_runs_from_before_heads_were_looked_at_still_have_sums(results):
    before = Results(results.store, results.preset)
    for spec in correlation_runs(results.preset, "CIFAR"):
        found = results.store.observations(spec.id)
        for entry in found["path"]["tasks"]:
            del entry["head_path"]
        before._observations[spec.id] = found
    with pytest.raises(NotMeasuredError, match="heads' part of the path was not looked at"):
        task_columns.head_paths(before, "CIFAR")
    assert {row[0] for row in sums_over_tasks(before, "CIFAR").rows} == {
        *("SI", "SIU", "full gradient", "decrease in loss")
    }
