r"""Inputs that are kept to see by them what a model still knows, with its predictions when they were kept.

What counts is :math:`KL(p_\text{old}\|p_\text{new})` on them, in nats a sample or token. They are data, so that no
guard's file has them: they have one of their own.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from anchorhold.engine.batches import (
    Batch,
    Forward,
    KeptInputs,
    call_model,
    check_batches,
    explain_failed_call,
    read_batch,
)
from anchorhold.engine.conventions import BatchReader
from anchorhold.engine.isolation import evaluation_mode
from anchorhold.errors import AnchorholdError, BatchError, ConfigurationError, OrderError, Warned
from anchorhold.retention.predictions import (
    Predictions,
    Sums,
    compared,
    kept_log_probabilities,
    predictions,
    summed_loss,
)
from anchorhold.retention.report import SetRetention
from anchorhold.seeding import generator_for
from anchorhold.settings import whole_number
from anchorhold.tensors.sharding import reshard
from anchorhold.tensors.summaries import row_checksums

SAMPLES = 500
"""How many samples are kept of what is given."""
MARKED, APART = 32, 0.01
"""How many predictions mark a set, and how far apart they may be, in nats, to be of the same one."""
PREDICTIONS, TOGETHER = 128, 8
"""How many predictions of a set are looked at together, at least, and of how many samples: a language model's tokens
are those of several."""
ALIKE = 1e-3
"""How far apart, in nats, a model may be on part of a batch and on the whole, as rounding makes it in 16 bits."""
AT_ONCE = 128
"""Samples that go through the model together, at most; a batch that is given smaller stays so."""
FULL_NUMBERS = 2**26
"""Log-probabilities up to which they are kept in 32 bits, a quarter of a GiB; beyond, in 16."""
MOST_NUMBERS = 2**29
"""Those that are kept at most, a GiB in 16 bits: of a language model's tokens, so many as that is, drawn evenly."""


@dataclass
class Chunk:
    """Some inputs that go through the model together."""

    batch: Any
    """As a user would give it, on the CPU."""
    size: int
    log_p: Tensor
    """log p of each position that is looked at, when they were kept."""
    places: Tensor | None
    """Which positions these are, among all ``N·P`` of them; ``None`` for all."""
    per: str
    loss: float = 0.0
    """The sum of −log p of the labels when they were kept."""
    labelled: int = 0

    @property
    def numbers(self) -> int:
        """How many numbers its inputs are."""
        inputs = self.batch if isinstance(self.batch, Mapping) else self.batch[0]
        return max(leaf.numel() for leaf in tree_flatten(inputs)[0] if isinstance(leaf, Tensor))


