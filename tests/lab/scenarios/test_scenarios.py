import numpy as np
import pytest
import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, TensorDataset

from anchorhold.errors import ConfigurationError
from anchorhold_lab.data import Dataset, Images
from anchorhold_lab.scenarios import Samples, permuted, scenario_of, split, split_cifar


def make_dataset(classes=10, per_class=12, shape=(1, 4, 4), name="toy"):
    rng = np.random.default_rng(classes)

    def images(count):
        labels = torch.arange(classes).repeat(count)
        return Images(torch.from_numpy(rng.integers(0, 256, (len(labels), *shape), dtype=np.uint8)), labels, classes)

    return Dataset(name, images(per_class), images(3))


def test_permuted_tasks_reorder_the_same_pixels():
    dataset = make_dataset()
    scenario = permuted(dataset, 4, seed=1)
    assert (scenario.heads, scenario.classes, scenario.input_shape) == (1, 10, (16,))
    original = dataset.train.pixels.flatten(1).float() / 255
    orders = set()
    for task in scenario.tasks:
        train, test = task.train, task.test
        assert torch.equal(train.x.sort(1).values, original.sort(1).values)
        assert not torch.equal(train.x, original)  # the first task has an order of its own, too
        assert torch.equal(train.y, dataset.train.labels)
        column = [int((original == train.x[:, [i]]).all(0).nonzero()[0]) for i in range(16)]
        assert torch.equal(test.x, (dataset.test.pixels.flatten(1).float() / 255)[:, column])
        orders.add(tuple(column))
    assert len(orders) == 4


def test_the_seed_decides_the_orders_and_the_validation_seed_the_split():
    dataset = make_dataset()

    def first(**seeds):
        return permuted(dataset, 2, validation=0.25, **seeds).tasks[0]

    assert torch.equal(first(seed=3).train.x, first(seed=3).train.x)
    assert not torch.equal(first(seed=3).train.x, first(seed=4).train.x)
    assert torch.equal(first(seed=3).stored_train.x, first(seed=4).stored_train.x)
    assert not torch.equal(first(seed=3).stored_train.x, first(seed=3, validation_seed=1).stored_train.x)


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_validation_takes_its_share_and_nothing_twice(share):
    dataset = make_dataset()
    for scenario in (permuted(dataset, 2, validation=share), split(dataset, 5, validation=share)):
        for task in scenario.tasks:
            whole = len(task.train) + len(task.validation)
            assert len(task.validation) == round(share * whole)
            rows = torch.cat([task.stored_train.x, task.stored_validation.x]).flatten(1)
            assert len(torch.unique(rows, dim=0)) == whole
    assert permuted(dataset, 2).tasks[0].validation is None


def test_split_tasks_have_classes_and_heads_of_their_own():
    dataset = make_dataset()
    scenario = split(dataset, 2)
    assert (len(scenario), scenario.heads, scenario.classes) == (5, 5, 2)
    for i, task in enumerate(scenario.tasks):
        assert task.head == i
        chosen = (dataset.train.labels == 2 * i) | (dataset.train.labels == 2 * i + 1)
        assert torch.equal(task.train.x, dataset.train.pixels[chosen].float() / 255)
        assert torch.equal(task.train.y, dataset.train.labels[chosen] - 2 * i)
        assert len(task.test) == 6
    assert split(dataset, 2, tasks=3, flat=True).input_shape == (16,)


@pytest.mark.parametrize("tasks", [2, 6, 11])
def test_split_cifar(tasks):
    ten, hundred = make_dataset(10, shape=(3, 4, 4)), make_dataset(100, per_class=10, shape=(3, 4, 4))
    scenario = split_cifar(ten, hundred, tasks)
    assert (len(scenario), scenario.heads, scenario.classes) == (tasks, tasks, 10)
    assert len(scenario.tasks[0].train) == 108  # 90 % of 120
    assert len(scenario.tasks[1].train) == 90
    assert scenario.tasks[1].test.y.unique().tolist() == list(range(10))
    last = scenario.tasks[-1].test.x[0]
    assert torch.equal(last, hundred.test.pixels[10 * (tasks - 2)].float() / 255)


def test_a_scenario_of_ones_own():
    class Squares(TorchDataset):
        def __len__(self):
            return 5

        def __getitem__(self, i):
            return torch.full((3,), float(i)), i % 2

    samples = Samples(torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2]))
    tensors = TensorDataset(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))
    scenario = scenario_of([(samples, samples), (Squares(), tensors)], name="mine")
    assert (scenario.heads, scenario.classes, scenario.input_shape) == (2, 3, (3,))
    assert scenario.tasks[1].train.y.tolist() == [0, 1, 0, 1, 0]
    assert torch.equal(scenario.tasks[1].test.x, tensors.tensors[0])
    shared = scenario_of([(samples, samples)] * 2, own_heads=False, validation=0.5)
    assert shared.heads == 1
    assert len(shared.tasks[0].train) == len(shared.tasks[0].validation) == 3


class Endless(IterableDataset):
    def __iter__(self):
        return iter(())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: permuted(make_dataset(), 0), "tasks=0"),
        (lambda: permuted(make_dataset(), 2, validation=1.0), "validation=1.0"),
        (lambda: split(make_dataset(), 2, tasks=6), "6 tasks of 2 classes"),
        (lambda: split(make_dataset(), 1), "at least 2 classes"),
        (lambda: split(make_dataset(), 0), "at least 2 classes"),
        (lambda: split_cifar(make_dataset(), make_dataset(100), 12), "expected 2 to 11"),
        (lambda: Samples(torch.zeros(3, 2), torch.zeros(2)), "3 inputs and 2 labels"),
        (lambda: scenario_of([]), "at least one task"),
        (lambda: scenario_of([(Endless(), Endless())]), "without a length"),
        (
            lambda: scenario_of([(Samples(torch.zeros(1, 2), torch.tensor([7])),) * 2], classes=3),
            "A label 7 and classes=3",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


@pytest.mark.parametrize(
    ("task", "given"),
    [
        ((torch.zeros(3, 2), torch.zeros(3)), "a tuple of Tensor, Tensor"),
        (((torch.zeros(3, 2), torch.zeros(3)),), "a tuple of tuple"),
        (torch.zeros(3, 2), "a Tensor"),
    ],
)
def test_a_task_without_its_two_parts_is_named(task, given):
    x, y = torch.zeros(3, 2), torch.zeros(3, dtype=torch.long)
    with pytest.raises(ConfigurationError, match=f"Task 2 is {given}; expected its training and its test samples"):
        scenario_of([((x, y), (x, y)), task])


def test_all_of_it_prints_in_a_few_lines():
    scenario = permuted(make_dataset(), 5, seed=1, validation=0.25)
    assert str(scenario).splitlines() == [
        f"Scenario {scenario.name!r}: 5 tasks of 10 classes, one head, inputs of 16",
        *(f"  {task!r}" for task in scenario.tasks[:3]),
        "  and 2 more",
    ]
    first = scenario.tasks[0]
    assert repr(first) == (
        f"Task({first.name!r}: 90 samples to learn from, 30 to choose settings by, 30 to be judged by)"
    )
    assert repr(first.train) == "Samples(90 of 16, labels 0 to 9)"
    heads = split(make_dataset(), 2)
    assert "5 heads, inputs of 1 × 4 × 4" in str(heads)
    assert repr(heads.tasks[1]).endswith(", head 1)")
