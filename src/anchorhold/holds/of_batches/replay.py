"""Replay: the loss of old samples beside that of new ones (Chaudhry et al. 2019, arXiv 1902.10486)."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from anchorhold.errors import BatchError, ConfigurationError
from anchorhold.holds.base import Held
from anchorhold.holds.of_batches.batch_hold import BatchHold, TaskForward, class_loss
from anchorhold.holds.of_batches.batch_sources import Drawn
from anchorhold.holds.of_batches.buffers import Buffer

Loss = Callable[[Tensor, Tensor], Tensor]
"""``loss(outputs, targets)`` returns one number."""


class Replay(BatchHold):
    r"""Old samples once more, with their labels: each step's gradient is :math:`(1-\rho)g + \rho g_\text{old}`.

    >>> guard = Guard(model, "EWC", strength=100.0, holds=[Replay(old_batches, share=1 / 32)])
    >>> guard = Guard(model, "fine-tune", holds=[Replay(Reservoir(200), share=0.5)])

    Args:
        source: old batches, with labels, one of which is taken a step; a buffer, such as
            :class:`~anchorhold.holds.Reservoir` or :class:`~anchorhold.holds.Ring`, which takes some samples of each
            task in when it is consolidated; or the size of a reservoir.
        share: ρ, the part of the step that is the old samples'; ``None`` adds ``strength`` times their loss to the
            task's instead.
        strength: what the old samples' loss is multiplied by.
        loss: ``loss(outputs, targets)``; by default the cross-entropy with labels of classes, or of tokens.
        size: how many samples are drawn from a buffer at each step.
        forward, seed, name: see :class:`~anchorhold.holds.of_batches.batch_hold.BatchHold`.
    """

    def __init__(
        self,
        source: Buffer | Iterable[Any] | int = 500,
        share: float | None = 0.5,
        *,
        strength: float = 1.0,
        loss: Loss | None = None,
        size: int = 32,
        forward: TaskForward | None = None,
        seed: int = 0,
        name: str | None = None,
    ) -> None:
        super().__init__(source, strength, share, size=size, forward=forward, seed=seed, name=name)
        if loss is not None and not callable(loss):
            raise ConfigurationError(
                f"loss={loss!r}: expected a function of outputs and targets, such as torch.nn.MSELoss()."
            )
        self.of_outputs = loss or class_loss

    def loss(self, held: Held, drawn: Drawn) -> Tensor:
        batch = self.read(held, drawn.batch)
        outputs = self.outputs(held, batch, drawn.task)
        targets = batch.labels_for(outputs)
        if targets is None:
            raise BatchError(
                "Batches without labels for Replay, whose loss needs them; expected (inputs, targets) or a mapping "
                "with 'labels'. To keep what the model says of unlabelled inputs, use Distillation."
            )
        loss = self.of_outputs(outputs, targets)
        if not isinstance(loss, Tensor) or loss.ndim:
            given = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"type {type(loss).__name__}"
            raise ConfigurationError(
                f"The loss of Replay returned something of {given}; expected a tensor of one number, such as the mean "
                "over samples that reduction='mean' gives."
            )
        return loss
