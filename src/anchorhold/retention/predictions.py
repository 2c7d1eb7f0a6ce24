"""A model's predictions on kept inputs: read from its outputs, and compared with what they were.

Outputs are logits ``[N, ..., C]``, the classes last. What is compared is every sample or, where outputs have several
positions as a language model's have, every token that counts: one with a label, or one that is no padding.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anchorhold.engine.batches import Batch, Forward
from anchorhold.engine.conventions import problem_type
from anchorhold.engine.scores import IGNORED
from anchorhold.engine.scores.output_reading import SHARES_TOLERANCE
from anchorhold.engine.scores.outputs import PIECE, counted_positions
from anchorhold.errors import BatchError, ConfigurationError, NotFiniteError
from anchorhold.tensors.divergence import divergences
from anchorhold.tensors.storage import widest_dtype


@dataclass(frozen=True)
class Predictions:
    """Logits of all positions as rows, with what tells which of them count."""

    logits: Tensor
    """``[rows, C]``."""
    counted: Tensor | None
    """Which rows count; ``None`` for all."""
    labels: Tensor | None
    """The class of each row, −100 where there is none; ``None`` without labels."""
    per: str
    """What a row is: a sample, or a token."""


@dataclass
class Sums:
    """Sums over positions, which several batches and processes add up."""

    kl: float = 0.0
    agreed: float = 0.0
    rows: int = 0
    loss: float = 0.0
    loss_then: float = 0.0
    """The same labels' loss when the inputs were kept."""
    labelled: int = 0
    samples: int = 0
    squared_kl: float = 0.0
    """Σ k², where k is the sum over one sample's positions."""
    kl_by_rows: float = 0.0
    """Σ k·n, where n is how many positions it has."""
    squared_rows: float = 0.0
    """Σ n²."""

    @property
    def mean_kl(self) -> float:
        """The KL of a position, over all of them."""
        return self.kl / self.rows

    @property
    def error(self) -> float | None:
        r"""The standard error of that mean, by its spread over samples; ``None`` for one, or too large to square.

        .. math:: \frac{1}{\sum_i n_i}\sqrt{\frac{m}{m-1}\sum_i (k_i - \bar k\,n_i)^2}

        of m samples, since the tokens of one are no samples of their own: the error of a ratio (Cochran 1977, 2.11).
        """
        if self.samples < 2:
            return None
        spread = self.squared_kl - self.mean_kl * (2 * self.kl_by_rows - self.mean_kl * self.squared_rows)
        if not math.isfinite(spread):
            return None
        return math.sqrt(max(0.0, spread) * self.samples / (self.samples - 1)) / self.rows

    def __add__(self, other: "Sums") -> "Sums":
        mine, theirs = vars(self), vars(other)
        return Sums(**{name: mine[name] + theirs[name] for name in mine})


def predictions(
    model: nn.Module, batch: Batch, forward: Forward, whose: str, *, has_forward: bool = False
) -> Predictions:
    """Return what a model says of a batch, or refuse outputs that are no logits.

    Args:
        model: the network.
        batch: as the model's family has them.
        forward: how it is called.
        whose: the inputs in words, for messages.
        has_forward: whether a user has given how it is called, and so where classes lie.
    """
    outputs: Any = forward(model, batch.inputs)
    labels = batch.labels_for(outputs) if isinstance(outputs, Tensor) and outputs.ndim > 1 else None
    _refuse_others(model, batch, outputs, labels, whose, has_forward=has_forward)
    rows = outputs.flatten(0, -2)
    counted = counted_positions(batch, outputs)
    classes = labels is not None and labels.shape == outputs.shape[:-1] and not labels.is_floating_point()
    return Predictions(
        rows,
        None if counted is None or bool(counted.all()) else counted.reshape(-1),
        labels.reshape(-1) if classes and labels is not None else None,
        "sample" if outputs.ndim == 2 else "token",
    )


def _refuse_others(
    model: nn.Module, batch: Batch, outputs: Any, labels: Tensor | None, whose: str, *, has_forward: bool
) -> None:
    """Refuse what the KL of a softmax would be no measure of."""
    shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    if not isinstance(outputs, Tensor) or outputs.ndim < 2 or not outputs.is_floating_point() or not len(outputs):
        raise BatchError(
            f"On {whose} the model gives {shape}; expected logits [N, ..., C], a row a sample. Say how it is called: "
            "forward=lambda model, inputs: ..."
        )
    if len(outputs) != batch.size:
        raise BatchError(f"On {whose} the model gives {shape} for {batch.size} samples; expected a row for each.")
    if outputs.shape[-1] == 1 or problem_type(model, batch.targets) in ("regression", "multi_label_classification"):
        raise ConfigurationError(f"On {whose} the model gives {shape}. {NO_CLASSES}")
    if labels is not None and labels.is_floating_point() and labels.shape == outputs.shape:
        raise ConfigurationError(f"{whose.capitalize()} have targets like the outputs {shape}. {NO_CLASSES}")
    second = outputs.ndim > 2 and labels is not None and labels.shape == (len(outputs), *outputs.shape[2:])
    if (second and labels is not None and labels.shape != outputs.shape[:-1]) or (
        outputs.ndim > 3 and labels is None and not has_forward
    ):
        raise ConfigurationError(
            f"On {whose} the model gives {shape}, in which classes may lie second, as image models have them; expected "
            "them last: forward=lambda model, inputs: model(inputs).movedim(1, -1), or without movedim where they are."
        )


