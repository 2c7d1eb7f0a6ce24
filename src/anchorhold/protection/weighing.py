"""The share of what was learned that is worth most: the least new loss + κ·KL of what was kept, along a line."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from anchorhold.engine.batches import (
    Batch,
    Forward,
    KeptInputs,
    call_model,
    check_batches,
    describe_inputs,
    explain_failed_call,
    read_batch,
)
from anchorhold.engine.conventions import BatchReader
from anchorhold.engine.conventions.huggingface import text_writer
from anchorhold.engine.isolation import evaluation_mode
from anchorhold.engine.scores import IGNORED
from anchorhold.errors import BatchError, NotFiniteError
from anchorhold.retention.kept_set import SAMPLES
from anchorhold.retention.predictions import predictions, summed_loss

SHARES = (1.0, 0.9, 0.75, 0.5, 0.25, 0.0)
"""Where the line is looked at first, as far as it takes."""
WORSE = 2
"""After so many looks in a row that are worse than the best one, smaller shares are not tried."""
LOOKS = 9
"""Looks at most, of the first ones and those around the best."""
FINE = 1e-3
"""The part of the objective that another look has to promise to gain."""
NEAR, FAR = 5e-3, 0.05
"""How near to one another shares may be that are looked at, and how far from the best one its better neighbour."""
WHOSE = "the new batches"


@dataclass(frozen=True)
class Look:
    """What one share of what was learned is worth."""

    share: float
    new: float
    """The loss of the new, in nats a token or sample."""
    kl: float
    """KL(p_old‖p_new) of the kept set that has lost most there, in nats a token or sample."""
    objective: float
    """The loss of the new and κ times that KL."""


@dataclass(frozen=True)
class Weighed:
    """What averaging gives back of the old, weighed against what it costs of the new."""

    exchange_rate: float
    """κ, the nats of the new that a nat of the old is worth."""
    is_own_rate: bool
    """Whether κ is the guard's; a guard with a plain strength has none, and 1 is taken."""
    samples: int
    """How many new samples were read."""
    per: str
    """What the loss of the new is counted by: ``"token"`` or ``"sample"``."""
    looks: tuple[Look, ...]
    """All shares that were tried, the largest first."""
    source: str = WHOSE
    """Where the new samples come from, in words."""

    @property
    def start(self) -> Look:
        """What all of what was learned is worth: nothing is averaged."""
        return self.looks[0]

    @property
    def best(self) -> Look:
        """The share that is worth most; of two that are worth the same, the larger one."""
        return min(self.looks, key=lambda look: (look.objective, -look.share))

    def __str__(self) -> str:
        rate = "" if self.is_own_rate else ", which is taken, since the guard has none"
        looks = [self.start, *([] if self.best is self.start else [self.best])]
        told = [
            f"{e.new:.4g} + {self.exchange_rate:g}·{e.kl:.4g} = {e.objective:.4g} at share {e.share:.3g}" for e in looks
        ]
        return (
            f"weighed at an exchange rate of {self.exchange_rate:g}{rate}, on {self.samples} samples of {self.source}; "
            f"new loss a {self.per} + what is lost: {', '.join(told)}"
        )


