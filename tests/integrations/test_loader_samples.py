"""Reading a loader's first samples beside it."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from anchorhold.errors import BatchError
from anchorhold.integrations.loader_samples import first_batches, spread_batches


class Rows(Dataset):
    """Opens its file when it is first read, as data sets do that workers read."""

    def __init__(self):
        self.opened = False

    def __len__(self):
        return 6

    def __getitem__(self, index):
        self.opened = True
        return {"x": torch.tensor([float(index)]), "noise": torch.rand(2), "labels": index % 2}


class Collator:
    """Draws from generators of its own, and takes samples to pieces."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(1)
        self.numpy, self.python = np.random.default_rng(1), random.Random(1)

    def __call__(self, rows):
        x = torch.stack([row.pop("x") for row in rows])
        return x, torch.rand(1, generator=self.generator), self.numpy.random(), self.python.random()


@pytest.mark.parametrize("workers", [0, 2])
def test_the_first_samples_as_the_loader_collates_them(workers):
    data, collator = Rows(), Collator()
    loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=workers, collate_fn=collator)
    torch.manual_seed(3)
    states = torch.get_rng_state(), random.getstate()
    own = collator.generator.get_state(), collator.numpy.bit_generator.state, collator.python.getstate()
    ((x, *_),) = first_batches(loader, 2)
    assert x.tolist() == [[0.0], [1.0], [2.0], [3.0]]  # as many as the loader takes at a time
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
    assert torch.equal(collator.generator.get_state(), own[0])
    assert (collator.numpy.bit_generator.state, collator.python.getstate()) == own[1:]
    assert data.opened == (workers == 0)  # what workers are forked from has opened nothing


def test_rows_stay_whole():
    rows = [{"x": torch.ones(1)} for _ in range(3)]
    assert len(first_batches(DataLoader(rows, batch_size=2, collate_fn=Collator()), 2)) == 1
    assert all("x" in row for row in rows)


def test_a_data_set_of_batches_and_one_of_few_rows():
    batches = [torch.ones(4, 2), torch.zeros(4, 2)]
    (found,) = first_batches(DataLoader(batches, batch_size=None), 2)
    assert torch.equal(found, batches[0])
    (found,) = first_batches(DataLoader([torch.ones(2)], batch_size=8), 2)
    assert found.shape == (1, 2)


class Stream(IterableDataset):
    def __iter__(self):
        raise AssertionError("It was read")


class Refusing(Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        raise KeyError(index)


@pytest.mark.parametrize(
    "loader", [DataLoader(Stream()), DataLoader(Refusing()), [torch.ones(2)], None, iter([torch.ones(2)])]
)
def test_where_nothing_can_be_known(loader):
    assert first_batches(loader, 2) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_spread_over_the_data_in_batches_of_the_loaders_size(workers):
    data, collator = Rows(), Collator()
    loader = DataLoader(data, batch_size=2, shuffle=True, num_workers=workers, collate_fn=collator)
    state, own = torch.get_rng_state(), collator.generator.get_state()
    assert [batch[0].flatten().tolist() for batch in spread_batches(loader, 3)] == [[0.0, 2.0], [4.0]]
    assert [batch[0].flatten().tolist() for batch in spread_batches(loader, 64)] == [[0, 1], [2, 3], [4, 5]]
    assert torch.equal(torch.get_rng_state(), state) and torch.equal(collator.generator.get_state(), own)
    whole = [torch.full((4, 1), float(number)) for number in range(40)]
    found = spread_batches(DataLoader(whole, batch_size=None), 16)
    assert [float(batch[0, 0]) for batch in found] == [0.0, 20.0]


def test_what_cannot_be_read_is_told():
    class Stream(IterableDataset):
        def __iter__(self):
            yield torch.ones(1)

    class Broken(Rows):
        def __getitem__(self, index):
            raise OSError("the file is gone")

    with pytest.raises(BatchError, match="Stream is a stream"):
        spread_batches(DataLoader(Stream(), batch_size=2), 4)
    with pytest.raises(BatchError, match="list is no DataLoader"):
        spread_batches([torch.ones(2)], 4)
    with pytest.raises(BatchError, match="OSError: the file is gone"):
        spread_batches(DataLoader(Broken(), batch_size=2), 4)
    assert spread_batches(DataLoader([], batch_size=2), 4) == []