NO_CLASSES = (
    "That is no choice between classes, whose change a KL of the softmax could measure. For labels that are each 0 or "
    "1, give forward= that returns both logits of each: torch.stack([torch.zeros_like(z), z], -1). Of regressions "
    "there is no such measure here."
)


def kept_log_probabilities(rows: Tensor, whose: str) -> Tensor:
    """Return log p of logits that are to be kept, in the most precise type, or refuse what is none."""
    found = torch.cat([rows[piece].to(widest_dtype(rows.device)).log_softmax(-1) for piece in _pieces(rows)])
    if bool(found.isnan().any()):
        raise NotFiniteError(
            f"On {whose} the model's outputs hold a NaN or an infinity, so nothing was kept. Look at the inputs, and "
            "whether training has diverged."
        )
    likely = rows.detach().float()
    if bool((likely >= 0).all()) and bool(((likely.sum(-1) - 1).abs() < SHARES_TOLERANCE).all()):
        raise ConfigurationError(
            f"On {whose} the model's outputs are within 0..1 and sum to 1: probabilities, it seems, and not the logits "
            "that a softmax takes. Give forward=lambda model, inputs: model(inputs).log(), or leave out the last "
            "softmax."
        )
    return found


def compared(old: Tensor, new: Tensor, labels: Tensor | None, samples: Tensor | None = None) -> Sums:
    """Return sums of how far predictions have moved: of log p as it was, and of the same rows' logits now.

    Args:
        old: log p of each row when it was kept.
        new: the same rows' logits now.
        labels: the class of each row, where that is known.
        samples: which sample each row is of; by default each is one of its own.
    """
    sums = Sums()
    wide = widest_dtype(new.device)
    moved = []
    for piece in _pieces(new):
        then, now = old[piece].to(new.device, wide), new[piece].to(wide)
        moved.append(divergences(then, now))
        sums.kl += float(moved[-1].mean()) * len(now)
        sums.agreed += float((then.argmax(-1) == now.argmax(-1)).sum())
        sums.rows += len(now)
    # How far samples are from each other: the KL of each, summed over its rows, and how many rows it has.
    totals = (torch.cat(moved) if moved else new.new_zeros(0)).cpu().double()
    lengths = torch.ones_like(totals)
    if samples is not None:
        _, which, counts = samples.cpu().unique(return_inverse=True, return_counts=True)
        totals, lengths = totals.new_zeros(len(counts)).index_add(0, which, totals), counts.double()
    sums.samples += len(totals)
    sums.squared_kl += float(totals.square().sum())
    sums.kl_by_rows += float((totals * lengths).sum())
    sums.squared_rows += float(lengths.square().sum())
    sums.loss, sums.labelled = summed_loss(new, labels)
    return sums


def summed_loss(logits: Tensor, labels: Tensor | None) -> tuple[float, int]:
    """Return the sum of −log p of the labels, and how many there are."""
    if labels is None or not len(logits):
        return 0.0, 0
    classes = logits.shape[-1]
    counted = labels[labels != IGNORED]
    strange = counted[(counted < 0) | (counted >= classes)]
    if len(strange):
        raise BatchError(
            f"A label {int(strange[0])} among the kept inputs, and the model has {classes} classes; expected labels "
            f"from 0 to {classes - 1}, or {IGNORED} for none. They are only reported by: leave them out, or correct "
            "them."
        )
    wide = widest_dtype(logits.device)
    parts = [
        F.cross_entropy(logits[piece].to(wide), labels[piece].to(logits.device), ignore_index=IGNORED, reduction="sum")
        for piece in _pieces(logits)
    ]
    return float(torch.stack(parts).sum()), len(counted)


def _pieces(rows: Tensor) -> Iterator[slice]:
    """Yield runs of rows whose softmax is small."""
    across = max(1, PIECE // max(1, rows.shape[-1]))
    for first in range(0, len(rows), across):
        yield slice(first, first + across)
