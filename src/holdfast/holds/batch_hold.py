"""Holds that are a loss on batches of their own: what replay, distillation and dark experience have in common.

Such a hold runs the model once more before each step, so it costs a forward and a backward pass of its batch. It pulls
at every parameter that the step moves, heads and other unprotected ones too, since all of them make the outputs that
are to be kept. It runs in the mode and the precision of training, and leaves nothing behind: neither batch norms'
statistics nor random states.
"""

import contextlib
import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from holdfast.errors import ConfigurationError, OrderError
from holdfast.holds.base import Held, Hold
from holdfast.holds.buffers import Buffer, Reservoir
from holdfast.holds.sources import Drawn, GivenBatches, Source
from holdfast.persample.batches import Batch, BatchReader, call_model
from holdfast.persample.isolation.process_switches import reentrant_checkpoints_opened
from holdfast.seeding import derive_seed
from holdfast.settings import number, whole_number
from holdfast.tensors.sharding import is_sharded

TaskForward = Callable[..., Tensor]
"""How the model is called, ``forward(model, inputs)``, or ``forward(model, inputs, task)`` where tasks have heads."""

SCALE_OF_HALF = 2.0**10
"""What losses are multiplied by on their way backward through float16, whose smallest number is 6·10⁻⁸."""


class BatchHold(Hold):
    """A loss on batches of its own.

    Args:
        source: batches, one of which is taken a step; a buffer, which fills by itself when a task is consolidated; or
            the size of one, a class-balanced :class:`~holdfast.Reservoir`.
        strength: what the loss is multiplied by.
        share: ρ of the step that is the hold's: its gradient is then (1 − ρ)g + ρ∇L, as if ρ of the batch were the
            hold's; ``None`` adds to the task's gradient, g + ∇L.
        size: how many samples are drawn from a buffer at each step.
        forward: how the model is called, ``forward(model, inputs)``, or ``forward(model, inputs, task)``, with tasks
            counted from 0, for a model with a head for each; by default as :meth:`~holdfast.Consolidator.consolidate`
            was told for that task.
        seed: of all draws.
        name: what it is called among the holds of a guard; needed where there are two of a kind.
    """

    runs_model = True

    def __init__(
        self,
        source: Buffer | Iterable[Any] | int,
        strength: float = 1.0,
        share: float | None = None,
        *,
        size: int = 32,
        forward: TaskForward | None = None,
        seed: int = 0,
        name: str | None = None,
    ) -> None:
        super().__init__(strength)
        if name is not None:
            self.name = name  # type: ignore[misc]
        self.share = None if share is None else checked_share(share)
        self.size = whole_number("size", size, "a whole number of at least 1", least=1)
        self.seed = whole_number("seed", seed, "a whole number")
        self.source = self._as_source(source)
        self.forward: TaskForward | None = None
        self.through_heads = False
        """Whether ``forward`` asks for the task, so that the model has more than one way of being called."""
        if forward is not None:
            self.call_by(forward)
        self._told: dict[int, TaskForward] = {}

    def _as_source(self, given: Buffer | Iterable[Any] | int) -> Source:
        if isinstance(given, int) and not isinstance(given, bool):
            return Reservoir(given, seed=self.seed)
        return given if isinstance(given, Buffer) else GivenBatches(given, self.seed)  # type: ignore[arg-type]

    def call_by(self, forward: TaskForward) -> None:
        """Call the model in this way from now on."""
        self.forward = with_task(forward)
        self.through_heads = self.forward is forward

    @property
    def buffer(self) -> Buffer | None:
        """The buffer that it draws from, if it is one."""
        return self.source if isinstance(self.source, Buffer) else None

    @property
    def takes_batches(self) -> bool:  # type: ignore[override]
        """Whether it fills a buffer with the data of each task."""
        return self.buffer is not None

    @property
    def weight(self) -> float:
        """What the loss is multiplied by."""
        return self.strength if self.share is None else self.strength * self.share

    @abstractmethod
    def loss(self, held: Held, drawn: Drawn) -> Tensor | None:
        """Return the loss on this step's batch, or ``None`` where there is none yet."""

    def value(self, held: Held) -> Tensor | None:
        """Return the loss, times its strength and share."""
        drawn = self._drawn(held) if self.weight else None
        if drawn is None:
            return None
        with as_in_training(held, self.seed):
            loss = self.loss(held, drawn)
        return None if loss is None else self.weight * loss

    def gradient(self, held: Held) -> Mapping[str, Tensor]:
        """Return its gradient for all that the step moves and that the loss depends on."""
        wanted = {name: p for name, p in held.trained.items() if p.requires_grad}
        value = self.value(held)
        if value is None or not wanted:
            return {}
        half = held.call is not None and torch.float16 in held.call.autocast.values()
        scale = SCALE_OF_HALF if half else 1.0
        found = self._differentiated(value, wanted, held, scale)
        return found if scale == 1 else {name: g / scale for name, g in found.items()}

    def _differentiated(
        self, value: Tensor, wanted: Mapping[str, nn.Parameter], held: Held, scale: float
    ) -> dict[str, Tensor]:
        if not value.requires_grad:
            raise ConfigurationError(
                f"The loss of the hold {self.name!r} does not depend on anything that is trained; expected one made of "
                "the model's outputs. Remove .detach() or torch.no_grad() from its loss or forward function."
            )
        if any(map(is_sharded, wanted.values())):
            return by_backward(scale * value, held.model, wanted)
        found = torch.autograd.grad(scale * value, list(wanted.values()), allow_unused=True)
        return {name: g for name, g in zip(wanted, found, strict=True) if g is not None}

    def end_task(self, held: Held) -> None:
        """Take some of the task's samples into the buffer, if there is one."""
        if held.data.forward is not None:
            self._told = {**self._told, held.tasks: with_task(held.data.forward)}
        if self.buffer is not None and held.data.batches is not None:
            self.buffer.fill(held.data.batches, held.tasks)

    def outputs(self, held: Held, batch: Batch, task: int) -> Tensor:
        """Return what the model makes of a batch, through the head of its task."""
        forward = self.forward or self._told.get(task)
        return call_model(held.model, batch.inputs) if forward is None else forward(held.model, batch.inputs, task)

    def read(self, held: Held, batch: Any) -> Batch:
        """Return a batch as the model's family has them, where the model is."""
        device = next((p.device for p in held.model.parameters()), torch.device("cpu"))
        return BatchReader(device, held.model).read(batch)

    def _drawn(self, held: Held) -> Drawn | None:
        drawn = self.source.draw(self.size, held.steps)
        if drawn is None and held.tasks:
            raise OrderError(
                f"The buffer of the hold {self.name!r} is empty, and {held.tasks} tasks have been consolidated: a "
                "guard's file carries no training data. Load what buffer.save() wrote with buffer.load(), or fill it "
                "with buffer.fill(batches, task)."
            )
        return drawn

    def settings(self) -> dict[str, Any]:
        """Return what it draws from, as far as that is said in plain values."""
        return {} if self.buffer is None else {"buffer": self.buffer.kind, **self.buffer.settings()}

    def snapshot(self) -> Any:
        """Return what the end of a task may change."""
        return super().snapshot(), self._told, None if self.buffer is None else self.buffer.snapshot()

    def roll_back(self, snapshot: Any) -> None:
        """Put it back."""
        state, self._told, samples = snapshot
        super().roll_back(state)
        if self.buffer is not None:
            self.buffer.roll_back(samples)

    def __repr__(self) -> str:
        shown = self.buffer if self.buffer is not None else type(getattr(self.source, "batches", None)).__name__
        how = f"strength={self.strength:g}" if self.share is None else f"share={self.share:g}"
        return f"{type(self).__name__}({shown}, {how})"


