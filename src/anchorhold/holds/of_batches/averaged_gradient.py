r"""A-GEM: a step must not raise the average loss of old samples (Chaudhry et al. 2019, arXiv 1812.00420).

.. math:: \tilde g = g - \frac{g^\top g_\text{ref}}{g_\text{ref}^\top g_\text{ref}}\,g_\text{ref}
          \quad\text{where } g^\top g_\text{ref} < 0, \text{ else } g

:math:`g_\text{ref}` is the gradient of the loss on a random batch from the memory of all old tasks, and both are over all
that the step moves.
"""  # noqa: E501 (a formula)

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from anchorhold.errors import ConfigurationError
from anchorhold.holds.base import Held
from anchorhold.holds.of_batches.batch_hold import TaskForward
from anchorhold.holds.of_batches.batch_sources import Drawn
from anchorhold.holds.of_batches.buffers import Buffer
from anchorhold.holds.of_batches.replay import Loss, Replay
from anchorhold.tensors.sharding import is_sharded


class AveragedGradient(Replay):
    """A-GEM: the task's gradient is projected where it conflicts with that of old samples.

    >>> guard = Guard(model, "fine-tune", holds=[AveragedGradient(Ring(25))])

    Measures see the gradient as it was, and other holds, the guard's own too, are added to what is left of it.
    Chaudhry, Ranzato, Rohrbach and Elhoseiny 2019, "Efficient Lifelong Learning with A-GEM", arXiv 1812.00420.

    Args:
        source: old samples, as for :class:`~anchorhold.Replay`; of a buffer, each step's batch is from all tasks.
        loss: as there.
        size: how many samples are drawn from a buffer at each step.
        forward, seed, name: see :class:`~anchorhold.holds.of_batches.batch_hold.BatchHold`.
    """

    projects = True

    def __init__(
        self,
        source: Buffer | Iterable[Any] | int = 500,
        *,
        loss: Loss | None = None,
        size: int = 256,
        forward: TaskForward | None = None,
        seed: int = 0,
        name: str | None = None,
    ) -> None:
        super().__init__(source, None, loss=loss, size=size, forward=forward, seed=seed, name=name)
        self.coefficient: Tensor | None = None
        """What the last step's gradient of old samples was multiplied by, 0 where there was no conflict."""

    def begin_task(self, held: Held) -> None:
        """Refuse processes that would run a sharded model different numbers of times, and wait for each other."""
        super().begin_task(held)
        if any(map(is_sharded, held.model.parameters())):
            raise ConfigurationError(
                f"The hold {self.name!r} with a sharded model: each process draws samples of its own, of some tasks "
                "each, and FSDP gathers parameters only where all of them run alike. Use DDP, or Replay(batches)."
            )

    def loss(self, held: Held, drawn: Drawn) -> Tensor:
        """Return the mean loss of a batch from all old tasks."""
        if self.buffer is None:
            return super().loss(held, drawn)
        parts = self.buffer.draw_from_all(self.size, held.steps)
        whole = sum(count for _, count in parts)
        losses = [super(AveragedGradient, self).loss(held, part) * (count / whole) for part, count in parts]
        return torch.stack(losses).sum()

    def value(self, held: Held) -> Tensor | None:
        """Return nothing: what is projected is the gradient of no loss."""
        return None

    def joined(self, pull: Mapping[str, Tensor], task: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return −(g·g_ref / g_ref·g_ref) g_ref where that is a conflict, and zeros where there is none."""
        wide = {name: tensor.to(torch.promote_types(tensor.dtype, torch.float32)) for name, tensor in pull.items()}
        first = next(iter(wide.values())).device
        dots = [(wide[name] * task[name].to(wide[name].dtype)).sum().to(first) for name in wide if name in task]
        squares = torch.stack([tensor.square().sum().to(first) for tensor in wide.values()]).sum()
        along = torch.stack(dots).sum() if dots else squares.new_zeros(())
        self.coefficient = torch.where((along < 0) & (squares > 0), -along / squares, 0.0)
        return {name: self.coefficient.to(tensor.device, tensor.dtype) * tensor for name, tensor in wide.items()}

    def told(self) -> str:
        """Return what it draws from."""
        return f"steps that do not raise the loss of {self._whence()}"
