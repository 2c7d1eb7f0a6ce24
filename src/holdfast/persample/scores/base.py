r"""The scores :math:`s_y(x)` whose gradients a measure collects, with their weights :math:`w_y(x)`.

A score only says how it changes with the network's *outputs*; the engine takes it from there to every parameter. Its
answer is a block of rows, each an output gradient with the weight folded in, so that the importance is the plain sum
:math:`\sum_r \varphi(J^T u_r)` over rows r. Rows are made in blocks on demand: with many labels or positions all of
them at once would not fit.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from holdfast.errors import BatchError, ConfigurationError, HoldfastWarning
from holdfast.persample.phi import Phi
from holdfast.persample.scores.softmax import PIECE

IGNORED = -100
"""The label of a position that does not count, as in :func:`torch.nn.functional.cross_entropy`."""

RowMaker = Callable[[int, int, slice], Tensor]
"""``make(start, stop, places)`` returns rows ``start`` to ``stop`` of some positions, as ``[k, N, places, C]``."""

_ONE_OUTPUT = (
    "The model has one output, whose softmax is 1 whatever the weights, so every importance is 0 and nothing is held. "
    "For a regression take MAS(output='logits'). For the logit of one of two classes give the other one too: "
    "forward=lambda model, inputs: torch.nn.functional.pad(model(inputs), (1, 0))."
)

_LEARNED_PROMPT = (
    " If the model puts a learned prompt before its inputs, as PEFT's prompt tuning does, leave out the outputs there: "
    'forward=lambda model, inputs: model(**inputs).logits[:, -inputs["input_ids"].shape[1]:].'
)

Positions = Literal["joint", "separate"]


@dataclass(frozen=True)
class Rows:
    """Output gradients of a chunk of samples: ``count`` rows, ``block(i, j)`` of shape ``[j − i, *outputs.shape]``."""

    count: int
    samples: int
    block: Callable[[int, int], Tensor]


class Score(ABC):
    """What is differentiated: some scores of each sample, as a function of the network's outputs."""

    needs_targets = False
    softmax = False  # whether it is made of a softmax, which wants precise outputs

    @abstractmethod
    def rows(self, outputs: Tensor, targets: Tensor | None, phi: Phi, generator: torch.Generator | None) -> Rows:
        """Return the weighted output gradients of every score of these samples."""


class CustomScore(Score):
    """Any scores of one's own: ``scores(outputs, targets)`` returns ``[N, S]``, differentiable in the outputs.

    Args:
        scores: the S scores of each of the N samples; sample n's may depend on its own outputs only.
        weights: their weights, ``[N, S]`` and not negative, constants of the differentiation; 1 by default.
    """

    def __init__(
        self,
        scores: Callable[[Tensor, Tensor | None], Tensor],
        weights: Callable[[Tensor, Tensor | None], Tensor] | None = None,
    ) -> None:
        self.scores = scores
        self.weights = weights

    def rows(self, outputs: Tensor, targets: Tensor | None, phi: Phi, generator: torch.Generator | None) -> Rows:
        """Return one row a score, differentiated by autograd."""
        leaf = outputs.detach().requires_grad_()
        with torch.enable_grad():
            scores = self.scores(leaf, targets)
        n = len(outputs)
        if scores.ndim != 2 or len(scores) != n:
            raise BatchError(
                f"CustomScore: scores(outputs, targets) returned shape {tuple(scores.shape)} for {n} samples; "
                f"expected [N, S] = [{n}, number of scores]. Return one row a sample."
            )
        if not scores.requires_grad:
            raise BatchError(
                "CustomScore: scores(outputs, targets) returned numbers that do not depend on the outputs; expected a "
                "differentiable function of them. Remove .detach() or torch.no_grad() from it."
            )
        scales = torch.ones_like(scores) if self.weights is None else self.weights(outputs, targets)
        if scales.shape != scores.shape or bool((scales < 0).any()):
            raise BatchError(
                f"CustomScore: weights(outputs, targets) must be of the scores' shape {tuple(scores.shape)} and "
                f"not negative; got shape {tuple(scales.shape)}, minimum {scales.min().item():g}."
            )
        scales = phi.inverse(scales.detach())

        def block(start: int, stop: int) -> Tensor:
            gradients = [
                torch.autograd.grad(scores[:, s], leaf, scales[:, s], retain_graph=True)[0] for s in range(start, stop)
            ]
            return torch.stack(gradients)

        return Rows(scores.shape[1], n, block)