def checked_share(share: object) -> float:
    """Return a part of the whole, or say what was expected."""
    return float(number("share", share, "a number from 0 to 1", lambda given: 0 <= given <= 1))


def with_task(function: Callable[..., Tensor]) -> TaskForward:
    """Return a function of model, inputs and task, whether or not the one given asks for the task."""
    if not callable(function):
        raise ConfigurationError(
            f"forward={function!r}: expected a function, forward(model, inputs) or forward(model, inputs, task)."
        )
    try:
        inspect.signature(function).bind(None, None, 0)
    except TypeError:
        return lambda model, inputs, _task: function(model, inputs)
    except ValueError:  # of one that is written in C
        pass
    return function


@contextlib.contextmanager
def as_in_training(held: Held, seed: int) -> Iterator[None]:
    """Run the model as the last training step did, and leave statistics and random states as they are."""
    devices = {p.device for p in held.model.parameters() if p.device.type == "cuda"}
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=list(devices)))
        torch.manual_seed(derive_seed(seed, "dropout", held.tasks, held.steps))
        stack.enter_context(statistics_untouched(held.model))
        stack.enter_context(reentrant_checkpoints_opened())  # inside those there would be no gradient to be had
        for kind, dtype in ({} if held.call is None else held.call.autocast).items():
            stack.enter_context(torch.autocast(kind, dtype))
        yield


@contextlib.contextmanager
def statistics_untouched(model: nn.Module) -> Iterator[None]:
    """Let norms write to copies of their running statistics, which are to be those of the task's data alone."""
    norms = [m for m in model.modules() if isinstance(m, _NormBase) and m.training and m.track_running_stats]
    kept = [(norm, name, buffer) for norm in norms for name, buffer in norm.named_buffers(recurse=False)]
    try:
        for norm, name, buffer in kept:
            setattr(norm, name, buffer.clone())
        yield
    finally:
        for norm, name, buffer in kept:
            setattr(norm, name, buffer)


def by_backward(loss: Tensor, model: nn.Module, wanted: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Return gradients as ``backward()`` makes them, which is where FSDP brings them together; ``.grad`` stays."""
    every = list({id(p): p for p in (*model.parameters(), *wanted.values())}.values())
    own = [parameter.grad for parameter in every]
    try:
        for parameter in every:
            parameter.grad = None
        loss.backward()
        return {name: p.grad for name, p in wanted.items() if p.grad is not None}
    finally:
        for parameter, grad in zip(every, own, strict=True):
            parameter.grad = grad
