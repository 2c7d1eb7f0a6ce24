"""The score of one micro-batch after another, as it is differentiated."""

from copy import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anchorhold.engine.batches import Batch, Forward
from anchorhold.engine.conventions import BatchReader, problem_type
from anchorhold.engine.phi import SQUARE
from anchorhold.engine.refusals import check_outputs
from anchorhold.engine.scores import OutputReading, ReadingEvidence
from anchorhold.guard.core import Core
from anchorhold.guard.measurement import DRAWS_APART
from anchorhold.guard.microbatches.gradient_sums import MeanKey, Progress
from anchorhold.tensors.sharding import whole
from anchorhold.tensors.storage import running_dtype


class Scored(NamedTuple):
    """The score of a batch."""

    total: Tensor
    """The sum over its samples."""
    samples: int
    counted: int
    """What a sum over samples is divided by."""
    positions: int
    """How many positions are scored."""


class BatchScore:
    """One score, of one batch after another."""

    classes: int | None = None
    """How many classes outputs tell apart: not looked at here."""

    def __init__(self, core: Core, asked: MeanKey, forward: Forward, before: Progress | None = None) -> None:
        first = next(iter(core.measured.values()))
        self.asked = asked
        self.score = asked.score
        self.model = core.runtime.model
        self.seen = 0 if before is None else before.seen
        """How many samples, in earlier calls too."""
        self.counted = 0
        """How many of this call's have labels that count, those of all processes."""
        self.full_before = self.full
        """Whether earlier calls have given as many samples as were asked for."""
        self._forward = forward
        self._reader = BatchReader(first.device, core.runtime.model)
        self._evidence = ReadingEvidence(None)
        draws = core.state.tasks + DRAWS_APART * core.runtime.ranks.rank
        self._generator = None
        if asked.seed is not None:
            self._generator = torch.Generator(first.device).manual_seed(asked.seed * 1_000_003 + draws)
            if before is not None and before.draws is not None:
                self._generator.set_state(before.draws)

    @property
    def progress(self) -> Progress:
        """Where it is at, to be gone on from."""
        return Progress(self.seen, None if self._generator is None else self._generator.get_state())

    @property
    def reading(self) -> OutputReading | None:
        """How outputs are read."""
        return self.score.reading

    @property
    def full(self) -> bool:
        """Whether as many samples have been seen as were asked for."""
        return self.asked.limit is not None and self.seen >= self.asked.limit

    def read(self, batch: Any) -> Batch:
        """Return a batch as this model's are measured."""
        return self._reader.read(batch)

    def wanted(self, batch: Batch | None, before: int) -> Batch | None:
        """Return what is still wanted of a batch, if so many samples of other processes count before it."""
        if batch is None or self.asked.limit is None:
            return batch
        left = self.asked.limit - self.seen - before
        return batch[:left] if left > 0 else None

    def outputs(self, batch: Batch) -> Tensor:
        """Run the model."""
        return whole(self._forward(self.model, batch.inputs))

    def scored(self, outputs: Tensor, batch: Batch) -> Scored:
        """Return the sum of the samples' log-likelihoods, to be differentiated, and how many there are."""
        check_outputs(outputs, batch.size)
        own = batch.targets if batch.named else None
        problem = problem_type(self.model, own) if self.score.reading is None else self._evidence.problem
        self._evidence = ReadingEvidence(batch.targets, problem)
        labels, z = batch.labels_for(outputs), outputs.to(running_dtype(outputs))
        self.score = self.score.settled(outputs, labels, self._evidence)
        rows = self.score.rows(z.detach(), labels, SQUARE, self._generator)
        samples = rows.samples
        if self.score.per != "sample":  # it is positions that the score counts
            single = copy(self.score)
            single.per = "sample"
            samples = single.rows(z.detach(), labels, SQUARE, torch.Generator(z.device)).samples
        return Scored((z * rows.block(0, 1)[0]).sum(), samples, rows.samples, rows.positions)
