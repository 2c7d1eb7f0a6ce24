"""Dropout that draws from a stream of its own."""

import torch
from torch import Tensor, nn


class Dropout(nn.Dropout):
    """As :class:`torch.nn.Dropout`, but with a generator of its own if it is given one.

    Runs that train side by side in one process then drop the same units as each would alone.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p)
        self.generator: torch.Generator | None = None

    def forward(self, input: Tensor) -> Tensor:
        """Drop units with probability p while training, and scale up the others."""
        if self.generator is None or not self.training or self.p == 0:
            return super().forward(input)
        kept = torch.empty_like(input).bernoulli_(1 - self.p, generator=self.generator)
        return input * kept.div_(1 - self.p)


def give_generator(model: nn.Module, generator: torch.Generator | None) -> None:
    """Let all dropout layers of a model draw from one generator."""
    for module in model.modules():
        if isinstance(module, Dropout):
            module.generator = generator
