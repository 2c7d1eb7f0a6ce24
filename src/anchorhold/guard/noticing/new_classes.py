"""Noticing one head that is taught classes which the guard has not seen: class-incremental learning.

Importance says which weights the old classes need. It says nothing about how an output of today compares with one that
was never trained beside it, and the cheapest way to learn new classes is to let them win everywhere: most of the old
ones are forgotten at any strength that lets new ones be learned.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anchorhold.guard.noticing.telling import is_capturing, tell
from anchorhold.tensors.sharding import is_sharded

ENOUGH = 8
"""Labels below which nothing is said: a few say little about a task."""
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
        return cls(frozenset(label for label in targets.unique().tolist() if label >= 0), len(targets))

    def __or__(self, other: "Classes") -> "Classes":
        labels = self.labels | other.labels
        return Classes(labels if len(labels) <= MOST else frozenset(), self.samples + other.samples)


def together(classes: Iterable[Classes]) -> Classes:
    """Return the labels of all of some samples."""
    found = Classes()
    for some in classes:
        found |= some
    return found


def warn_of_new_classes(before: Collection[int], now: Classes, outputs: int | None) -> None:
    """Warn if none of a task's labels is among those that were consolidated, with one head for all.

    Args:
        before: the labels that were consolidated.
        now: those of the task.
        outputs: how many classes the measured outputs have; ``None`` where they are no plain ``[N, C]``, or where some
            are masked out, so that classes of other tasks have no part in this one's.
    """
    if not before or now.samples < ENOUGH or not now.labels or outputs is None or now.labels & set(before):
        return
    if max(now.labels | set(before)) < outputs:  # else they are labels of other heads than this one
        tell(_ALL_NEW.format(now=_range(now.labels), before=_range(before), outputs=outputs))


_ALL_NEW = (
    "The classes of this task ({now}) are all new: none of those consolidated before ({before}) is among them, and one "
    "head of {outputs} outputs has both. Importance alone does not keep classes that were never seen together "
    "(class-incremental learning): most of the old ones are forgotten at any strength that lets the new ones be "
    "learned. Mix some old samples into the batches, or give each task a head of its own where it is known which task "
    "an input is of: docs/guides/class-incremental.md has both, measured. (If old samples are in every batch already, "
    "pay no heed.)"
)


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

    def look(self, model: nn.Module, before: Collection[int]) -> None:
        """Look at the gradient of a step, and now and then at what they have said so far."""
        if self._steps >= (LOOKED_AT if before else LEARNED) or is_capturing():
            return
        if self._bias is None:
            self._bias = self._output_bias(model)
        if self._bias is None or self._bias.grad is None or self._bias.grad.is_sparse:
            return
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
                self._decide(before, float(now), float(self._most))

    def _decide(self, before: Collection[int], now: float, most: float) -> None:
        """Warn if the old classes have been pushed down as far as they go, and never up."""
        assert self._down is not None
        # A class that is masked out of the loss is pushed nowhere.
        pushed_down = set(self._down.nonzero().flatten().tolist())
        if now <= LEFT * most and pushed_down >= set(before):
            self._steps = LOOKED_AT
            warn_of_new_classes(before, Classes(self.classes, ENOUGH), len(self._down))

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


def _range(labels: Collection[int]) -> str:
    ordered = sorted(labels)
    if len(ordered) == ordered[-1] - ordered[0] + 1 and len(ordered) > 2:
        return f"{ordered[0]} to {ordered[-1]}"
    return ", ".join(map(str, ordered[:6])) + (" …" if len(ordered) > 6 else "")
