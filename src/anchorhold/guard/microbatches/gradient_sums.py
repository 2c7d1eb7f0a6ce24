"""What is kept of the gradients of micro-batches: their mean, and how far they lie apart."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from anchorhold.engine.scores import LogLikelihood
from anchorhold.errors import BatchError, NotFiniteError, OrderError
from anchorhold.guard.distributed.ranks import Ranks
from anchorhold.guard.task_classes import Classes
from anchorhold.measures import SampleMeasure
from anchorhold.measures.recurrences import add_batch_gradient_, squares_of_single_samples
from anchorhold.tensors.checksums import checksum
from anchorhold.tensors.finite import is_finite
from anchorhold.tensors.sharding import local


class MeanKey(NamedTuple):
    """What is asked of micro-batches; measures that make something else of the same mean, as a root does, share it."""

    score: LogLikelihood
    limit: int | None
    """How many samples."""
    seed: int | None
    """Of drawn labels."""

    @classmethod
    def by(cls, measure: SampleMeasure) -> "MeanKey":
        """Return what a measure asks for."""
        assert isinstance(measure.score, LogLikelihood)  # others are refused
        return cls(measure.score, measure.sample_limit, measure.draw_seed)


@dataclass
class GradientSums:
    """The gradients of some micro-batches so far; of sharded parameters, this process's parts."""

    batches: int = 0
    samples: int = 0
    counted: int = 0
    """What the sum over samples is divided by: of samples, or of tokens."""
    mean: dict[str, Tensor] = field(default_factory=dict)
    """ḡ, the mean over all samples."""
    spread: dict[str, Tensor] = field(default_factory=dict)
    """s, the sum of b(g − ḡ)² over batches of b samples."""
    outputs: str | None = None
    """What the model's outputs were taken for."""

    def add(self, gradients: Mapping[str, Tensor], samples: int, counted: int) -> None:
        """Take in a batch's mean gradient."""
        self._add_mean(gradients, samples)
        self.batches += 1
        self.samples += samples
        self.counted += counted

    def add_all(self, others: "GradientSums") -> None:
        """Take in all batches of others."""
        if not others.samples:
            return
        self._add_mean(others.mean, others.samples)
        for name, spread in others.spread.items():
            self.spread[name] += spread
        self.batches += others.batches
        self.samples += others.samples
        self.counted += others.counted
        self.outputs = others.outputs or self.outputs

    def _add_mean(self, gradients: Mapping[str, Tensor], samples: int) -> None:
        for name, gradient in gradients.items():
            mean = self.mean.setdefault(name, torch.zeros_like(gradient))
            spread = self.spread.setdefault(name, torch.zeros_like(gradient))
            add_batch_gradient_(mean, spread, gradient, samples, self.samples)

    def of_all(self, ranks: Ranks, like: Mapping[str, Tensor]) -> "GradientSums":
        """Return those of all processes, each of which had batches of its own, or none."""
        told = ranks.each(lambda: (self.batches, self.samples, self.counted, self.outputs))
        batches, samples, counted = (sum(each) for each in list(zip(*told, strict=True))[:3])
        found = GradientSums(batches, samples, counted, outputs=next((t[3] for t in told if t[3]), None))
        for name, zero in like.items():
            own, spread = self.mean.get(name, zero), self.spread.get(name, zero)
            mean = ranks.add_up(own * (self.samples / max(1, samples)))
            apart = spread.addcmul(own - mean, own - mean, value=self.samples)
            found.mean[name], found.spread[name] = mean, ranks.add_up(apart)
        return found

    def refuse_unless_finite(self) -> None:
        """Refuse gradients that would spoil what others are added to."""
        for name, mean in self.mean.items():
            refuse_unless_finite(name, (mean, self.spread[name]))

    def squares(self) -> dict[str, Tensor]:
        """Return the estimated mean of single samples' squared gradients, or refuse to make one of too little."""
        if not self.samples:
            raise nothing_seen()
        if self.batches == 1 and self.samples > 1:
            raise BatchError(
                f"gradients.microbatches() has seen one micro-batch, of {self.samples} samples (those of all processes "
                "that share it count as one): how samples differ cannot be told from it. Give two micro-batches at "
                "least; more, and smaller ones, tell it better."
            )
        found = {}
        for name, mean in self.mean.items():
            squares = squares_of_single_samples(mean, self.spread[name], self.batches, self.samples)
            if not is_finite(squares):
                raise NotFiniteError(
                    f"The importance of {name!r} is not finite after {self.samples} samples: the model's outputs or "
                    "gradients overflow. Check the inputs for NaN, and the weights for divergence."
                )
            found[name] = squares.mul_(self.samples / self.counted)
        return found


def nothing_seen() -> BatchError:
    """Return what is wrong with data that have nothing in them."""
    return BatchError(
        "No sample to measure importance from: gradients.microbatches() was given no batches, or none with labels that "
        "count. An iterator that was used before is at its end."
    )


def refuse_unless_finite(name: str, tensors: Iterable[Tensor]) -> None:
    """Refuse what was made of a parameter's gradients, where it is not made of numbers alone."""
    if not all(map(is_finite, tensors)):
        raise NotFiniteError(
            f"gradients.microbatches() has met gradients of {name!r} that are not finite, so nothing of this call was "
            "taken in; what earlier ones have seen stays. Check the inputs for NaN, and the weights for divergence."
        )


class Progress(NamedTuple):
    """How far one call has gone through samples, from where the next goes on."""

    seen: int
    """How many samples."""
    draws: Tensor | None
    """The state of the generator that labels are drawn by, where they are."""


@dataclass
class Watched:
    """What was seen of micro-batches since the last consolidation."""

    weights: int
    """A checksum of the weights that it was seen at."""
    sums: dict[MeanKey, GradientSums] = field(default_factory=dict)
    progress: dict[MeanKey, Progress] = field(default_factory=dict)
    classes: Classes = field(default_factory=Classes)

    def refuse_unless_at(self, model: nn.Module) -> None:
        """Refuse weights that have moved since."""
        if weights_sum(model) != self.weights:
            raise OrderError(
                "The weights have changed since gradients.microbatches(): what it saw is of others. Call consolidate() "
                "right after it, or gradients.restart_task() and gradients.microbatches() again."
            )


def weights_sum(model: nn.Module) -> int:
    """Return a number that tells all of a model's weights apart, and their order; of sharded ones, our parts.

    Those that are not protected count too: gradients are of all that the model does.
    """
    return checksum(local(p.detach()) for p in model.parameters() if not (is_lazy(p) or p.is_meta))
