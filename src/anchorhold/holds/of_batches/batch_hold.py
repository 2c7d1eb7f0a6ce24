"""Holds that are a loss on batches of their own: what replay, distillation and dark experience have in common.

Such a hold runs the model once more before each step, so it costs a forward and a backward pass of its batch. It pulls
at every parameter that the step moves, heads and other unprotected ones too, since all of them make the outputs that
are to be kept. It runs in the mode and the precision of training, and leaves nothing behind: neither batch norms'
statistics nor random states.
"""

import contextlib
import inspect
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from anchorhold.engine.batches import Batch, call_model
from anchorhold.engine.conventions import BatchReader
from anchorhold.engine.isolation import reentrant_checkpoints_run
from anchorhold.engine.refusals import refuse_nested_backward
from anchorhold.engine.scores.outputs import IGNORED
from anchorhold.errors import BatchError, ConfigurationError, NotFiniteError, OrderError
from anchorhold.holds.base import Held, Hold
from anchorhold.holds.of_batches.batch_sources import Drawn, GivenBatches, Source
from anchorhold.holds.of_batches.buffers import Buffer, Reservoir
from anchorhold.seeding import derive_seed
from anchorhold.settings import checked_share, require, whole_number
from anchorhold.tensors.sharding import is_sharded, reshard

TaskForward = Callable[..., Tensor]
"""How the model is called, ``forward(model, inputs)``, or ``forward(model, inputs, task)`` where tasks have heads."""

SCALES_OF_HALF = (2.0**10, 1.0, 2.0**-10)
"""What losses are multiplied by on their way backward through float16, whose numbers reach from 6·10⁻⁸ to 65504.

The first at which nothing overflows is taken.
"""

_WAYS = "/ways"
"""What a state calls the tasks that were consolidated with a function of their own: no parameter has such a name."""


