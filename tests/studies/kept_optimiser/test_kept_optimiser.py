"""One optimiser for all tasks beside a new one for each."""

import pytest
import torch

from anchorhold_lab.data import digits_dataset
from anchorhold_lab.experiments import paper_spec
from anchorhold_lab.experiments.running.engines import make_learner
from anchorhold_lab.training.plain_run import PlainRun
from studies.benzing2020 import PRESETS
from studies.kept_optimiser import study as kept_optimiser
from studies.kept_optimiser.study import OneOptimiser

DIGITS = {"digits": digits_dataset()}


@pytest.fixture
def spec():
    return paper_spec("split-digits", "fine-tune", hidden=(8,), epochs=1, tasks=3)


@pytest.mark.parametrize("kind", [OneOptimiser, PlainRun])
def test_one_remembers_all_tasks_and_others_their_own(kind, spec):
    run = kind(make_learner(spec, spec.make_scenario(DIGITS), torch.device("cpu")))
    begun, steps = run.optimizer, [run.learner.task_steps(task) for task in range(3)]
    for _ in run.learn():
        pass
    (taken,) = {int(run.optimizer.state[p]["step"]) for p in run.learner.model.body.parameters()}
    assert taken == (sum(steps) if kind is OneOptimiser else steps[-1])
    assert (run.optimizer is begun) == (kind is OneOptimiser)


def test_it_is_the_run_of_the_relatives_and_a_page_says_what_it_came_to(spec):
    (study,) = (each for each in PRESETS["paper"].relatives if each.name == "split-mnist-task")
    assert kept_optimiser.spec_of("mlp", 0).settings == study.runs(study.row("fine-tuning"))[0].settings
    found = kept_optimiser.accuracies(spec, DIGITS, kept=True)
    rows = [{"network": "mlp", "kept": True, "seed": 0, "accuracies": found}]
    assert f"| one for all | 0 | **{sum(found) / 3:.1f}** |" in kept_optimiser.page(rows, {})
