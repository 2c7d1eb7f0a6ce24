"""The log-likelihood of labels, whose gradients make the Fisher information and its relatives."""

from typing import Literal

import torch
from torch import Tensor

from holdfast.errors import ConfigurationError
from holdfast.persample.phi import Phi
from holdfast.persample.scores.base import Positions, PositionScore, RowMaker, position_pieces
from holdfast.persample.scores.softmax import Softmax
from holdfast.settings import whole_number

Labels = Literal["exact", "sampled", "true"]

MOST_PASSES = 100_000
"""Backward passes that the exact score of a sample may take: minutes for a small model, days for a large one."""


class LogLikelihood(PositionScore):
    """``s_y = log q(y)``, the label y weighted by the model's probability, drawn from it, or given.

    Args:
        labels: ``"exact"`` sums over every label with weight q(y); ``"sampled"`` draws labels from q; ``"true"``
            takes the data's own (the empirical Fisher).
        positions: for outputs ``[N, *positions, C]``, ``"joint"`` takes a sample's score as the sum over its
            positions; ``"separate"`` takes each position as a sample of its own.
        draws: how many labels are drawn for each sample with ``"sampled"``.
    """

    def __init__(self, labels: Labels = "exact", positions: Positions = "joint", draws: int = 1) -> None:
        super().__init__(positions)
        if labels not in ("exact", "sampled", "true"):
            raise ConfigurationError(f"labels={labels!r}: expected 'exact', 'sampled' or 'true'.")
        self.labels = labels
        self.draws = whole_number("draws", draws, "a whole number of at least 1", least=1)
        self.needs_targets = labels == "true"
        self.softmax = True

    def gradients(
        self, z: Tensor, labels: Tensor | None, phi: Phi, generator: torch.Generator | None
    ) -> tuple[int, RowMaker, bool]:
        """Return rows over labels; the exact Fisher of several positions is the sum of theirs."""
        classes = z.shape[-1]
        if self.labels == "exact":
            if phi.name == "square":
                self._refuse_endless(z.shape[1], classes, classes - 1)
                # Cross terms of different positions have mean 0, so the joint Fisher is the sum over positions.
                return classes - 1, lambda i, j, places: Softmax(z[:, places]).factor(i, j).movedim(-2, 0), True
            if z.shape[1] > 1 and self.positions == "joint":
                raise ConfigurationError(
                    f"An exact mean of |gradient| over the joint labels of {z.shape[1]} positions has "
                    f"{classes}^{z.shape[1]} terms. Use labels='sampled', or positions='separate'."
                )
            self._refuse_endless(z.shape[1], classes, classes)

            def every_label(start: int, stop: int, places: slice) -> Tensor:
                softmax = Softmax(z[:, places])
                chosen = torch.arange(start, stop, device=z.device).expand(*softmax.q.shape[:-1], stop - start)
                weight = phi.inverse(softmax.q.gather(-1, chosen)).unsqueeze(-1)
                return (weight * softmax.label_gradients(chosen)).movedim(-2, 0)

            return classes, every_label, True
        if self.labels == "sampled":
            chosen = torch.cat([self._drawn(z[:, here], generator) for here in position_pieces(z)], dim=1)
        else:
            assert labels is not None
            chosen = labels.clamp(min=0).unsqueeze(-1)
        weight = phi.inverse(torch.tensor(1 / chosen.shape[-1], dtype=torch.float64)).item()

        def chosen_labels(start: int, stop: int, places: slice) -> Tensor:
            gradients = Softmax(z[:, places]).label_gradients(chosen[:, places, start:stop])
            return gradients.mul_(weight).movedim(-2, 0)

        return chosen.shape[-1], chosen_labels, False

    def _refuse_endless(self, places: int, classes: int, rows: int) -> None:
        """Refuse to go through every label of every position, in so many rows each, where there is no end to them."""
        passes = places * rows
        if passes > MOST_PASSES:
            sampled = "one" if self.positions == "joint" or places == 1 else "one a position"
            raise ConfigurationError(
                f"Every one of {classes:,} labels at {places:,} position{'s' if places > 1 else ''}, as labels='exact' "
                f"has it, takes {passes:,} backward passes for each sample; {MOST_PASSES:,} is the most that is begun. "
                f"Use labels='sampled', which takes {sampled} and is the same on average."
            )

    def _drawn(self, z: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return labels of every position, drawn from the model, as ``[N, P, draws]``."""
        q = Softmax(z).q.flatten(0, 1)
        drawn = torch.multinomial(q, self.draws, replacement=True, generator=generator)
        return drawn.view(*z.shape[:-1], self.draws)

    def __repr__(self) -> str:
        return f"LogLikelihood(labels={self.labels!r}, positions={self.positions!r})"
