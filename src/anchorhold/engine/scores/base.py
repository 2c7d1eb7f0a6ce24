r"""The scores :math:`s_y(x)` whose gradients a measure collects, with their weights :math:`w_y(x)`.

A score only says how it changes with the network's *outputs*; the engine takes it from there to every parameter. Its
answer is a block of rows, each an output gradient with the weight folded in, so that the importance is the plain sum
:math:`\sum_r \varphi(J^T u_r)` over rows r. Rows are made in blocks on demand: with many labels or positions all of
them at once would not fit.
"""

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor

from anchorhold.engine.phi import Phi
from anchorhold.engine.scores.likelihoods import LIKELIHOODS, LikelihoodName, Targets, checked_labels, other_label
from anchorhold.engine.scores.output_reading import OutputReading, ReadingEvidence, read_outputs
from anchorhold.engine.scores.outputs import PIECE, Positions, RowMaker, position_pieces, without_classes
from anchorhold.errors import AnchorholdWarning, BatchError, ConfigurationError
from anchorhold.settings import require, whole_number

Per = Literal["sample", "token"]

_CLASS_DIM = "a dimension of the outputs, such as 1 or -1, and not the first, which is the samples'"


@dataclass(frozen=True)
class Rows:
    """Output gradients of a chunk of samples: ``count`` rows, ``block(i, j)`` of shape ``[j − i, *outputs.shape]``.

    ``samples`` is what they add to the number by which the sum is divided: of samples, or of positions. ``positions``
    is how many positions count in any case: T of them belong to a sample, and only one where the sum is divided by it.
    """

    count: int
    samples: int
    positions: int
    block: Callable[[int, int], Tensor]


