"""Training samples that are set aside: which they are, and that nothing else has them."""

import pytest
import torch

from anchorhold.errors import ConfigurationError
from anchorhold_lab.scenarios import Samples, scenario_of
from anchorhold_lab.scenarios.kept_samples import set_aside
from anchorhold_lab.scenarios.tasks import Scenario, Task


def numbered(tasks=2, count=40):
    """Samples that are numbers, none of them twice."""

    def samples(first):
        return Samples(torch.arange(first, first + count).float().unsqueeze(1), torch.arange(count) % 3)

    pairs = [(samples(1000 * i), samples(1000 * i + 500)) for i in range(tasks)]
    return scenario_of(pairs, validation=0.25)


def numbers(samples):
    return set(samples.x.flatten().tolist())


def test_they_are_training_samples_that_nothing_else_has():
    whole = numbered()
    made = set_aside(whole, 7, seed=3)
    assert made.keeps and not whole.keeps
    for task, before in zip(made.tasks, whole.tasks, strict=True):
        assert len(task.stored_kept) == 7 and len(task.stored_train) == 23
        assert numbers(task.stored_kept) | numbers(task.stored_train) == numbers(before.stored_train)
        others = numbers(task.stored_test) | numbers(task.stored_validation)
        assert not numbers(task.stored_kept) & (numbers(task.stored_train) | others)
        assert numbers(task.stored_test) == numbers(before.stored_test)
        assert numbers(task.stored_validation) == numbers(before.stored_validation)
        labels = dict(zip(before.stored_train.x.flatten().tolist(), before.stored_train.y.tolist(), strict=True))
        assert [labels[x] for x in task.stored_kept.x.flatten().tolist()] == task.stored_kept.y.tolist()


def test_the_seed_decides_which():
    sets = [numbers(set_aside(numbered(), 10, seed=seed).tasks[0].stored_kept) for seed in (0, 0, 1)]
    assert sets[0] == sets[1] != sets[2]


def test_what_tasks_share_stays_shared_and_is_transformed_when_it_is_asked_for():
    train, test = (Samples(torch.randn(20, 2), torch.zeros(20).long()) for _ in range(2))
    tasks = tuple(Task(f"task {k}", train, test, transform=lambda x, k=k: x + k) for k in range(2))
    made = set_aside(Scenario("shared", tasks, 2), 5, seed=0).to("cpu")
    first, second = made.tasks
    assert first.stored_kept is second.stored_kept and first.stored_train is second.stored_train
    assert torch.equal(second.kept.x, first.kept.x + 1)


def test_more_than_half_is_refused_with_what_to_take():
    assert len(set_aside(numbered(), 15, seed=0).tasks[0].stored_kept) == 15
    with pytest.raises(ConfigurationError, match=r"kept=16 of the 30 training samples of 'task 1'.*such as kept=6"):
        set_aside(numbered(), 16, seed=0)