class PositionScore(Score):
    """A score of outputs ``[N, *positions, C]``: joint over a sample's positions, or each position on its own."""

    def __init__(self, positions: Positions = "joint") -> None:
        if positions not in ("joint", "separate"):
            raise ConfigurationError(f"positions={positions!r}: expected 'joint' or 'separate'.")
        self.positions = positions

    def __eq__(self, other: object) -> bool:
        """Two scores with the same settings are the same score."""
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *sorted(vars(self).items())))

    def rows(self, outputs: Tensor, targets: Tensor | None, phi: Phi, generator: torch.Generator | None) -> Rows:
        """Return the rows of this score: see :meth:`gradients` for what differs from one to the next."""
        if outputs.ndim < 2:
            raise BatchError(
                f"The model's outputs have shape {tuple(outputs.shape)}; expected [N, ..., C] with one row a sample. "
                "Give a `forward` that returns outputs of that shape (a regression of one value: [N, 1])."
            )
        if self.softmax and outputs.shape[-1] == 1:
            warnings.warn(_ONE_OUTPUT, HoldfastWarning, stacklevel=1)  # from one place, so that it is shown once
        z = outputs.reshape(len(outputs), -1, outputs.shape[-1])
        labels = self._labels(targets, outputs)
        counted = torch.ones(z.shape[:2], dtype=torch.bool, device=z.device) if labels is None else labels != IGNORED
        count, make, additive = self.gradients(z, labels, phi, generator)
        places = z.shape[1]
        separate = places > 1 and (self.positions == "separate" or additive)

        def block(start: int, stop: int) -> Tensor:
            rows = z.new_zeros((stop - start, *z.shape))
            if not separate:
                for here in position_pieces(z, stop - start):
                    rows[:, :, here] = (make(start, stop, here) * counted[:, here, None]).to(z.dtype)
                return rows.reshape(stop - start, *outputs.shape)
            for place in range(start // count, (stop - 1) // count + 1):
                first, last = max(start, place * count), min(stop, (place + 1) * count)
                here = slice(place, place + 1)
                made = make(first - place * count, last - place * count, here) * counted[:, here, None]
                rows[first - start : last - start, :, here] = made.to(z.dtype)
            return rows.reshape(stop - start, *outputs.shape)

        samples = counted.sum() if self.positions == "separate" else counted.any(1).sum()
        return Rows(count * places if separate else count, int(samples), block)

    def _labels(self, targets: Tensor | None, outputs: Tensor) -> Tensor | None:
        """Return the labels as ``[N, P]`` where this score needs them, or where they say which positions count."""
        if self.needs_targets:
            if targets is None:
                raise BatchError(
                    f"{self!r} needs the true label of every sample and got none. Give batches of (inputs, targets), "
                    "or mappings with 'labels'."
                )
            return _checked_labels(targets, outputs)
        if targets is None or targets.is_floating_point() or targets.ndim != outputs.ndim - 1:
            return None
        if targets.shape != outputs.shape[:-1]:
            return None if targets.ndim == 1 else _checked_labels(targets, outputs)  # which says what is wrong
        return targets.to(outputs.device).reshape(len(outputs), -1)

    @abstractmethod
    def gradients(
        self, z: Tensor, labels: Tensor | None, phi: Phi, generator: torch.Generator | None
    ) -> tuple[int, RowMaker, bool]:
        """Return the rows of logits ``z`` of ``[N, P, C]``.

        Returns:
            How many rows each position has; a maker of them; and whether the positions add up, which is so where the
            joint expectation is the sum of the positions' own ones.
        """


def position_pieces(z: Tensor, rows: int = 1) -> Iterator[slice]:
    """Yield runs of positions of logits ``[N, P, C]``, so short that their softmax is small, ``rows`` times."""
    across = max(1, PIECE // max(1, rows * len(z) * z.shape[-1]))
    for first in range(0, z.shape[1], across):
        yield slice(first, first + across)


def _checked_labels(targets: Tensor, outputs: Tensor) -> Tensor:
    """Return integer labels as ``[N, P]``, or say what is wrong with them."""
    expected = tuple(outputs.shape[:-1])
    if targets.is_floating_point() or tuple(targets.shape) != expected:
        longer = targets.ndim == 2 and outputs.ndim == 3 and outputs.shape[1] > targets.shape[1]
        raise BatchError(
            f"Labels of shape {tuple(targets.shape)} and type {targets.dtype}; the outputs {tuple(outputs.shape)} "
            f"want integer labels of shape {expected}, one for each position before the last dimension (classes)."
            + (_LEARNED_PROMPT if longer else "")
        )
    labels = targets.to(outputs.device).reshape(len(outputs), -1).long()
    bad = (labels != IGNORED) & ((labels < 0) | (labels >= outputs.shape[-1]))
    if bool(bad.any()):
        raise BatchError(
            f"Label {labels[bad][0].item()} is outside 0..{outputs.shape[-1] - 1}, the classes of the model's outputs "
            f"({IGNORED} marks a position that does not count)."
        )
    return labels
