r"""Dark experience replay (Buzzega et al. 2020, arXiv 2004.07211): old samples with what the model said of them.

.. math:: \alpha\,E\|h_\theta(x) - z\|^2 + \beta\,E\,\ell(y, h_\theta(x'))

with :math:`z` the outputs at the time when a sample was kept. There, samples are kept along the way with the outputs of
that moment; here at the end of each task, with those of the model that has learned it.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from anchorhold.errors import ConfigurationError
from anchorhold.holds.base import Held
from anchorhold.holds.of_batches.batch_hold import BatchHold, TaskForward, class_loss, refuse_shards
from anchorhold.holds.of_batches.batch_sources import Drawn
from anchorhold.holds.of_batches.buffers import Buffer
from anchorhold.holds.of_batches.old_model import evaluated, output_distance
from anchorhold.settings import number


class DarkExperience(BatchHold):
    """DER++: old samples with their labels, and with the outputs that the model had for them.

    Args:
        source: a buffer, or the size of one.
        alpha: α, of the outputs' mean squared difference.
        beta: β, of the labels' cross-entropy, on another draw of samples; 0 is DER.
        size, forward, seed, name: see :class:`~anchorhold.holds.of_batches.batch_hold.BatchHold`.
    """

    def __init__(
        self,
        source: Buffer | Iterable[Any] | int = 500,
        alpha: float = 0.5,
        beta: float = 0.5,
        *,
        size: int = 32,
        forward: TaskForward | None = None,
        seed: int = 0,
        name: str | None = None,
    ) -> None:
        super().__init__(source, size=size, forward=forward, seed=seed, name=name)
        if self.buffer is None:
            raise ConfigurationError(
                f"DarkExperience of {type(source).__name__}: expected a buffer, which keeps the outputs of its "
                "samples, or its size. Of batches that are given, use Distillation and Replay."
            )
        self.alpha, self.beta = (
            float(number(name, given, "a number not below 0", lambda value: value >= 0))
            for name, given in (("alpha", alpha), ("beta", beta))
        )

    def begin_task(self, held: Held) -> None:
        """Refuse what could not be kept at the task's end."""
        super().begin_task(held)
        refuse_shards(held, "DarkExperience")

    def end_task(self, held: Held) -> None:
        """Keep samples of the task, with their outputs."""
        self.begin_task(held)
        super().end_task(held)
        assert self.buffer is not None
        with evaluated(held.model), torch.no_grad():
            self.buffer.keep_outputs(lambda drawn: self._of(held, drawn)[0])

    def loss(self, held: Held, drawn: Drawn) -> Tensor:
        """Return both terms, each on a draw of its own."""
        outputs, _ = self._of(held, drawn)
        if drawn.outputs is None:
            raise ConfigurationError(
                "Samples in the buffer of DarkExperience have no outputs kept with them: they were put there by "
                "another hold after this one's end of the task. Give this hold a buffer of its own."
            )
        loss = self.alpha * output_distance(drawn.outputs, outputs, None, "outputs")
        if not self.beta:
            return loss
        assert self.buffer is not None
        other = self.buffer.draw(self.size, -1 - held.steps)
        assert other is not None
        outputs, targets = self._of(held, other)
        if targets is None or targets.is_floating_point():
            raise ConfigurationError("DarkExperience of samples without labels of classes: give beta=0, which is DER.")
        return loss + self.beta * class_loss(outputs, targets)

    def _of(self, held: Held, drawn: Drawn) -> tuple[Tensor, Tensor | None]:
        batch = self.read(held, drawn.batch)
        outputs = self.outputs(held, batch, drawn.task)
        return outputs, batch.labels_for(outputs)

    def told(self) -> str:
        """Return its two weights, and what it draws from."""
        return f"α {self.alpha:g} and β {self.beta:g}, {self._whence()}"

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "alpha": self.alpha, "beta": self.beta}
