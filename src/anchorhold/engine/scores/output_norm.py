"""The squared norm of a network's output, MAS's score."""

from typing import Literal, Self

import torch
from torch import Tensor

from anchorhold.engine.phi import Phi
from anchorhold.engine.scores.base import Per, PositionScore
from anchorhold.engine.scores.likelihoods import LIKELIHOODS, LikelihoodName
from anchorhold.engine.scores.likelihoods.gaussian import NO_PROBABILITIES
from anchorhold.engine.scores.output_reading import Told
from anchorhold.engine.scores.positions import Positions, RowMaker
from anchorhold.errors import ConfigurationError


class OutputNorm(PositionScore):
    """MAS's score: the squared norm of the outputs, or with ``dominant`` the square of the largest one.

    Args:
        output: ``"probabilities"`` for the softmax q of the outputs, or the sigmoid p where they are logits of labels
            that are each 0 or 1; ``"logits"`` for the outputs as they are (which is also what a regression wants).
        dominant: keep only the largest output (MASX).
        positions: as in :class:`LogLikelihood`.
        likelihood: likewise; it makes a difference to probabilities alone.
        class_dim: likewise.
        per: likewise.
    """

    def __init__(
        self,
        output: Literal["probabilities", "logits"] = "probabilities",
        dominant: bool = False,
        positions: Positions = "joint",
        likelihood: LikelihoodName | None = None,
        class_dim: int | None = None,
        per: Per = "sample",
    ) -> None:
        super().__init__(positions, likelihood, class_dim, per)
        if output not in ("probabilities", "logits"):
            raise ConfigurationError(f"output={output!r}: expected 'probabilities' or 'logits'.")
        if output == "probabilities" and likelihood == "gaussian":
            raise ConfigurationError(NO_PROBABILITIES.format(why="likelihood='gaussian'"))
        self.output = output
        self.dominant = dominant
        self.softmax = self.asks_likelihood = output == "probabilities"
        self.asks_classes = dominant

    def settled(self, outputs: Tensor, targets: Tensor | None, told: Told | None = None) -> Self:
        """Return this score with its outputs' reading, and refuse probabilities of what has none."""
        settled = super().settled(outputs, targets, told)
        if settled.reading is not None and settled.reading.likelihood == "gaussian":
            raise ConfigurationError(NO_PROBABILITIES.format(why=settled.reading.why))
        return settled

    def gradients(
        self, z: Tensor, labels: Tensor | None, phi: Phi, generator: torch.Generator | None
    ) -> tuple[int, RowMaker, bool]:
        """Return one row: the score has no labels."""
        return 1, lambda i, j, places: self._gradient(z[:, places]).unsqueeze(0)[i:j], False

    def _gradient(self, z: Tensor) -> Tensor:
        if self.reading is not None and self.reading.likelihood is not None:
            return LIKELIHOODS[self.reading.likelihood].norm_gradient(z, self.dominant)
        if self.dominant:
            top = z.argmax(-1, keepdim=True)
            return torch.zeros_like(z).scatter(-1, top, 2 * z.gather(-1, top))
        return 2 * z

    def __repr__(self) -> str:
        return f"OutputNorm(output={self.output!r}, dominant={self.dominant})"
