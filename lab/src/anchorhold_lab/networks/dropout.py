"""Dropout that draws from a stream of its own."""

from typing import TypeVar

import torch
from torch import Tensor, nn

from anchorhold.variational import MeanField

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
            return input * (self.kept * self._scale)
        if not self.training or self.p == 0 or self.generator is None:
            return super().forward(input)
        return input * draw_kept_(torch.empty_like(input), self.p, self.generator).mul_(self._scale)

    @property
    def _scale(self) -> float:
        """What is kept is scaled up by; nothing is where p = 1."""
        return 1 / (1 - self.p) if self.p < 1 else 0.0


def draw_kept_(kept: Tensor, p: float, generator: torch.Generator) -> Tensor:
    """Draw which units are kept, as zeros and ones, in place."""
    return kept.bernoulli_(1 - p, generator=generator)


def with_own_dropout(model: Model) -> Model:
    """Let all of a model's dropout layers be of this kind; a layer that stands in several places stays one layer."""
    replaced: dict[nn.Module, Dropout] = {}
    for module in list(model.modules()):
        for name, child in module._modules.items():  # noqa: SLF001 (named_children() leaves out repeated ones)
            if type(child) is nn.Dropout:
                own = replaced.setdefault(child, Dropout(child.p))
                setattr(module, name, own.train(child.training))
    return model


def give_generator(model: nn.Module, generator: torch.Generator | None) -> None:
    """Let all layers of a model that draw, dropout or distributions of weights, do so from one generator."""
    for module in model.modules():
        if isinstance(module, Dropout | MeanField):
            module.generator = generator