class KeptSet:
    """Inputs of one kind, with the predictions that the model made of them when they were kept."""

    def __init__(
        self,
        name: str,
        chunks: Sequence[Chunk],
        forward: Forward | None,
        *,
        forward_is_lost: bool = False,
        is_unproven: bool = False,
    ) -> None:
        self.name = name
        self.chunks = list(chunks)
        self.forward = forward
        """How the model is called with them; may be set, for a model that has changed its heads."""
        self.forward_is_lost = forward_is_lost
        """Whether they were kept with a function of their own, which no file has."""
        self.is_unproven = is_unproven
        """Whether it came from a file, and no state has said that it is of the model that is trained."""
        self.warned = Warned()
        """The warnings that the user was given about the set."""

    @property
    def samples(self) -> int:
        """How many inputs there are."""
        return sum(chunk.size for chunk in self.chunks)

    @property
    def rows(self) -> int:
        """How many predictions are compared: one a sample, or one a token."""
        return sum(len(chunk.log_p) for chunk in self.chunks)

    @property
    def per(self) -> str:
        """What a prediction is of: a sample or a token."""
        return self.chunks[0].per

    @property
    def classes(self) -> int:
        """How many classes a prediction is over."""
        return self.chunks[0].log_p.shape[-1]

    @property
    def dtype(self) -> torch.dtype:
        """In how many bits predictions are kept."""
        return self.chunks[0].log_p.dtype

    def __repr__(self) -> str:
        each = "" if self.per == "sample" else f" with {self.rows} tokens"
        bits = f", in {self.dtype.itemsize * 8} bits" if self.dtype.itemsize < 4 else ""
        return f"KeptSet({self.name!r}: {self.samples} samples{each} over {self.classes} classes{bits})"

    def sums(self, model: nn.Module, chunks: Iterable[int] | None = None) -> Sums:
        """Return how far a model's predictions are from those that were kept, on all or on some of the chunks.

        The model has to be in the state that ``evaluation_mode`` puts it in.
        """
        if self.forward is None and self.forward_is_lost:
            raise OrderError(
                f"The kept set {self.name!r} was kept with forward=, a function that no file carries. Give it again: "
                f"guard.kept[{self.name!r}].forward = lambda model, inputs: ..."
            )
        reader = _reader(model)
        forward = KeptInputs(self.forward or call_model)
        found = Sums()
        for number in range(len(self.chunks)) if chunks is None else chunks:
            found += self._compared(model, reader, forward, self.chunks[number])
        return found

    def _compared(self, model: nn.Module, reader: BatchReader, forward: Forward, chunk: Chunk) -> Sums:
        whose = f"the kept set {self.name!r}"
        with explain_failed_call(
            lambda why: (
                f"The model cannot be called with {whose} any more ({why}). It was kept with another model, or called "
                "in another way: set guard.kept[name].forward, or guard.kept.drop(name)."
            )
        ):
            made = predictions(model, reader.read(chunk.batch), forward, whose, has_forward=self.forward is not None)
        rows, classes = len(made.logits), chunk.log_p.shape[-1]
        expected = len(chunk.log_p) if chunk.places is None else int(chunk.places.max()) + 1
        if made.logits.shape[-1] != classes or rows < expected or (chunk.places is None and rows != expected):
            raise BatchError(
                f"On {whose} the model now gives {rows} predictions over {made.logits.shape[-1]} classes, and "
                f"{expected} over {classes} were kept. It was kept with another model or head: set "
                f"guard.kept[{self.name!r}].forward to what gives the same outputs, keep the inputs anew, or "
                "guard.kept.drop(name)."
            )
        logits, labels = made.logits, made.labels
        samples = torch.arange(rows) // max(1, rows // chunk.size)
        if chunk.places is not None:
            places = chunk.places.to(logits.device)
            logits, labels = logits[places], None if labels is None else labels[places.to(labels.device)]
            samples = samples[chunk.places]
        sums = compared(chunk.log_p, logits, labels, samples)
        sums.loss_then = chunk.loss
        return sums

    @property
    def marks(self) -> list[float]:
        """A few of its predictions, by which another set, or the same inputs kept with another model, is told apart."""
        rows = torch.cat([chunk.log_p[:MARKED].double() for chunk in self.chunks[:MARKED]])[:MARKED]
        return [float(value) for value in rows.max(-1).values]

    @cached_property
    def sample_marks(self) -> list[int]:
        """A number for each of its inputs, the first ones, found once: they stay as they were kept."""
        return marks_of(chunk.batch for chunk in self.chunks)

    def is_as(self, marks: Sequence[float]) -> bool:
        """Whether predictions are those that others were made of, but for what rounding and another device change."""
        own = torch.tensor(self.marks, dtype=torch.float64)
        theirs = torch.tensor(list(marks), dtype=torch.float64)
        return own.shape == theirs.shape and float((own - theirs).square().mean().sqrt()) <= APART

    def seen_as(self, sums: Sums) -> SetRetention:
        """Return what sums over all processes come to."""
        return SetRetention(
            self.name,
            sums.mean_kl,
            sums.agreed / sums.rows,
            self.per,
            sums.rows,
            sums.loss_then / sums.labelled if sums.labelled else None,
            sums.loss / sums.labelled if sums.labelled else None,
            sums.error,
        )


