"""What a monitor is: it watches training and warns. It changes nothing that is learned.

``stepping`` and ``attachment`` call the methods of all monitors, in the order in which they are registered. A monitor
overrides those that it needs and keeps its own records; it knows what the guard is made of and no other monitor.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from anchorhold.guard.task_classes import Classes

if TYPE_CHECKING:
    from anchorhold.guard.core import Core

FIRST_STEPS = 8
"""Steps at the beginning of a task that monitors of the strength look at."""
LATER_STEP = 128
"""The step up to which they look once more: weights drawn anew are on their way back at first, where the pull is to be
large, and rates that warm up leave all of them where they are."""
LEAST_SHARE = 0.02
"""The share of a step that a hold has to leave. A study of text still learns at strengths that leave 6 %."""

OVERSHOOT = "overshoot"
"""The kind of a warning that a strength is too large for SGD, after which other monitors need not say it again."""
GONE = "gone"
"""The kind of a warning that the model has no parameter of a name any more. A task's end lets it be given again."""
REPLACED = "replaced"
"""The kind of a warning about a replaced parameter that was given before a penalty, without any step to look at."""

AdapterState = Literal["same", "replaced", "unloaded"]
"""The adapters of a model, beside those that the guard holds by merged weights."""


@dataclass(frozen=True)
class Attaching:
    """Optimizers that a guard is about to be attached to."""

    owned: Collection[int]
    """The ids of all parameters that attached optimizers train, with these."""
    optimizers: int
    """How many optimizers there will be."""
    hold: bool
    """Whether the guard is to hold their steps back."""


@dataclass(frozen=True)
class Step:
    """A step that an attached optimizer takes."""

    optimizer: Optimizer
    parameters: Mapping[str, nn.Parameter]
    """The protected parameters that it trains, by name."""
    taken: int
    """How many steps of the task came before."""
    closure: bool = False
    """Whether the optimizer evaluates the loss itself, and goes by the penalty's value."""


class Monitor:
    """Watch for one kind of trouble, and warn of it.

    Args:
        core: what the guard knows.
    """

    name: ClassVar[str]
    """The name that it is registered by."""

    def __init__(self, core: "Core") -> None:
        self.core = core

    # Around a training

    def before_attach(self, attaching: Attaching) -> None:
        """Look at optimizers before the guard is attached to them."""

    def after_attach(self, optimizer: Optimizer, hook: RemovableHandle, *, hold: bool) -> None:
        """Look at an optimizer after the guard was attached to it by a hook."""

    def watch(self, optimizers: Sequence[Optimizer], trained: Mapping[str, nn.Parameter]) -> None:
        """Begin to watch these attached optimizers, which train these protected parameters."""

    def release(self) -> None:
        """Stop to watch, and free what is kept."""

    def begin_task(self) -> None:
        """Look at a task before its first step that is held."""

    def before_parameters(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Look at parameters before the first step that holds them, or after their strength was set."""

    def at_load(self, file: str) -> None:
        """Note that the guard's state was loaded from a file."""

    def at_labels(self, classes: Classes, outputs: int | None) -> None:
        """Look at the labels of the data that a task is measured with.

        Args:
            classes: the labels.
            outputs: how many classes the outputs tell apart, where that is known.
        """

    def at_consolidation(self, called: Collection[str]) -> None:
        """Look at a task that has been measured from data, before anything of it holds.

        Args:
            called: the weights of the adapters' layers that measuring has called.
        """

    # In a step

    def enter_step(self) -> None:
        """Note that an attached optimizer begins a step."""

    def abandon_step(self) -> None:
        """Note that the step is not taken."""

    def before_step(self, step: Step) -> None:
        """Look at the gradients of the task, before a step that is held."""

    def before_pull(self, step: Step) -> None:
        """Look before the hold's pull: at gradients, or, of a pull that follows the step, at weights."""

    def after_pull(self, step: Step) -> None:
        """Look at the same after the pull."""

    def leave_step(self, *, blind: bool) -> None:
        """Look at weights that the optimizer has moved, before a guard moves them.

        Args:
            blind: whether measures along the path had no gradient to see.
        """

    def after_step(self) -> None:
        """Note that the guard has moved weights after the optimizer's step."""

    # Elsewhere

    def before_penalty(self, parameters: Mapping[str, nn.Parameter], adapters: AdapterState) -> None:
        """Look at the protected parameters of the model before the penalty's value is computed for a loss."""

    def explain_nonfinite(self) -> str:
        """Return what may have made a gradient infinite or NaN, to be added to the error; empty if nothing is known."""
        return ""

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to optimizers: a copy of a guard is attached to none yet."""
        return {"core": self.core}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["core"])  # type: ignore[misc]


def overriding(monitors: Iterable[Monitor], event: str) -> list[Monitor]:
    """Return the monitors that have something to do at an event, the name of a method: those that override it."""
    return [monitor for monitor in monitors if getattr(type(monitor), event) is not getattr(Monitor, event)]


def is_capturing() -> bool:
    """Return whether work is being captured into a CUDA graph, so that no number can be read."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def and_others(names: Sequence[str]) -> str:
    """Return the first of some names, and how many others there are."""
    more = len(names) - 1
    return repr(names[0]) + (f" and {more} other protected parameter{'s' if more > 1 else ''}" if more else "")