class BatchHold(Hold):
    """A loss on batches of its own.

    Args:
        source: batches, one of which is taken a step; a buffer, which fills by itself when a task is consolidated; or
            the size of one, a class-balanced :class:`~anchorhold.holds.Reservoir`.
        strength: what the loss is multiplied by.
        share: ρ of the step that is the hold's: its gradient is then (1 − ρ)g + ρ∇L, as if ρ of the batch were the
            hold's; ``None`` adds to the task's gradient, g + ∇L.
        size: how many samples are drawn from a buffer at each step.
        forward: how the model is called, ``forward(model, inputs)``, or ``forward(model, inputs, task)``, with tasks
            counted from 0, for a model with a head for each; by default as :meth:`~anchorhold.Guard.consolidate`
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
            require(isinstance(name, str), f"name={name!r}", "a text, by which the hold's state is kept")
            self.name = name  # type: ignore[misc]
        self.share = None if share is None else checked_share("share", share)
        self.size = whole_number("size", size, "a whole number of at least 1", least=1)
        self.seed = whole_number("seed", seed, "a whole number")
        self.source = self._as_source(source)
        self.forward: Way | None = None
        if forward is not None:
            self.call_by(forward)
        self._told: dict[int, Way] = {}
        self._lost: frozenset[int] = frozenset()
        """The tasks that were called in a way which a state cannot carry."""
        self.last: Tensor | None = None
        """The loss at the last step, before strength and share."""
        self._is_differentiable = False

    def _as_source(self, given: Buffer | Iterable[Any] | int) -> Source:
        if isinstance(given, int) and not isinstance(given, bool):
            # By its own name: the holds that draw from it have a size too, which is another number.
            many = whole_number("source", given, "how many old samples to keep, a whole number of at least 1", least=1)
            return Reservoir(many, seed=self.seed)
        return given if isinstance(given, Buffer) else GivenBatches(given, self.seed)  # type: ignore[arg-type]

    def call_by(self, forward: Callable[..., Tensor]) -> None:
        """Call the model in this way from now on."""
        self.forward = Way.of(forward)

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

    def begin_task(self, held: Held) -> None:
        """Refuse processes that would run a sharded model through different heads, and wait for each other for ever."""
        by_task = bool(self._told or self._lost) or (self.forward is not None and self.forward.asks_for_task)
        if self.buffer is None or not by_task or len({sample.kind.task for sample in self.buffer.samples}) < 2:
            return
        if any(map(is_sharded, held.model.parameters())):
            raise ConfigurationError(
                f"The hold {self.name!r} replays several tasks, each through a head of its own, with a sharded model: "
                "processes draw samples of their own, and FSDP gathers parameters only where all of them run alike. "
                "Use DDP, or a hold for each task: Replay(batches_of_the_task, forward=..., name=...)."
            )

    @abstractmethod
    def loss(self, held: Held, drawn: Drawn) -> Tensor | None:
        """Return the loss on this step's batch, or ``None`` where there is none yet."""

    def waits(self, tasks: int) -> bool:
        """Whether it has nothing to keep before a task is consolidated: its buffer is empty."""
        return not tasks and self.buffer is not None and not len(self.buffer)

    def value(self, held: Held) -> Tensor | None:
        """Return the loss, times its strength and share."""
        with left_alone(held, self.seed):
            loss = self._loss(held)
        if not torch.is_grad_enabled():
            reshard(held.model)  # FSDP waits for a backward pass, which will not come
        return None if loss is None else self.weight * loss

    def _loss(self, held: Held) -> Tensor | None:
        if not self.weight or self.waits(held.tasks):
            return None
        drawn = self.source.draw(self.size, held.steps)
        if drawn is None:
            tasks = f"{held.tasks} task{' has' if held.tasks == 1 else 's have'}"
            raise OrderError(
                f"The buffer of the hold {self.name!r} is empty, and {tasks} been consolidated: a guard's file carries "
                "no training data. Load what buffer.save() wrote with buffer.load(), or fill it with "
                "buffer.fill(batches, task)."
            )
        with contextlib.ExitStack() as stack:  # under the autocast of the last training step
            for kind, dtype in ({} if held.call is None else held.call.autocast).items():
                stack.enter_context(torch.autocast(kind, dtype))
            return self.loss(held, drawn)

    def gradient(self, held: Held) -> Mapping[str, Tensor]:
        """Return its gradient for all that the step moves and that the loss depends on."""
        wanted = {name: p for name, p in held.trained.items() if p.requires_grad}
        half = held.call is not None and torch.float16 in held.call.autocast.values()
        for scale in SCALES_OF_HALF if half else (1.0,):
            with left_alone(held, self.seed):  # backward too, where checkpointed layers run once more
                loss = self._loss(held) if wanted else None
                self.last = None if loss is None else loss.detach()
                if loss is None:
                    return {}
                found = self._differentiated(scale * self.weight * loss, wanted, held)
            if not half:
                return found
            if all(bool(gradient.isfinite().all()) for gradient in found.values()):
                return {name: gradient / scale for name, gradient in found.items()}
        assert loss is not None
        raise NotFiniteError(
            f"The gradient of the hold {self.name!r} holds a NaN or an infinity in float16, even if its loss is scaled "
            f"by {scale:g}. The step was not taken. Look at its batches, or train under autocast in bfloat16."
        )

    def _differentiated(self, value: Tensor, wanted: Mapping[str, nn.Parameter], held: Held) -> dict[str, Tensor]:
        if not value.requires_grad:
            raise ConfigurationError(
                f"The loss of the hold {self.name!r} does not depend on anything that is trained; expected one made of "
                "the model's outputs. Remove .detach() or torch.no_grad() from its loss or forward function."
            )
        if any(map(is_sharded, wanted.values())):
            return by_backward(value, held.model, wanted)
        if not self._is_differentiable:
            refuse_nested_backward(value, wanted)
            self._is_differentiable = True
        found = torch.autograd.grad(value, list(wanted.values()), allow_unused=True)
        return {name: g for name, g in zip(wanted, found, strict=True) if g is not None}

    def end_task(self, held: Held) -> None:
        """Take some of the task's samples into the buffer, if there is one."""
        if held.data.forward is not None:
            self._told = {**self._told, held.tasks: Way(held.data.forward, asks_for_task=False)}
        if self.buffer is not None and held.data.batches is not None:
            self.buffer.fill(held.data.batches, held.tasks, held.model)

    def outputs(self, held: Held, batch: Batch, task: int) -> Tensor:
        """Return what the model makes of a batch, through the head of its task."""
        way = self.way(task)
        return call_model(held.model, batch.inputs) if way is None else way(held.model, batch.inputs, task)

    def way(self, task: int) -> "Way | None":
        """Return how the model is called for a task; ``None`` for the usual way."""
        way = self.forward or self._told.get(task)
        if way is None and task in self._lost:
            raise OrderError(
                f"Task {task + 1} was consolidated with forward=, a function that no state carries, and the hold "
                f"{self.name!r} would now call the model for it as for any other. Give the hold "
                "forward=lambda model, inputs, task: ..., which says so for every task."
            )
        return way

    def read(self, held: Held, batch: Any) -> Batch:
        """Return a batch as the model's family has them, where the model is."""
        device = next((p.device for p in held.model.parameters()), torch.device("cpu"))
        return BatchReader(device, held.model).read(batch)

    def settings(self) -> dict[str, Any]:
        """Return what it draws from, as far as that is said in plain values."""
        return {} if self.buffer is None else {"buffer": self.buffer.kind, **self.buffer.settings()}

    def state(self) -> dict[str, Tensor]:
        """Return which tasks were consolidated with a function of their own, if any, which itself cannot be kept."""
        told = [] if self.forward is not None else sorted({*self._told, *self._lost})
        return {_WAYS: torch.tensor(told)} if told else {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        super().load_state(self.load_ways(state))

    def load_ways(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Take over which tasks had a function of their own, and return the rest of a state."""
        told = state.get(_WAYS)
        self._lost = frozenset(() if told is None else told.tolist())
        return {name: tensor for name, tensor in state.items() if name != _WAYS}

    def snapshot(self) -> Any:
        """Return what the end of a task may change: by new tensors, so that copies are not needed."""
        return self.state(), self._told, None if self.buffer is None else self.buffer.snapshot()

    def roll_back(self, snapshot: Any) -> None:
        state, self._told, samples = snapshot
        super().roll_back(state)
        if self.buffer is not None:
            self.buffer.roll_back(samples)

    def told(self) -> str:
        """Return how much of a step is its own, and what it draws from."""
        many = "" if self.strength == 1 and self.share is not None else f"strength {self.strength:g}, "
        part = "" if self.share is None else f"a share of {self.share:g} of each step, "
        return many + part + self._whence()

    def _whence(self) -> str:
        if self.buffer is not None:
            return f"{self.size} samples a step out of {self.buffer!r}"
        given: Any = getattr(self.source, "batches", None)
        count = f"{len(given)} " if hasattr(given, "__len__") else ""
        return f"a batch a step out of {count}in a {type(given).__name__}"

    def __repr__(self) -> str:
        shown = self.buffer if self.buffer is not None else type(getattr(self.source, "batches", None)).__name__
        how = f"strength={self.strength:g}" if self.share is None else f"share={self.share:g}"
        return f"{type(self).__name__}({shown}, {how})"


@dataclass(frozen=True)
class Way:
    """A function that calls the model, and whether it asks for the task."""

    function: Callable[..., Tensor]
    asks_for_task: bool

    @classmethod
    def of(cls, function: Callable[..., Tensor]) -> "Way":
        """Look at a function that was given, or say what was expected."""
        if not callable(function):
            raise ConfigurationError(
                f"forward={function!r}: expected a function, forward(model, inputs) or forward(model, inputs, task)."
            )
        try:
            takes = inspect.signature(function)
        except ValueError:  # of one that is written in C
            return cls(function, asks_for_task=False)
        try:
            takes.bind(None, None)
        except TypeError:
            return cls(function, asks_for_task=True)
        # A third argument with a value of its own is no task: lambda model, inputs, head=head: ...
        return cls(function, asks_for_task="task" in takes.parameters)

    def __call__(self, model: nn.Module, inputs: Any, task: int) -> Tensor:
        """Call the model."""
        return self.function(model, inputs, task) if self.asks_for_task else self.function(model, inputs)

    def head_of(self, task: int) -> Hashable:
        """Return what tells apart how tasks are called."""
        return id(self.function), task if self.asks_for_task else None


def refuse_shards(held: Held, what: str) -> None:
    """Refuse a sharded model where outputs are to be kept: processes keep other samples each, and would not meet."""
    if any(map(is_sharded, held.model.parameters())):
        raise ConfigurationError(
            f"{what} with a sharded model: at the end of a task each process runs it on the samples that it has kept, "
            "and FSDP gathers parameters only where all of them run alike. Use Distillation(teacher='weights') and "
            "Replay, or DDP."
        )


@contextlib.contextmanager
def left_alone(held: Held, seed: int) -> Iterator[None]:
    """Let the model be run, and leave statistics and random states as they are."""
    devices = {parameter.device for parameter in held.model.parameters() if parameter.device.type in {"cuda", "xpu"}}
    others = (torch.get_device_module(device).default_generators[device.index] for device in devices)
    generators = [torch.default_generator, *others]
    states = [generator.get_state() for generator in generators]
    try:
        for generator in generators:
            generator.manual_seed(derive_seed(seed, "dropout", held.tasks, held.steps))
        # Inside reentrant checkpoints there would be no gradient to be had.
        with statistics_untouched(held.model), reentrant_checkpoints_run():
            yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


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


def class_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy over all labels that count; classes lie in the last dimension, or in the second."""
    if targets.is_floating_point():
        raise BatchError(
            f"Targets of type {targets.dtype}, which are no labels of classes: give the loss that the model is trained "
            "with, such as Replay(..., loss=torch.nn.MSELoss())."
        )
    wide = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
    if outputs.shape[:-1] == targets.shape:
        wide = wide.reshape(-1, outputs.shape[-1])
        targets = targets.reshape(-1)
    elif (len(outputs), *outputs.shape[2:]) != tuple(targets.shape):
        raise BatchError(
            f"Labels of shape {tuple(targets.shape)} for outputs {tuple(outputs.shape)}; expected one for each sample "
            "or position. Give loss= if they are meant so, or forward= that returns the outputs that belong to them."
        )
    targets = targets.long()
    known = wide.shape[1]
    if targets.device.type == "cpu" and bool((targets >= known).any()):
        raise BatchError(
            f"A label {int(targets.max())} for outputs of {known} classes; expected labels from 0 to {known - 1}, or "
            f"{IGNORED} for what is left out. Look at the old batches, or at the head that they go through."
        )
    counted = (targets != IGNORED).sum().clamp(min=1)
    return F.cross_entropy(wide, targets, ignore_index=IGNORED, reduction="sum") / counted
