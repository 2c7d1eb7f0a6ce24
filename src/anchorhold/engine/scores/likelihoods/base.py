"""What a likelihood says of the outputs: the rows of its Fisher information, and what its targets look like."""

from abc import ABC, abstractmethod
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from anchorhold.engine.phi import Phi
from anchorhold.engine.scores.positions import Positions, RowMaker, flattened, without_classes
from anchorhold.errors import BatchError, ConfigurationError

LikelihoodName = Literal["categorical", "gaussian", "bernoulli"]

MOST_PASSES = 100_000
"""Backward passes that the exact score of a sample may take: minutes for a small model, days for a large one."""


class Targets(NamedTuple):
    """What the targets of some outputs ``[N, P, C]`` say."""

    values: Tensor | None
    """Labels as ``[N, P]``, or a value for every output as ``[N, P, C]``; ``None`` where they are not needed."""
    counted: Tensor | None
    """Which outputs count, as ``[N, P, 1]`` or ``[N, P, C]``; ``None`` where all do."""


class Likelihood(ABC):
    """How probable targets are, given a network's outputs z of ``[N, P, C]``.

    Its rows are gradients of the log-likelihood with respect to z, with their weights folded in for φ.
    """

    softmax = True
    """Whether it is made of a softmax or a sigmoid, which wants precise outputs."""

    @abstractmethod
    def targets(self, targets: Tensor, outputs: Tensor, class_dim: int, needed: bool) -> Targets:
        """Return what targets say, or refuse those that cannot belong to these outputs."""

    @abstractmethod
    def exact(self, z: Tensor, phi: Phi, positions: Positions) -> tuple[int, RowMaker]:
        """Return how many rows a position has, and a maker of them, for the mean over all that could be observed."""

    @abstractmethod
    def sampled(self, z: Tensor, draws: int, generator: torch.Generator | None) -> RowMaker:
        """Return a maker of one row a draw, for targets drawn from the likelihood itself."""

    @abstractmethod
    def true(self, z: Tensor, values: Tensor) -> RowMaker:
        """Return a maker of one row, for the targets given."""

    @abstractmethod
    def norm_gradient(self, z: Tensor, dominant: bool) -> Tensor:
        """Return the gradient of the squared norm of the probabilities, or of the largest one's square: MAS's score."""

    def as_classes(self, z: Tensor) -> Tensor:
        """Return logits ``[M, C]`` as those of a softmax over the last dimension, for an estimate of their digits."""
        return z


class EveryOutput(Likelihood):
    """A likelihood in which the outputs are independent: targets have the outputs' own shape."""

    expected: str
    """What the targets are, in words."""

    def targets(self, targets: Tensor, outputs: Tensor, class_dim: int, needed: bool) -> Targets:
        """Return a value for every output, and which of them count."""
        if targets.shape != outputs.shape:
            if outputs.shape[class_dim] != 1 or targets.shape != without_classes(outputs, class_dim):
                raise BatchError(
                    f"Targets of shape {tuple(targets.shape)} and type {targets.dtype}; {self.expected} for outputs "
                    f"{tuple(outputs.shape)} have that same shape. Name another likelihood="
                    + ("." if needed else ", or leave the targets out, which are not needed here.")
                )
            targets = targets.unsqueeze(class_dim)
        values = flattened(targets.to(outputs.device), class_dim)
        return Targets(values, self._counted(values))

    @abstractmethod
    def _counted(self, values: Tensor) -> Tensor | None:
        """Return which values count."""


def one_output_each(scale: Tensor, start: int, stop: int) -> Tensor:
    """Return rows ``scale_k e_k`` for outputs k from ``start`` to ``stop``, as ``[k, N, P, C]``."""
    rows = scale.new_zeros((stop - start, *scale.shape))
    for row, k in enumerate(range(start, stop)):
        rows[row, ..., k] = scale[..., k]
    return rows


def refuse_endless(z: Tensor, what: str, rows: int, positions: Positions) -> None:
    """Refuse to go through every label or output of every position, in so many rows each, if there is no end to it."""
    places = z.shape[1]
    passes = places * rows
    if passes > MOST_PASSES:
        sampled = "one" if positions == "joint" or places == 1 else "one a position"
        raise ConfigurationError(
            f"Every one of {z.shape[-1]:,} {what} at {places:,} position{'s' if places > 1 else ''}, as labels='exact' "
            f"has it, takes {passes:,} backward passes for each sample; {MOST_PASSES:,} is the most that is begun. "
            f"Use labels='sampled', which takes {sampled} and is the same on average."
        )


def refuse_joint_absolute(z: Tensor, positions: Positions, because: str) -> None:
    """Refuse an exact mean of absolute values unless it is over one output, where it is a single row."""
    separable = z.shape[-1] == 1
    if not separable or (z.shape[1] > 1 and positions == "joint"):
        raise ConfigurationError(
            f"An exact mean of |gradient| over {z.shape[1] * z.shape[-1]} outputs {because}. Use labels='sampled'"
            + (", or positions='separate'." if separable else ".")
        )
