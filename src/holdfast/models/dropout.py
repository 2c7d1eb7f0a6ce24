"""Dropout that draws from a stream of its own."""

from typing import TypeVar

import torch
from torch import Tensor, nn

Model = TypeVar("Model", bound=nn.Module)


class Dropout(nn.Dropout):
    """As :class:`torch.nn.Dropout`, but with a generator of its own if it is given one.

    Runs that train side by side in one process then drop the same units as each would alone. ``kept`` may instead say
    which units are kept, as zeros and ones: whoever records a step for replay draws them beforehand.
    """

    kept: Tensor | None

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p)
        self.generator: torch.Generator | None = None
        self.register_buffer("kept", None, persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        """Drop units with probability p while training, and scale up the others."""
        if self.kept is not None:
            return input * (self.kept / (1 - self.p))
        if not self.training or self.p == 0 or self.generator is None:
            return super().forward(input)
        return input * draw_kept_(torch.empty_like(input), self.p, self.generator).div_(1 - self.p)


def draw_kept_(kept: Tensor, p: float, generator: torch.Generator) -> Tensor:
    """Draw which units are kept, as zeros and ones, in place."""
    return kept.bernoulli_(1 - p, generator=generator)


def with_own_dropout(model: Model) -> Model:
    """Let all of a model's dropout layers be of this kind."""
    for module in model.modules():
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, Dropout(child.p).train(child.training))
    return model


def give_generator(model: nn.Module, generator: torch.Generator | None) -> None:
    """Let all dropout layers of a model draw from one generator."""
    for module in model.modules():
        if isinstance(module, Dropout):
            module.generator = generator
