"""The scores of the Fisher information, of AF and of MAS: a log-likelihood, and the norm of the outputs."""

from typing import Literal, Self

import torch
from torch import Tensor

from anchorhold.engine.phi import ABSOLUTE, Phi
from anchorhold.engine.scores.base import Per, PositionScore
from anchorhold.engine.scores.likelihoods import LIKELIHOODS, NO_PROBABILITIES, LikelihoodName
from anchorhold.engine.scores.output_reading import ReadingEvidence
from anchorhold.engine.scores.outputs import Positions, RowMaker
from anchorhold.errors import ConfigurationError
from anchorhold.settings import whole_number

Labels = Literal["exact", "sampled", "true"]


class LogLikelihood(PositionScore):
    """``s_y = log q(y)``, the label y weighted by the model's probability, drawn from it, or given.

    Args:
        labels: ``"exact"`` sums over every label with weight q(y); ``"sampled"`` draws labels from q; ``"true"``
            takes the data's own (the empirical Fisher).
        positions: for outputs ``[N, *positions, C]``, ``"joint"`` takes a sample's score as the sum over its
            positions; ``"separate"`` takes each position as a sample of its own.
        draws: how many labels are drawn for each sample with ``"sampled"``.
        likelihood: whose log-likelihood it is; see :class:`~anchorhold.engine.scores.base.PositionScore`. "Labels"
            are then the values of a regression, or labels that are each 0 or 1.
        class_dim: likewise.
        per: likewise.
    """

    asks_likelihood = True

    def __init__(
        self,
        labels: Labels = "exact",
        positions: Positions = "joint",
        draws: int = 1,
        likelihood: LikelihoodName | None = None,
        class_dim: int | None = None,
        per: Per = "sample",
    ) -> None:
        super().__init__(positions, likelihood, class_dim, per)
        if labels not in ("exact", "sampled", "true"):
            raise ConfigurationError(f"labels={labels!r}: expected 'exact', 'sampled' or 'true'.")
        self.labels = labels
        self.draws = whole_number("draws", draws, "a whole number of at least 1", least=1)
        self.needs_targets = labels == "true"

    @property
    def softmax(self) -> bool:  # type: ignore[override]
        """Whether precise outputs make a difference, as they do not to a regression."""
        return self.reading is None or LIKELIHOODS[self.reading.likelihood or "categorical"].softmax

    def has_labels(self, phi: Phi) -> bool:
        """Return whether it is the Fisher information, of the labels' loss; absolute values are of outputs.

        The data's own labels are looked at wherever they are taken, whatever is made of them.
        """
        return phi != ABSOLUTE

    def gradients(
        self, z: Tensor, labels: Tensor | None, phi: Phi, generator: torch.Generator | None
    ) -> tuple[int, RowMaker, bool]:
        """Return rows over labels; the exact Fisher of several positions is the sum of theirs."""
        assert self.reading is not None
        likelihood = LIKELIHOODS[self.reading.likelihood or "categorical"]
        if self.labels == "exact":
            # Cross terms of different positions have mean 0, so the joint Fisher is the sum over positions.
            return *likelihood.exact(z, phi, self.positions), True
        if self.labels == "true":
            assert labels is not None
            return 1, likelihood.true(z, labels), False
        make = likelihood.sampled(z, self.draws, generator)
        weight = phi.inverse(torch.tensor(1 / self.draws, dtype=torch.float64)).item()
        return self.draws, make if weight == 1 else lambda i, j, places: make(i, j, places) * weight, False

    def __repr__(self) -> str:
        named = "" if self.likelihood is None else f", likelihood={self.likelihood!r}"
        return f"LogLikelihood(labels={self.labels!r}, positions={self.positions!r}{named})"


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

    def settled(self, outputs: Tensor, targets: Tensor | None, evidence: ReadingEvidence | None = None) -> Self:
        """Return this score with its outputs' reading, and refuse probabilities of what has none."""
        settled = super().settled(outputs, targets, evidence)
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
