"""The scenarios by name: how many tasks, which network, and what is kept back."""

import pytest
import torch

from anchorhold_lab.data import Dataset, Images
from anchorhold_lab.data.locations import Datasets
from anchorhold_lab.experiments import SCENARIOS, Spec


def made_up(name):
    """A data set of the right shape and random content: twenty images of each class, four of them for testing."""
    shape, classes = {"MNIST": ((1, 28, 28), 10), "CIFAR-10": ((3, 32, 32), 10), "CIFAR-100": ((3, 32, 32), 100)}[name]
    labels = torch.arange(classes).repeat(20)
    pixels = torch.randint(0, 256, (len(labels), *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    test = len(labels) // 5
    return Dataset(name, Images(pixels[test:], labels[test:], classes), Images(pixels[:test], labels[:test], classes))


@pytest.fixture(scope="module")
def datasets():
    return {name: made_up(name) for name in ("MNIST", "CIFAR-10", "CIFAR-100")} | {"digits": Datasets()["digits"]}


@pytest.mark.parametrize(
    ("name", "tasks", "heads", "train", "kept"),
    [
        ("permuted-mnist", 10, 1, 160, None),
        ("split-cifar", 6, 6, 144, 16),
        ("split-mnist", 5, 5, 32, None),
        ("permuted-digits", 5, 1, 1438, None),
        ("split-digits", 5, 5, None, None),
    ],
)
def test_each_scenario_and_its_network(datasets, name, tasks, heads, train, kept):
    spec = Spec(name)
    scenario = spec.make_scenario(datasets)
    assert (len(scenario), scenario.heads) == (tasks, heads)
    first = scenario.tasks[0]
    assert train is None or len(first.train) == train
    assert (first.validation and len(first.validation)) == kept
    logits = spec.make_network(scenario)(first.train.x[:3], scenario.tasks[-1].head)
    assert logits.shape == (3, scenario.classes)


def test_every_scenario_is_tried_above():
    assert set(SCENARIOS) == {"permuted-mnist", "split-cifar", "split-mnist", "permuted-digits", "split-digits"}


def test_the_seed_decides_pixel_orders_and_not_the_validation_split(datasets):
    def first_validation(seed):
        return Spec("permuted-mnist", seed=seed, judge_by="validation").make_scenario(datasets).tasks[0]

    a, b, again = first_validation(1), first_validation(2), first_validation(1)
    assert torch.equal(a.validation.x, again.validation.x)
    assert not torch.equal(a.validation.x, b.validation.x)
    assert torch.equal(a.stored_validation.x, b.stored_validation.x)
    assert len(a.validation) == 16


def test_hidden_widths_can_be_chosen(datasets):
    spec = Spec("split-mnist", hidden=(7, 5))
    network = spec.make_network(spec.make_scenario(datasets))
    assert [tuple(p.shape) for n, p in network.body.named_parameters() if "weight" in n] == [(7, 784), (5, 7)]


def test_a_data_set_is_read_once():
    datasets = Datasets()
    assert list(datasets) == []
    assert datasets["digits"] is datasets["digits"]
    assert list(datasets) == ["digits"] and len(datasets) == 1