def keep(
    model: nn.Module, batches: Sequence[Batch], name: str, forward: Forward | None, *, cut: bool = True
) -> KeptSet:
    """Return a set of some inputs, with the model's predictions now; the model stays as it is.

    Args:
        model: the network.
        batches: the inputs.
        name: what the set is called.
        forward: how the model is called.
        cut: whether batches may be cut into parts that are looked at one after the other.
    """
    if forward is not None and not callable(forward):
        raise ConfigurationError(f"forward={forward!r}: expected a function, forward(model, inputs).")
    reader, whose = _reader(model), f"the inputs of {name!r}"
    call = KeptInputs(forward or call_model)
    every = sum(batch.size for batch in batches)
    chunks: list[Chunk] = []

    def made_of(batch: Batch) -> Predictions:
        return _made(model, reader.read(_as_given(batch)), call, whose, has_forward=forward is not None)

    with evaluation_mode(model, model.parameters()):
        for number, batch in enumerate(_in_parts(batches, made_of) if cut else batches):
            given = _as_given(batch)
            made = _made(model, reader.read(given), call, whose, has_forward=forward is not None)
            places = None if made.counted is None else made.counted.nonzero().flatten()
            classes = made.logits.shape[-1]
            allowed = max(1, MOST_NUMBERS * batch.size // (every * classes))
            count = len(made.logits) if places is None else len(places)
            if count > allowed:
                drawn = torch.randperm(count, generator=generator_for(0, "kept", number))[:allowed].sort().values
                places = drawn if places is None else places[drawn.to(places.device)]
            rows = made.logits if places is None else made.logits[places.to(made.logits.device)]
            if not len(rows):
                continue  # all of it is padding
            log_p = kept_log_probabilities(rows, whose)
            labels = (
                made.labels if places is None or made.labels is None else made.labels[places.to(made.labels.device)]
            )
            own = made.logits.dtype if made.logits.dtype.itemsize >= 4 else torch.float32
            bits = torch.float16 if every * count // batch.size * classes > FULL_NUMBERS else own
            kept = None if places is None else places.cpu()
            loss = summed_loss(rows, labels)
            chunks.append(Chunk(given, batch.size, log_p.to(bits).cpu(), kept, made.per, *loss))
    reshard(model)
    if not chunks:
        raise BatchError(f"Of {whose} no position counts: all are padding, or have the label -100. Give others.")
    if len({(chunk.log_p.shape[-1], chunk.per) for chunk in chunks}) > 1:
        raise BatchError(f"On {whose} the model's outputs differ in their number of classes from batch to batch.")
    bits = min((chunk.log_p.dtype for chunk in chunks), key=lambda dtype: dtype.itemsize)
    for chunk in chunks:
        chunk.log_p = chunk.log_p.to(bits)
    return KeptSet(name, chunks, forward)


def _in_parts(batches: Sequence[Batch], made_of: Callable[[Batch], Predictions]) -> list[Batch]:
    """Return batches in parts of about as many predictions as a look takes, so that looks are small and can be many.

    They stay as they are where inputs belong to no sample, or the model says something else of a part than of the
    whole, as one does whose masks are as many as its samples and heads.
    """
    largest = max(batches, key=lambda batch: batch.size)
    if largest.size < 2 * TOGETHER or any(batch.shared for batch in batches):
        return list(batches)
    made = made_of(largest)
    whole, count = made.logits, len(made.logits) if made.counted is None else int(made.counted.sum())
    size = max(TOGETHER, math.ceil(PREDICTIONS * largest.size / max(1, count)))
    first = _split(largest, size)[0]
    try:
        part = made_of(first).logits
    except AnchorholdError:
        return list(batches)
    expected = whole[: len(whole) * first.size // largest.size]
    if part.shape != expected.shape or not compared(expected, part, None).kl < ALIKE * len(part):
        return list(batches)
    return [part for batch in batches for part in _split(batch, size)]


def _split(batch: Batch, size: int) -> list[Batch]:
    """Return parts of a batch that are about as large as each other, and no smaller than a size."""
    count = max(1, batch.size // size)
    ends = [batch.size * number // count for number in range(count + 1)]
    return [batch[first:last] for first, last in pairwise(ends)]


def _made(model: nn.Module, batch: Batch, call: Forward, whose: str, *, has_forward: bool) -> Predictions:
    """Return what a model says of a batch; one that it cannot be called with is refused in words."""
    with explain_failed_call(
        lambda why: (
            f"The model failed on {whose} ({why}), so nothing was kept. Give inputs as it takes them, or say how it is "
            "called: forward=lambda model, inputs: ..."
        )
    ):
        return predictions(model, batch, call, whose, has_forward=has_forward)


def taken(inputs: Iterable[Any], samples: int) -> list[Batch]:
    """Return the first samples of what is given, in batches that are not too large, on the CPU."""
    most = whole_number("samples", samples, "a whole number of at least 1", least=1)
    given = [inputs] if isinstance(inputs, Tensor | Mapping) else check_batches(inputs)
    reader = BatchReader(torch.device("cpu"))
    found: list[Batch] = []
    left = most
    for raw in given:
        batch = reader.read(raw)
        if strange := [type(leaf).__name__ for leaf in tree_flatten(batch.inputs)[0] if not isinstance(leaf, Tensor)]:
            raise BatchError(
                f"A batch with a {strange[0]} among its inputs, which cannot be kept; expected tensors alone. Leave it "
                "out, and give it by forward=lambda model, inputs: ..."
            )
        batch = batch[: min(left, batch.size)]
        found += [batch[first : first + AT_ONCE] for first in range(0, batch.size, AT_ONCE)]
        left -= batch.size
        if not left:
            break
    if not found:
        raise BatchError("No inputs to keep; expected a few hundred. Was an iterator used up before?")
    return found


def _as_given(batch: Batch) -> Any:
    """Return a batch as a user gives it, in memory of its own."""
    inputs = tree_map(lambda leaf: leaf.detach().clone(memory_format=torch.contiguous_format), batch.inputs)
    labels = None if batch.targets is None else batch.targets.detach().clone()
    if batch.named:
        return inputs if labels is None else {**inputs, "labels": labels}
    return (inputs,) if labels is None else (inputs, labels)


def _reader(model: nn.Module) -> BatchReader:
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    return BatchReader(device, model)


MOST_MARKED = 4096
"""Samples of a task that are marked, the first ones."""
MOST_TASKS = 64
"""Of how many tasks marks are kept, the last ones: two MiB in all."""


@dataclass
class SampleMarks:
    """A number for each of some samples: that of their inputs, whatever batches they come in.

    By these checksums it is seen whether two sets of inputs have some in common: nothing else is kept.
    """

    tasks: list[set[int]] = field(default_factory=lambda: [set()])

    def note(self, batch: Any, limit: int | None = None) -> None:
        """Mark samples of a batch, up to as many as are marked of a task, or fewer."""
        latest = self.tasks[-1]
        left = (MOST_MARKED if limit is None else min(MOST_MARKED, limit)) - len(latest)
        if left > 0:
            latest |= set(_marks(batch, left))

    def take(self, others: "SampleMarks") -> None:
        """Take over another task's marks."""
        self.tasks = [*self.tasks, *others.tasks][-MOST_TASKS:]

    def shared_with(self, marks: Sequence[int]) -> int:
        """Return how many samples of some marks are marked here too."""
        return sum(any(mark in task for task in self.tasks) for mark in marks)


def marks_of(batches: Iterable[Any]) -> list[int]:
    """Return the marks of some batches' samples, the first ones, as many as are marked of a task."""
    found: list[int] = []
    for batch in batches:
        found += _marks(batch, MOST_MARKED - len(found))
        if len(found) >= MOST_MARKED:
            break
    return found


def _marks(batch: Any, most: int) -> list[int]:
    """Return the marks of the first samples of a batch, by what the model is given of them."""
    leaves = tree_flatten(batch.inputs if isinstance(batch, Batch) else batch)[0]
    device = next((leaf.device for leaf in leaves if isinstance(leaf, Tensor)), torch.device("cpu"))
    read = batch if isinstance(batch, Batch) else read_batch(batch, device)
    own = [
        leaf[:most]
        for place, leaf in enumerate(tree_flatten(read.inputs)[0])
        if place not in read.shared and isinstance(leaf, Tensor) and leaf.layout is torch.strided
    ]
    found: list[int] = row_checksums(own).tolist() if own else []
    return found