class Score(ABC):
    """What is differentiated: some scores of each sample, as a function of the network's outputs."""

    needs_targets = False
    softmax = False  # whether it is made of a softmax or a sigmoid, which wants precise outputs
    reading: OutputReading | None = None  # how outputs are read, where batches tell

    def settled(self, outputs: Tensor, targets: Tensor | None, evidence: ReadingEvidence | None = None) -> Self:
        """Return this score with what it leaves open settled by a batch: its outputs, its targets and its evidence."""
        return self

    def check_labels(self, outputs: Tensor, targets: Tensor, phi: Phi) -> None:  # noqa: B027 (most scores have none)
        """Refuse labels that no output stands for where they are the score's own, though it may not need them."""

    def logits(self, outputs: Tensor) -> Iterator[Tensor]:
        """Yield the logits of softmaxes as ``[M, C]``, piece by piece, where the score is made of one."""
        flat = outputs.reshape(-1, outputs.shape[-1])
        yield from flat.split(max(1, PIECE // max(1, flat.shape[-1])))

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

        return Rows(scores.shape[1], n, n, block)


class PositionScore(Score):
    """A score of outputs ``[N, *positions, C]``: joint over a sample's positions, or each position on its own.

    Args:
        positions: ``"joint"``, or ``"separate"`` for each position as a sample of its own.
        likelihood: whose parameters the outputs are: of one class out of several (``"categorical"``), of labels that
            are each 0 or 1 (``"bernoulli"``) or of real values (``"gaussian"``). ``None`` lets the model or the batches
            tell, and refuses what is unclear.
        class_dim: the dimension of the outputs in which the classes lie, or whatever else belongs to one position.
            ``None`` for the last one, or the second where labels have the shape of the others.
        per: what the sum over samples is divided by: their number, or that of the positions that count (``"token"``).
    """

    asks_likelihood = False  # whether the score is made of a likelihood
    asks_classes = False  # whether it matters in which dimension classes lie, whatever the likelihood
    reading: OutputReading | None

    def __init__(
        self,
        positions: Positions = "joint",
        likelihood: LikelihoodName | None = None,
        class_dim: int | None = None,
        per: Per = "sample",
    ) -> None:
        if positions not in ("joint", "separate"):
            raise ConfigurationError(f"positions={positions!r}: expected 'joint' or 'separate'.")
        if likelihood is not None and likelihood not in LIKELIHOODS:
            raise ConfigurationError(
                f"likelihood={likelihood!r}: expected 'categorical' for one class out of several, 'bernoulli' for "
                "labels that are each 0 or 1, 'gaussian' for the values of a regression, or None, which lets the "
                "model or the targets tell."
            )
        if class_dim is not None:
            class_dim = whole_number("class_dim", class_dim, _CLASS_DIM)
            require(class_dim != 0, "class_dim=0", _CLASS_DIM)
        if per not in ("sample", "token"):
            raise ConfigurationError(f"per={per!r}: expected 'sample' or 'token'.")
        self.positions = positions
        self.likelihood = likelihood
        self.class_dim = class_dim
        self.per = per
        self.reading = None

    def __eq__(self, other: object) -> bool:
        """Return whether two scores have the same settings."""
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *sorted(vars(self).items())))

    def settled(self, outputs: Tensor, targets: Tensor | None, evidence: ReadingEvidence | None = None) -> Self:
        """Return this score with its outputs' reading by the batches so far. Raise BatchError where that is unclear."""
        reading = read_outputs(
            outputs,
            targets,
            evidence or ReadingEvidence(targets),
            self.reading,
            likelihood=self.likelihood,
            class_dim=self.class_dim,
            asks_likelihood=self.asks_likelihood,
            asks_classes=self.asks_classes or self.positions == "separate" or self.per == "token",
        )
        if reading == self.reading:
            return self
        settled = copy.copy(self)
        settled.reading = reading
        return settled

    def rows(self, outputs: Tensor, targets: Tensor | None, phi: Phi, generator: torch.Generator | None) -> Rows:
        """Return the rows of this score: see :meth:`gradients` for what differs from one to the next."""
        if self.reading is None:
            return self.settled(outputs, targets).rows(outputs, targets, phi, generator)
        moved = outputs.movedim(self.reading.dim, -1)
        z = moved.reshape(len(moved), -1, moved.shape[-1])
        values, marks = self._targets(targets, outputs)
        counted = torch.ones((*z.shape[:2], 1), dtype=torch.bool, device=z.device) if marks is None else marks
        if self.asks_classes and marks is not None and marks.shape == z.shape:
            z = z.masked_fill(~marks, -torch.inf)  # the largest output is one of those that count
        count, make, additive = self.gradients(z, values, phi, generator)
        places = z.shape[1]
        separate = places > 1 and (self.positions == "separate" or additive)

        def block(start: int, stop: int) -> Tensor:
            rows = z.new_zeros((stop - start, *z.shape))
            if not separate:
                for here in position_pieces(z, stop - start):
                    rows[:, :, here] = (make(start, stop, here) * counted[:, here]).to(z.dtype)
                return in_place(rows)
            for place in range(start // count, (stop - 1) // count + 1):
                first, last = max(start, place * count), min(stop, (place + 1) * count)
                here = slice(place, place + 1)
                made = make(first - place * count, last - place * count, here) * counted[:, here]
                rows[first - start : last - start, :, here] = made.to(z.dtype)
            return in_place(rows)

        def in_place(rows: Tensor) -> Tensor:
            """Return rows of ``[V, N, P, C]`` with the classes where the outputs have them."""
            return rows.reshape(len(rows), *moved.shape).movedim(-1, dim if dim < 0 else dim + 1)

        dim = self.reading.dim
        each = counted.any(-1)
        positions, samples = torch.stack((each.sum(), each.any(1).sum())).tolist()
        samples = positions if self.positions == "separate" or self.per == "token" else samples
        return Rows(count * places if separate else count, samples, positions, block)

    def check_labels(self, outputs: Tensor, targets: Tensor, phi: Phi) -> None:
        """Refuse labels of classes that a likelihood's outputs do not have; warn where labels only say what counts.

        Whole samples' labels are nothing to a score without any: its outputs may be no classes at all.
        """
        if self.reading is None or self.reading.likelihood != "categorical" or targets.is_floating_point():
            return
        if targets.shape != without_classes(outputs, self.reading.dim):
            return
        if self.has_labels(phi):
            checked_labels(targets, outputs, self.reading.dim)
        elif targets.ndim > 1 and (other := other_label(targets, outputs.shape[self.reading.dim])):
            warnings.warn(
                f"{other} To this measure labels only say which positions count, and this one does.",
                AnchorholdWarning,
                stacklevel=1,  # from one place, so that it is shown once
            )

    def has_labels(self, phi: Phi) -> bool:
        """Return whether the score is one of labels, be they the data's or the model's own."""
        return False

    def logits(self, outputs: Tensor) -> Iterator[Tensor]:
        if self.reading is None or self.reading.likelihood is None:
            yield from super().logits(outputs)
            return
        likelihood = LIKELIHOODS[self.reading.likelihood]
        for some in super().logits(outputs.movedim(self.reading.dim, -1)):
            yield likelihood.as_classes(some)

    def _targets(self, targets: Tensor | None, outputs: Tensor) -> Targets:
        """Return the targets that this score needs, and which outputs count by them."""
        assert self.reading is not None
        if targets is None:
            if self.needs_targets:
                raise BatchError(
                    f"{self!r} needs the true label of every sample and got none. Give batches of (inputs, targets), "
                    "or mappings with 'labels'."
                )
            return Targets(None, None)
        likelihood = LIKELIHOODS[self.reading.likelihood or "categorical"]
        labels = not targets.is_floating_point() and targets.ndim == outputs.ndim - 1
        if self.reading.likelihood is None and not self.needs_targets and not labels:
            return Targets(None, None)  # to outputs as they are, only labels of positions say anything
        return likelihood.targets(targets, outputs, self.reading.dim, self.needs_targets)

    @abstractmethod
    def gradients(
        self, z: Tensor, labels: Tensor | None, phi: Phi, generator: torch.Generator | None
    ) -> tuple[int, RowMaker, bool]:
        """Return the rows of outputs ``z`` of ``[N, P, C]``, given labels ``[N, P]`` or values of z's shape.

        Returns:
            How many rows each position has; a maker of them; and whether the positions add up, which is so where the
            joint expectation is the sum of the positions' own ones.
        """
