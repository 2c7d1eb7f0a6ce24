"""The classes of a task: read from the labels of batches, or told from the gradients of its steps.

A guard saves the classes that were consolidated. ``monitors/new_classes.py`` compares them with those of the next task.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anchorhold.tensors.sharding import is_sharded

MOST = 10_000
"""Different labels beyond which they are none of a classifier's."""
FIRST = 16
"""Steps of a task after which its classes are compared with those before, and then whenever they have doubled."""
LEFT = 0.05
"""What is left of the probability that old classes had for new samples, when they have been pushed down."""
LOOKED_AT = 1024
"""Steps of a task in which new classes are looked for."""
LEARNED = 128
"""Steps of a first task by which its classes are known."""


@dataclass(frozen=True)
class Classes:
    """The labels that some samples have, and how many samples that are."""

    labels: frozenset[int] = frozenset()
    samples: int = 0

    @classmethod
    def of(cls, targets: Tensor | None) -> "Classes":
        """Return those of a batch's targets: one whole number a sample, or nothing that could be told."""
        if targets is None or targets.ndim != 1 or targets.is_floating_point() or targets.dtype == torch.bool:
            return cls()
        return cls(frozenset(targets[targets >= 0].unique().tolist()), len(targets))

    def __or__(self, other: "Classes") -> "Classes":
        labels = self.labels | other.labels
        return Classes(labels if len(labels) <= MOST else frozenset(), self.samples + other.samples)


def together(classes: Iterable[Classes]) -> Classes:
    """Return the labels of all of some samples."""
    found = Classes()
    for some in classes:
        found |= some
    return found


class HeadGradients:
    """Tells a task's classes from its steps: those whose bias in the output layer the loss pushes up.

    The gradient of cross-entropy with respect to the bias of a class is the mean of q, less the share of samples that
    have it as their label: only a class that is there can have a negative one. At first an old class that is there may
    have a positive one too, as long as new samples are taken for it; but when that is over, and hardly any probability
    is left to the old classes, one that is there would have been pushed up.
    """

    def __init__(self, known: Iterable[int] = ()) -> None:
        self._known = frozenset(known)
        self._steps = 0
        self._bias: nn.Parameter | None = None
        self._up: Tensor | None = None
        self._down: Tensor | None = None
        self._most: Tensor | None = None

    def look(self, model: nn.Module, before: Collection[int]) -> int | None:
        """Look at the gradient of a step.

        Return the number of the head's outputs if the old classes have been pushed down as far as they go.
        """
        if self._steps >= (LOOKED_AT if before else LEARNED):
            return None
        if self._bias is None:
            self._bias = self._output_bias(model)
        if self._bias is None or self._bias.grad is None or self._bias.grad.is_sparse:
            return None
        gradient = self._bias.grad.detach()
        self._steps += 1
        if self._up is None or self._down is None or self._up.shape != gradient.shape:
            self._up, self._down, self._most = gradient < 0, gradient > 0, None
        else:  # which may have been moved to another device since
            self._up = self._up.to(gradient.device) | (gradient < 0)
            self._down = self._down.to(gradient.device) | (gradient > 0)
        if before and max(before) < len(gradient):
            old = torch.zeros(len(gradient), dtype=torch.bool)
            old[list(before)] = True
            now = (gradient * old.to(gradient.device)).clamp(min=0).sum()
            self._most = now if self._most is None else torch.maximum(self._most.to(now.device), now)
            if self._steps >= FIRST and self._steps.bit_count() == 1:  # an accelerator has to be waited for
                # A class that is masked out of the loss is pushed nowhere.
                pushed_down = set(self._down.nonzero().flatten().tolist())
                if float(now) <= LEFT * float(self._most) and pushed_down >= set(before):
                    self._steps = LOOKED_AT
                    return len(self._down)
        return None

    def _output_bias(self, model: nn.Module) -> nn.Parameter | None:
        """Return the bias of the last linear layer that has one, if it has several outputs."""
        layers = [module for module in model.modules() if type(module) is nn.Linear and module.bias is not None]
        if not layers or not 2 <= layers[-1].out_features <= MOST or is_sharded(layers[-1].bias):
            self._steps = LOOKED_AT  # there is nothing to look at
            return None
        return layers[-1].bias

    @property
    def classes(self) -> frozenset[int]:
        """The classes that were pushed up so far, also before this task was resumed."""
        return self._known if self._up is None else self._known.union(self._up.nonzero().flatten().tolist())

    def __getstate__(self) -> dict[str, Any]:
        return {"known": self.classes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["known"])  # type: ignore[misc]
