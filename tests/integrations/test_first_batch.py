"""A look at data that is about to be trained with must not use any of it up."""

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from holdfast.integrations.guards import first_batch

X = torch.arange(12.0).reshape(6, 2)


def test_a_loader_is_not_started():
    class NeverIterated(DataLoader):
        def __iter__(self):
            raise AssertionError

    (found,) = first_batch(NeverIterated(TensorDataset(X, X[:, 0]), batch_size=4, shuffle=True))
    assert torch.equal(found[0], X[:2]) and torch.equal(found[1], X[:2, 0])
    (found,) = first_batch(NeverIterated(TensorDataset(X), batch_size=None))
    assert torch.equal(found[0], X[0])


def test_random_numbers_are_those_of_training():
    class Noisy(Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, n):
            return X[n] + torch.randn(2)

    torch.manual_seed(0)
    expected = torch.randn(1)
    torch.manual_seed(0)
    assert len(first_batch(DataLoader(Noisy(), batch_size=2))) == 1
    assert torch.equal(torch.randn(1), expected)


def test_data_that_a_look_would_use_up_is_left_alone():
    class Stream(IterableDataset):
        def __iter__(self):
            raise AssertionError

    assert first_batch(DataLoader(Stream())) == []
    assert first_batch(iter([X])) == []


def test_data_that_two_samples_tell_nothing_about_is_left_alone():
    class ByPairs(Dataset):
        """Its sampler gives pairs of numbers."""

        def __len__(self):
            return 3

        def __getitem__(self, pair):
            return X[pair[0]] - X[pair[1]]

    assert first_batch(DataLoader(ByPairs())) == []
    assert first_batch(DataLoader(TensorDataset(X[:0]))) == []


def test_of_a_list_the_first_one():
    assert first_batch([X, None]) == [X]
    assert first_batch([]) == []
