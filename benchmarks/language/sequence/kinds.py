"""What a network is taught: something that gives batches, and says how much of it a network has wrong."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

from torch import Tensor

from benchmarks.language.gpt import GPT
from benchmarks.language.pretrained import Pretrained
from benchmarks.language.training import Device, batches, bits_per_byte, spread

CHOOSES, REPORTED = 0, 1
"""The halves of what is kept apart: one to choose by, and one whose numbers are told."""


class Kind(ABC):
    """One thing to learn.

    Args:
        name: what it is called.
        context: how many bytes of it the network reads at once.
    """

    def __init__(self, name: str, context: int) -> None:
        self.name, self.context = name, context

    @abstractmethod
    def batches(self, steps: int, size: int, seed: int, *purpose: str | int) -> Iterator[Tensor]:
        """Yield ``[size, context + 1]`` bytes for each step, the same ones for one purpose."""

    @abstractmethod
    def wrong(self, device: Device, model: GPT | Pretrained) -> list[float]:
        """Return how much a network has wrong, on the half that chooses and the half that is reported."""


class Text(Kind):
    """Text, of which bits a byte are wrong."""

    def __init__(self, name: str, context: int, train: Tensor, apart: Tensor, windows: int) -> None:
        super().__init__(name, context)
        self.train = train
        self.halves = [spread(half, max(1, windows // 2), context) for half in apart.tensor_split(2)]

    def batches(self, steps: int, size: int, seed: int, *purpose: str | int) -> Iterator[Tensor]:
        """Yield pieces from anywhere in the text."""
        return batches(self.train, steps, size, self.context, seed, *purpose)

    def wrong(self, device: Device, model: GPT | Pretrained) -> list[float]:
        """Return bits a byte."""
        return [bits_per_byte(device, model, half) for half in self.halves]
