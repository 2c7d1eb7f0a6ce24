"""A rehearsal refuses what the end of training would refuse, and leaves no trace."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import anchorhold
from tests.guard.helpers import batch, consolidated, loss, net


def test_nothing_changes():
    model = net()
    guard = consolidated(model, watch=[anchorhold.MAS(), anchorhold.SI()])
    loss(model, batch(1)).backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    kept, drawn = copy.deepcopy(guard.state_dict()), (torch.random.get_rng_state(), random.getstate())
    numpys = np.random.get_state()[1].copy()  # noqa: NPY002

    class Noisy(TensorDataset):
        def __getitem__(self, n):
            x, y = super().__getitem__(n)
            return x + random.gauss() + np.random.normal(), y  # noqa: NPY002

    assert guard.rehearse(DataLoader(Noisy(*batch(2)), batch_size=4, shuffle=True)) is None
    state = guard.state_dict()
    assert all(torch.equal(state["tensors"][key], value) for key, value in kept["tensors"].items())
    assert state["tensors"].keys() == kept["tensors"].keys()
    assert torch.equal(torch.random.get_rng_state(), drawn[0]) and random.getstate() == drawn[1]
    assert (np.random.get_state()[1] == numpys).all()  # noqa: NPY002
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))
    assert model.training


def test_two_samples_are_measured_and_one_batch_is_read():
    sizes, read = [], []

    def batches():
        for seed in range(5):
            read.append(seed)
            yield batch(seed)

    def forward(model, x):
        sizes.append(len(x))
        return model(x)

    guard = anchorhold.Guard(net(), anchorhold.Fisher(samples=1000), watch=["sqrtFisher", "MAS"])
    guard.rehearse(batches(), forward=forward)
    assert max(sizes) == 2 and read == [0]


@pytest.mark.daily
@pytest.mark.parametrize(
    ("model", "batches", "error", "message"),
    [
        (net(), None, anchorhold.errors.BatchError, "measures importance from data"),
        (net(), [], anchorhold.errors.BatchError, "there were no batches"),
        (net(), [{"x": 1}], anchorhold.errors.BatchError, "without any tensor"),
        (net(), [torch.randn(8, 7, dtype=torch.float64)], RuntimeError, "shapes cannot be multiplied"),
        (
            nn.Sequential(nn.Linear(4, 3), nn.Softmax(0)).double(),
            [batch()],
            anchorhold.errors.ModelError,
            "other samples",
        ),
    ],
)
def test_what_the_end_refuses_is_refused(model, batches, error, message):
    guard = anchorhold.Guard(model, anchorhold.Fisher())
    for act in (guard.rehearse, guard.consolidate):
        with pytest.raises(error, match=message):
            act(batches)


def test_labels_that_do_not_count_in_the_first_samples_are_no_mistake():
    x, y = batch()
    y[:4] = -100
    guard = anchorhold.Guard(net(), anchorhold.Fisher(labels="true"))
    guard.rehearse([(x, y)])
    guard.consolidate([(x, y)])


def test_a_measure_of_one_sample_is_rehearsed_with_one():
    mixing = nn.Sequential(nn.Linear(4, 3), nn.Softmax(0)).double()
    guard = anchorhold.Guard(mixing, anchorhold.Fisher(samples=1))
    guard.rehearse([batch()])
    guard.consolidate([batch()])


def test_measures_that_look_at_no_data_have_nothing_to_rehearse():
    anchorhold.Guard(net(), anchorhold.SOS(), watch=["L2"]).rehearse()
