"""Tasks of unequal sizes and in another order, as a spec asks for them."""

import pytest
import torch

from anchorhold.errors import ConfigurationError
from anchorhold_lab.data.digits import digits_dataset
from anchorhold_lab.experiments import Spec, Store, execute, paper_spec

DATASETS = {"digits": digits_dataset()}


def made(**changes):
    return paper_spec("split-digits", "SI", tasks=3, **changes).make_scenario(DATASETS)


def test_each_task_has_its_share_of_samples_and_is_judged_by_all():
    usual, few = made(), made(sizes=(1, 0.1, 0.5))
    whole, tenth, half = (len(task.stored_train) for task in few.tasks)
    assert (tenth, half) == (round(len(usual.tasks[1].stored_train) / 10), round(len(usual.tasks[2].stored_train) / 2))
    assert whole == len(usual.tasks[0].stored_train)
    assert [len(task.stored_test) for task in few.tasks] == [len(task.stored_test) for task in usual.tasks]
    assert made(sizes=(1, 0.1, 0.5)).tasks[1].stored_train.x.equal(few.tasks[1].stored_train.x)


def test_tasks_come_in_the_order_that_is_asked_for_each_with_its_head():
    usual, turned = made(), made(order=(2, 0, 1))
    assert [task.name for task in turned.tasks] == [usual.tasks[number].name for number in (2, 0, 1)]
    assert [task.head for task in turned.tasks] == [2, 0, 1] and turned.heads == 3


def test_a_head_grows_in_the_order_in_which_tasks_come():
    usual, turned = made(), made(order=(2, 0, 1), sizes=(1, 1, 0.5), incremental="class")
    assert [task.outputs for task in turned.tasks] == [2, 4, 6]
    for i, (task, number) in enumerate(zip(turned.tasks, (2, 0, 1), strict=True)):
        before = usual.tasks[number]
        assert task.name == before.name and torch.equal(task.stored_test.y, before.stored_test.y + 2 * i)
    assert len(turned.tasks[0].stored_train) == round(len(usual.tasks[2].stored_train) / 2)


def test_what_changes_nothing_is_the_same_run_and_what_cannot_be_is_refused():
    usual = paper_spec("split-digits", "SI", tasks=3)
    assert paper_spec("split-digits", "SI", tasks=3, sizes=(1, 1, 1), order=(0, 1, 2)).id == usual.id
    unlike = paper_spec("split-digits", "SI", tasks=3, sizes=(1, 0.1, 1), order=[2, 0, 1])
    assert unlike.id != usual.id and Spec.from_dict(unlike.to_dict()) == unlike
    assert paper_spec("split-digits", "SI", tasks=3, sizes=(1, 0.1)).sizes == (1, 0.1, 1)  # by turns
    sizes = [(1, 0.1, 1, 1), (1, 0, 1), (True, 0.1), ("a",), "a", 0.5, None]
    order = [(0, 1), (0, 1, 1), (1.0, 0, 2), (True, False, 2), ("a", 0, 1), 3, None]
    for name, given in [("sizes", wrong) for wrong in sizes] + [("order", wrong) for wrong in order]:
        with pytest.raises(ConfigurationError, match=rf"{name}=.*: expected .*(3 tasks|0 to 2)"):
            Spec("split-digits", "SI", tasks=3, **{name: given})


def test_such_runs_train_side_by_side_and_their_steps_are_counted(tmp_path):
    changes = {"tasks": 3, "hidden": (8,), "epochs": 2, "batch_size": 20, "sizes": (1, 0.1, 1), "order": (1, 2, 0)}
    specs = [paper_spec("split-digits", "SOS", seed=seed, **changes) for seed in (0, 1)]
    told = []
    execute(specs, Store(tmp_path), device="cpu", side_by_side=2, on_event=told.append)
    results = [Store(tmp_path).get(spec.id) for spec in specs]
    assert [result.side_by_side for result in results] == [2, 2] and len(results[0].matrix) == 3
    # The task of a tenth is learned first: 28 samples make one step an epoch, 287 and 284 make fourteen.
    steps = {event.steps for event in told if type(event).__name__ == "RunStarted"}
    assert steps == {2 * (1 + 14 + 14)}
