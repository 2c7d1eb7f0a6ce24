"""Steps are counted before anything runs, and agree with what the engine tells."""

import dataclasses

import pytest

from anchorhold.errors import ConfigurationError
from anchorhold_lab.data.locations import Datasets
from anchorhold_lab.experiments import RunProgress, Spec, execute
from anchorhold_lab.experiments.running.step_counts import StepCounts
from anchorhold_lab.training import Settings
from tests.lab.experiments.helpers import small_spec

JOINTLY = {"measure": "fine-tune", "settings": Settings(epochs=1, batch_size=256, trains="jointly"), "engine": "plain"}

COLUMNS = {"measure": "EWC", "settings": Settings(epochs=1, batch_size=256, compress=2), "engine": "plain"}
UNLIKE = {"usual": {}, "validation": {"judge_by": "validation"}, "jointly": JOINTLY, "two columns": COLUMNS}


@pytest.mark.parametrize("changes", UNLIKE.values(), ids=UNLIKE)
def test_the_count_is_what_a_run_takes(tmp_path, changes):
    spec = small_spec(**changes)
    told = []
    execute(spec, tmp_path, on_event=told.append)
    steps = {event.progress.task: event.progress.steps for event in told if isinstance(event, RunProgress)}
    assert StepCounts(Datasets()).of(spec) == sum(steps.values())


def test_a_batch_that_no_task_can_fill_is_refused():
    counts = StepCounts(Datasets())
    assert counts.of(small_spec()) == 30
    with pytest.raises(ConfigurationError, match="batch_size=256 for a task of"):
        counts.of(small_spec(validation=0.9))


def test_a_skip_of_whole_tasks_is_refused_before_anything_runs(tmp_path):
    spec = small_spec(measure="SOS", measure_settings={"skip": 10})
    with pytest.raises(ConfigurationError, match=r"skip=10.* for a task of 10 steps"):
        execute([small_spec(), spec], tmp_path)
    assert not list(tmp_path.rglob("result.json"))
    StepCounts(Datasets()).of(small_spec(measure="SOS", measure_settings={"skip": 9}))


def test_consolidating_by_itself_with_heads_is_refused_before_anything_runs():
    by_itself = Settings(epochs=1, batch_size=64, consolidate="plateaus")
    spec = Spec("split-digits", measure="SI", tasks=2, settings=by_itself, engine="plain")
    with pytest.raises(ConfigurationError, match="consolidate='plateaus' with heads of their own for tasks"):
        StepCounts(Datasets()).of(spec)
    StepCounts(Datasets()).of(dataclasses.replace(spec, incremental="domain"))
