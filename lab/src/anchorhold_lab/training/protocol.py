"""How a sequence of tasks is learned."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Literal, get_args

import torch
from torch import nn

from anchorhold.errors import ConfigurationError, shortened
from anchorhold.settings import added, choice, number
from anchorhold_lab.training.options.bounds import Trains
from anchorhold_lab.training.options.halves import SecondBatch

_MOST = 10**9
"""Of epochs or samples: nobody waits for more, and all that is counted with them fits into 64 bits."""
WEIGHT_DECAY = 0.01
"""Of AdamW, as torch has it."""
_LARGEST_RATE = 1e38
"""Weights' floats end near it."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """The protocol of a run.

    Args:
        epochs: passes over each task's training samples.
        later_epochs: the same from the second task on, where it differs.
        batch_size: samples of a step.
        optimizer: ``"adam"``, ``"adamw"`` with torch's usual weight decay, or ``"sgd"`` with momentum; made anew for
            every task.
        learning_rate: its step size.
        momentum: of SGD.
        reinitialise: whether the weights are drawn anew before every task but the first (heads that belong to one
            task, and what is frozen, are left alone).
        samples: how many training samples a measure after training looks at, and holds' buffers are filled from; all by
            default.
        trains: ``"sequentially"``; or, as bounds, ``"jointly"``, each task together with all before it, or ``"anew"``,
            each by itself from new weights, and judged by the network that has learned it.
        second_batch: where a measure needs a second gradient, ``"drawn"``, that of a batch drawn for it; or for SOS
            ``"halves"``, both gradients from the halves of the step's own.
        rate_decay: what is left of the learning rate at the last step of each task, as a share of the first one's, by
            the same factor at every step; 1 where it does not decay.
        consolidate: when what was learned is held: at the end of each of the ``"tasks"``; or, as if nobody knew those,
            after ``"plateaus"`` of the loss, or after every so many steps. See :class:`anchorhold.TaskFree`.
        compress: of Progress & Compress, how many passes over a task's samples tell the network what a second one says
            of them, which has learned the task before; with 0 there is no second one. It is the second one that
            ``reinitialise`` is then about. See ``training/options/two_columns.py``.
    """

    epochs: int = 20
    later_epochs: int | None = None
    batch_size: int = 256
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    learning_rate: float = 0.001
    momentum: float = 0.9
    reinitialise: bool = False
    samples: int | None = None
    trains: Trains = added("sequentially")  # noqa: RUF009 (a field, as its docstring says)
    second_batch: SecondBatch = added("drawn")  # noqa: RUF009 (likewise)
    consolidate: Literal["tasks", "plateaus"] | int = added("tasks")
    rate_decay: float = added(1.0)
    compress: int = added(0)

    def __post_init__(self) -> None:
        for name in ("epochs", "later_epochs", "batch_size", "samples"):
            value = getattr(self, name)
            optional = value is None and name in ("later_epochs", "samples")
            if not optional and not (isinstance(value, int) and 1 <= value <= _MOST):
                raise ConfigurationError(f"{name}={shortened(value)}: expected a whole number, 1 to {_MOST:,}.")
        expected = f"a number above 0, up to {_LARGEST_RATE:g}"
        number("learning_rate", self.learning_rate, expected, lambda rate: 0 < rate <= _LARGEST_RATE)
        number("rate_decay", self.rate_decay, "a number above 0, up to 1", lambda share: 0 < share <= 1)
        number("momentum", self.momentum, "a number from 0 up to, but not, 1", lambda share: 0 <= share < 1)
        if self.optimizer not in ("adam", "adamw", "sgd"):
            raise ConfigurationError(f"optimizer={self.optimizer!r}: expected 'adam', 'adamw' or 'sgd'.")
        choice("trains", self.trains, get_args(Trains))
        choice("second_batch", self.second_batch, get_args(SecondBatch))
        if self.second_batch == "halves" and self.batch_size % 2:
            raise ConfigurationError(f"batch_size={self.batch_size} in halves: expected an even number.")
        self._check_consolidate()
        self._check_compress()
        if self.trains == "anew":  # which is what the word says, so that it is one run whichever way it is asked for
            object.__setattr__(self, "reinitialise", True)

    def _check_consolidate(self) -> None:
        given = self.consolidate
        counted = isinstance(given, int) and not isinstance(given, bool) and 1 <= given <= _MOST
        if not counted and given not in ("tasks", "plateaus"):
            raise ConfigurationError(
                f"consolidate={shortened(given)}: expected 'tasks', 'plateaus' or a number of steps, 1 to {_MOST:,}."
            )
        if given != "tasks" and (self.reinitialise or self.trains != "sequentially"):
            raise ConfigurationError(
                f"consolidate={given!r} with reinitialise={self.reinitialise} and trains={self.trains!r}: where nobody "
                "knows when tasks end, no weights are drawn anew then; expected reinitialise=False and "
                "trains='sequentially'."
            )

    def _check_compress(self) -> None:
        given = self.compress
        if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= _MOST:
            raise ConfigurationError(f"compress={shortened(given)}: expected a number of epochs, 0 to {_MOST:,}.")
        if given and (self.trains != "sequentially" or self.consolidate != "tasks"):
            raise ConfigurationError(
                f"compress={given} with trains={self.trains!r} and consolidate={self.consolidate!r}: what was learned "
                "is told to a network that keeps it at the end of each task; expected trains='sequentially' and "
                "consolidate='tasks', or compress=0."
            )

    def epochs_of(self, task: int) -> int:
        """Return the epochs of a task, counted from 0."""
        return self.epochs if task == 0 or self.later_epochs is None else self.later_epochs

    def passes_of(self, task: int) -> int:
        """Return how often a task's samples are gone through in all, to learn them and to tell of them."""
        return self.epochs_of(task) + self.compress

    def rate(self, step: int, steps: int) -> float:
        """Return the learning rate of a step, counted from 0, in a task, or a phase of it, of so many."""
        return self.learning_rate * math.pow(self.rate_decay, step / max(1, steps - 1))

    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return a fresh optimizer."""
        if self.optimizer == "adam":
            return torch.optim.Adam(parameters, lr=self.learning_rate, fused=True)
        if self.optimizer == "adamw":
            return torch.optim.AdamW(parameters, lr=self.learning_rate, weight_decay=WEIGHT_DECAY, fused=True)
        optimizer = torch.optim.SGD(parameters, lr=self.learning_rate, momentum=self.momentum, fused=True)
        if self.momentum:  # without them torch fails at a head whose first gradient comes later than others'
            for parameter in optimizer.param_groups[0]["params"]:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return optimizer
