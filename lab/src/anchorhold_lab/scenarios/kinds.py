"""The three kinds of continual learning, which any sequence of tasks can be learned as.

What an input is to be told from makes the difference: of its own task's classes, when the task is known (task-
incremental) or not (domain-incremental), or of all classes so far (class-incremental). Van de Ven, Tuytelaars and
Tolias 2022, "Three types of incremental learning" (Nature Machine Intelligence 4).
"""

from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor

from anchorhold.settings import choice
from anchorhold_lab.scenarios.tasks import Samples, Scenario, Task

Kind = Literal["task", "domain", "class"]
"""task: a head each. domain: one head, in which all tasks have the same labels. class: one head that grows, in which
every task has labels of its own."""

CLOSED = -1e9
"""The score of a class that has not come yet: so low that its probability is 0 in any precision, and yet a number."""


def of_kind(scenario: Scenario, kind: Kind) -> Scenario:
    """Return the same tasks, learned in another of the three ways.

    >>> of_kind(split(digits_dataset(), 2, flat=True), "class")

    With ``"class"``, the outputs of classes that no task has brought yet stay closed, in training and in predictions:
    :func:`open_outputs` is the softmax's mask, which makes a whole head one that grows.

    Args:
        scenario: tasks whose labels begin at 0, whichever head they have.
        kind: ``"task"``, ``"domain"`` or ``"class"``.
    """
    choice("kind", kind, get_args(Kind))
    name, each = f"{scenario.name}, {kind}-incremental", scenario.classes
    if kind == "task":
        tasks = [replace(task, head=i) for i, task in enumerate(scenario.tasks)]
    elif kind == "domain":
        tasks = [replace(task, head=0) for task in scenario.tasks]
    else:
        tasks = [_with_own_labels(task, i * each, (i + 1) * each) for i, task in enumerate(scenario.tasks)]
    return Scenario(name, tuple(tasks), each * (len(tasks) if kind == "class" else 1))


def open_outputs(logits: Tensor, outputs: int | None) -> Tensor:
    """Return scores in which all but the first so many classes are closed; with ``None``, as they are."""
    if outputs is None or outputs >= logits.shape[-1]:
        return logits
    closed = torch.full_like(logits[..., outputs:], CLOSED)
    return torch.cat([logits[..., :outputs], closed], dim=-1)


def _with_own_labels(task: Task, first: int, outputs: int) -> Task:
    def moved(samples: Samples | None) -> Samples | None:
        return None if samples is None else Samples(samples.x, samples.y + first)

    train, test = moved(task.stored_train), moved(task.stored_test)
    assert train is not None and test is not None
    return replace(
        task,
        stored_train=train,
        stored_test=test,
        stored_validation=moved(task.stored_validation),
        stored_kept=moved(task.stored_kept),
        head=0,
        outputs=outputs,
    )
