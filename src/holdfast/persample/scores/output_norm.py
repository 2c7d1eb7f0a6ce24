"""The squared norm of a network's output, MAS's score."""

from typing import Literal

import torch
from torch import Tensor

from holdfast.errors import ConfigurationError
from holdfast.persample.phi import Phi
from holdfast.persample.scores.base import Positions, PositionScore, RowMaker
from holdfast.persample.scores.softmax import Softmax


class OutputNorm(PositionScore):
    """MAS's score: the squared norm of the outputs, or with ``dominant`` the square of the largest one.

    Args:
        output: ``"probabilities"`` for the softmax q of the outputs, ``"logits"`` for the outputs as they are
            (which is also what a regression wants).
        dominant: keep only the largest output (MASX).
        positions: as in :class:`LogLikelihood`.
    """

    def __init__(
        self,
        output: Literal["probabilities", "logits"] = "probabilities",
        dominant: bool = False,
        positions: Positions = "joint",
    ) -> None:
        super().__init__(positions)
        if output not in ("probabilities", "logits"):
            raise ConfigurationError(f"output={output!r}: expected 'probabilities' or 'logits'.")
        self.output = output
        self.dominant = dominant
        self.softmax = output == "probabilities"

    def gradients(
        self, z: Tensor, labels: Tensor | None, phi: Phi, generator: torch.Generator | None
    ) -> tuple[int, RowMaker, bool]:
        """Return one row: the score has no labels."""
        return 1, lambda i, j, places: self._gradient(z[:, places]).unsqueeze(0)[i:j], False

    def _gradient(self, z: Tensor) -> Tensor:
        if self.output == "probabilities":
            softmax = Softmax(z)
            return softmax.squared_maximum_gradient() if self.dominant else softmax.squared_norm_gradient()
        if self.dominant:
            top = z.argmax(-1, keepdim=True)
            return torch.zeros_like(z).scatter(-1, top, 2 * z.gather(-1, top))
        return 2 * z

    def __repr__(self) -> str:
        return f"OutputNorm(output={self.output!r}, dominant={self.dominant})"