class NewBatches:
    """Batches of what was newly learned, of which a model's loss is measured again and again.

    Args:
        model: the network.
        given: batches of a user's, with labels, of which the first samples are read.
        forward: how the model is called.

    Raise :class:`~anchorhold.errors.BatchError` for no batches, and for batches without labels.
    """

    def __init__(self, model: nn.Module, given: Any, forward: Forward | None) -> None:
        self.model = model
        self.forward = forward
        self.samples, self.per = 0, "sample"
        self._reader = BatchReader(next(model.parameters()).device, model)
        self._batches: list[Batch] = []
        batches: Iterable[Any] = [given] if isinstance(given, Tensor | Mapping) else check_batches(given)
        for raw in batches:
            batch = self._as_text(read_batch(raw, torch.device("cpu")))
            batch = batch[: min(batch.size, SAMPLES - self.samples)]
            self.samples += batch.size
            self._batches.append(batch)
            if self.samples >= SAMPLES:
                break
        if not self._batches:
            raise BatchError(
                f"{WHOSE.capitalize()} hold nothing; expected a few dozen samples of what was newly learned, with "
                "labels, and better held-out ones. Was an iterator used up before?"
            )

    def _as_text(self, batch: Batch) -> Batch:
        """Return rows of tokens as a language model's batch, whose labels follow from its tokens."""
        rows = batch.inputs[0] if isinstance(batch.inputs, tuple) and len(batch.inputs) == 1 else batch.inputs
        is_rows = isinstance(rows, Tensor) and rows.ndim == 2 and not rows.is_floating_point()
        if not is_rows or self.forward is not None or text_writer(self.model) is None:
            return batch
        return replace(batch, inputs={"input_ids": rows}, named=True)

    def loss(self) -> float:
        """Return the mean loss of all labels that count, in nats a token or sample; the model stays as it is."""
        total, counted = 0.0, 0
        call = KeptInputs(self.forward or call_model)
        with evaluation_mode(self.model, self.model.parameters()):
            for place, batch in enumerate(self._batches):
                loss, labels = self._of_batch(place, self._reader.read(_as_given(batch)), call)
                total, counted = total + loss, counted + labels
        if not counted:
            raise BatchError(
                f"Of {WHOSE} no label counts: all are {IGNORED}, or padding. Give batches with labels of what was "
                "newly learned."
            )
        if not total < float("inf"):
            raise NotFiniteError(
                f"On {WHOSE} the loss is {total / counted}: the model's outputs hold a NaN or an infinity. Training "
                "has diverged: restore an earlier checkpoint."
            )
        return total / counted

    def _of_batch(self, place: int, batch: Batch, call: Forward) -> tuple[float, int]:
        """Return the sum of the loss over the labels of a batch, and how many count."""
        with explain_failed_call(
            lambda why: (
                f"The model failed on {WHOSE}, on {describe_inputs(batch.inputs)} ({why}), so nothing was moved. Give "
                "batches as it takes them, or say how it is called: forward=lambda model, inputs: ..."
            )
        ):
            made = predictions(self.model, batch, call, WHOSE, has_forward=self.forward is not None)
        self.per = made.per
        if made.labels is None:
            given = "no labels" if batch.targets is None else f"labels of shape {tuple(batch.targets.shape)}"
            raise BatchError(
                f"Batch {place} of {WHOSE} has {given} for {len(made.logits)} predictions over "
                f"{made.logits.shape[-1]} classes; expected a class for each, as (inputs, labels) or a mapping with "
                '"labels", so that the loss of the new is known.'
            )
        logits, labels = made.logits, made.labels.to(made.logits.device).long()
        if made.counted is not None:
            chosen = made.counted.to(logits.device)
            logits, labels = logits[chosen], labels[chosen]
        strange = labels[(labels != IGNORED) & ((labels < 0) | (labels >= logits.shape[-1]))]
        if len(strange):
            raise BatchError(
                f"Batch {place} of {WHOSE} has the label {int(strange[0])}, and the model has {logits.shape[-1]} "
                f"classes; expected labels from 0 to {logits.shape[-1] - 1}, or {IGNORED} for none."
            )
        return summed_loss(logits, labels)


def _as_given(batch: Batch) -> Any:
    """Return a batch as a user gives it."""
    if batch.named:
        return batch.inputs if batch.targets is None else {**batch.inputs, "labels": batch.targets}
    return (batch.inputs,) if batch.targets is None else (batch.inputs, batch.targets)


def best_share(look_at: Callable[[float], Look]) -> tuple[Look, ...]:
    """Return looks at a few shares, from 1 down and then around the best one, the largest share first.

    Shares are not tried any further down once two in a row were worse than the best one: what is worth less and less
    along the line may be worth more again further on, and that is not found.
    """
    found: dict[float, Look] = {}
    worse, best = 0, float("inf")
    for share in SHARES:
        found[share] = look_at(share)
        is_better = found[share].objective < best
        best, worse = (found[share].objective, 0) if is_better else (best, worse + 1)
        if worse == WORSE:
            break
    while len(found) < LOOKS and (further := _next_share(found)) is not None:
        found[further] = look_at(further)
    return tuple(found[share] for share in sorted(found, reverse=True))


def _next_share(found: Mapping[float, Look]) -> float | None:
    """Return where to look next around the best share, or ``None`` where no look promises to gain much.

    That is the lowest point of the parabola through it and its neighbours; where the parabola has its lowest point
    there already and the neighbours are far, halfway to the better of them.
    """
    shares = sorted(found)
    worth = {share: look.objective for share, look in found.items()}
    best = min(shares, key=lambda share: (worth[share], -share))
    a, b, c = shares[(first := min(max(0, shares.index(best) - 1), len(shares) - 3)) : first + 3]
    slope = (worth[b] - worth[a]) / (b - a)
    bend = ((worth[c] - worth[b]) / (c - b) - slope) / (c - a)
    if bend > 0:
        lowest = min(max((a + b) / 2 - slope / (2 * bend), a), c)
        promised = worth[best] - worth[a] - (lowest - a) * (slope + bend * (lowest - b))
        if promised > FINE * abs(worth[best]) and min(abs(lowest - share) for share in shares) >= NEAR:
            return lowest
    better = min((a, c), key=lambda share: worth[share])
    return (best + better) / 2 if best == b and abs(best - better) > FAR else None
