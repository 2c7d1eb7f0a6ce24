"""The network and the digits that every library is given."""

import copy
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from anchorhold.digits import load_digits

SAMPLES = 1024  # a multiple of all batch sizes, so that no smaller last batch blurs what is compared
LEARNING_RATE = 1e-3
EPOCHS = 10
"""Of training by a library, from fresh weights, for the measures that follow the path."""


@dataclass(frozen=True)
class Problem:
    """Images, their labels, and a network before and after it has learned them."""

    inputs: Tensor
    labels: Tensor
    fresh: nn.Sequential
    trained: nn.Sequential

    def network(self, *, trained: bool = True) -> nn.Sequential:
        """Return a copy that the caller may do anything with."""
        return copy.deepcopy(self.trained if trained else self.fresh)

    def dataset(self) -> TensorDataset:
        return TensorDataset(self.inputs, self.labels)

    def loader(self, batch: int, *, shuffle: bool = False) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(self.dataset(), batch_size=batch, shuffle=shuffle)

    @property
    def classes(self) -> int:
        last = self.trained[-1]
        assert isinstance(last, nn.Linear)
        return last.out_features

    def labels_of(self, inputs: Tensor) -> Tensor:
        """Return the labels of images that somebody else's loader has drawn."""
        known = self._labels_by_image()
        return torch.tensor([known[_key(image)] for image in inputs])

    def _labels_by_image(self) -> dict[bytes, int]:
        return _labels_by_image(self)


@cache
def _labels_by_image(problem: Problem) -> dict[bytes, int]:
    return {_key(image): int(label) for image, label in zip(problem.inputs, problem.labels, strict=True)}


def _key(image: Tensor) -> bytes:
    return image.detach().float().numpy().tobytes()


def digits_problem(samples: int = SAMPLES, hidden: tuple[int, int] = (48, 24), epochs: int = 30) -> Problem:
    """Return the digits and a 64-48-24-10 network with ReLU, 4546 weights."""
    images, labels = load_digits()
    inputs, labels = images[:samples].flatten(1).contiguous(), labels[:samples]
    torch.manual_seed(0)
    first, second = hidden
    fresh = nn.Sequential(nn.Linear(64, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, 10))
    trained = copy.deepcopy(fresh)
    optimizer = torch.optim.Adam(trained.parameters(), lr=LEARNING_RATE)
    for _ in range(epochs):
        for chosen in torch.randperm(len(inputs)).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(trained(inputs[chosen]), labels[chosen]).backward()
            optimizer.step()
    optimizer.zero_grad()
    return Problem(inputs, labels, fresh, trained.eval())
