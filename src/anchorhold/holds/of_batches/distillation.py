r"""Distillation: outputs are held to what the model said before, whatever its weights.

.. math:: T^2\,KL(p_\text{old}^{1/T} \,\|\, p_\text{new}^{1/T})

on new inputs as in Learning without Forgetting (Li & Hoiem 2016, arXiv 1606.09282), on old ones, or on what the model
has written itself. :math:`T^2` keeps the gradients' size whatever the temperature T (Hinton et al. 2015, arXiv
1503.02531).
"""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from anchorhold.engine.batches import Batch
from anchorhold.engine.scores.outputs import counted_positions
from anchorhold.errors import BatchError, ConfigurationError, OrderError, StateError
from anchorhold.holds.base import Held
from anchorhold.holds.of_batches.batch_hold import BatchHold, TaskForward, refuse_shards
from anchorhold.holds.of_batches.batch_sources import Drawn, Source
from anchorhold.holds.of_batches.buffers import Buffer
from anchorhold.holds.of_batches.old_model import Match, OldModel, evaluated, output_distance
from anchorhold.settings import choice, number

NEW: Literal["new"] = "new"
"""The inputs of the step itself, in the place of a source."""

Teacher = Literal["weights", "outputs"]


class Distillation(BatchHold):
    """Holds the outputs on some inputs to those of the model as it was when the last task was consolidated.

    >>> guard = Guard(model, "fine-tune", holds=[Distillation(written_by_the_model, share=1 / 8)])
    >>> guard = Guard(model, "EWC", strength=10.0, holds=[Distillation("new")])  # Learning without Forgetting

    The old model is kept as the values of what was trainable, an adapter's alone where only an adapter is trained, and
    is run with them on each batch, in eval mode. ``teacher="outputs"`` keeps what it said of a buffer's samples
    instead.

    Args:
        source: inputs, as batches with or without labels; a buffer, or the size of one; or ``"new"`` for the inputs of
            each step itself.
        strength: what the divergence is multiplied by.
        share: ρ of the step that is the hold's; ``None`` adds the divergence to the task's loss.
        match: ``"probabilities"``, the divergence of predictions of classes or tokens; ``"outputs"``, the mean squared
            difference of the outputs, for regressions too.
        temperature: T, by which logits are divided.
        teacher: ``"weights"`` or ``"outputs"``.
        size, forward, seed, name: see :class:`~anchorhold.holds.of_batches.batch_hold.BatchHold`.
    """

    def __init__(
        self,
        source: Buffer | Iterable[Any] | int | Literal["new"] = NEW,
        strength: float = 1.0,
        share: float | None = None,
        *,
        match: Match = "probabilities",
        temperature: float = 1.0,
        teacher: Teacher = "weights",
        size: int = 32,
        forward: TaskForward | None = None,
        seed: int = 0,
        name: str | None = None,
    ) -> None:
        super().__init__(source, strength, share, size=size, forward=forward, seed=seed, name=name)
        choice("match", match, get_args(Match))
        choice("teacher", teacher, get_args(Teacher))
        if teacher == "outputs" and self.buffer is None:
            raise ConfigurationError(
                "teacher='outputs' keeps outputs with the samples of a buffer, and this source is none. Give a buffer, "
                "or leave teacher='weights'."
            )
        self.match = match
        self.temperature = float(number("temperature", temperature, "a number above 0", lambda given: given > 0))
        self.teacher = teacher
        self.old = OldModel()

    def _as_source(self, given: Any) -> Source:
        if isinstance(given, str):
            if given != NEW:
                raise ConfigurationError(f"source={given!r}: expected batches, a buffer, its size, or 'new'.")
            return _TheStepsOwn()
        return super()._as_source(given)

    @property
    def before(self) -> dict[str, Tensor]:
        """The weights and buffers of the old model that training changes, by name."""
        return self.old.weights

    def waits(self, tasks: int) -> bool:
        """Whether there is no old model yet."""
        return not tasks

    def begin_task(self, held: Held) -> None:
        """Refuse what could not be kept at the task's end."""
        super().begin_task(held)
        if self.teacher == "outputs":
            refuse_shards(held, "Distillation(teacher='outputs')")

    def end_task(self, held: Held) -> None:
        """Keep the model as it is now."""
        self.begin_task(held)
        super().end_task(held)
        if self.teacher == "weights":
            self.old.keep(held.model)
        elif self.buffer is not None:
            with evaluated(held.model), torch.no_grad():
                self.buffer.keep_outputs(lambda drawn: self.outputs(held, self.read(held, drawn.batch), drawn.task))

    def loss(self, held: Held, drawn: Drawn) -> Tensor | None:
        """Return how far the outputs have moved on this step's inputs."""
        if self.teacher == "weights":
            if not self.before:
                raise OrderError(
                    f"The hold {self.name!r} has no old model to hold to, and {held.tasks} tasks have been "
                    "consolidated. Make the Guard with this hold before consolidate(), or load a state that was saved "
                    "with it."
                )
            self.old.keep_too(held.model, held.trained)
        drawn = self._with_inputs(held, drawn)
        batch = self.read(held, drawn.batch)
        tasks = [drawn.task]
        if isinstance(self.source, _TheStepsOwn):
            # New inputs go through all old heads: one task for each way in which old tasks call the model.
            heads: dict[object, int] = {}
            for task in range(held.tasks):
                way = self.way(task)
                heads.setdefault(None if way is None else way.head_of(task), task)
            tasks = list(heads.values())
        losses = [self._moved(held, batch, task, drawn.outputs) for task in tasks]
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def gradient(self, held: Held) -> Mapping[str, Tensor]:
        """Return the divergence's gradient, or refuse one through weights that the old model does not have."""
        found = super().gradient(held)
        outside = found.keys() - self.before.keys() if self.teacher == "weights" else set()
        if outside:
            raise ConfigurationError(
                f"The outputs that Distillation holds depend on {min(outside)}, a parameter that the optimizer trains "
                "and the model does not have, so that there is no old value of it. Give the Guard a module that "
                "has all of them, or Distillation(buffer, teacher='outputs')."
            )
        return found

    def _moved(self, held: Held, batch: Batch, task: int, outputs: Tensor | None) -> Tensor:
        old = outputs
        if old is None:
            with self.old.in_place(held.model), torch.no_grad():
                old = self.outputs(held, batch, task)
        new = self.outputs(held, batch, task)
        if old.shape != new.shape:
            raise BatchError(
                f"Outputs of shape {tuple(new.shape)} where the old model had {tuple(old.shape)}; expected the same. "
                "Name the outputs that both have: forward=lambda model, inputs: ..."
            )
        return output_distance(old, new, counted_positions(batch, new), self.match, self.temperature)

    def _with_inputs(self, held: Held, drawn: Drawn) -> Drawn:
        """Return the inputs of the step itself, where it is those that are wanted."""
        if not isinstance(self.source, _TheStepsOwn):
            return drawn
        if held.call is None:
            raise OrderError(
                "Distillation('new') holds outputs on the inputs of each step, and the model was not called between "
                "attach(optimizer) and this step. Call the model that the Guard was given, not a copy or a part."
            )
        args, kwargs = held.call.args, held.call.kwargs
        if any(map(_has_tensors, kwargs.values())):
            # By name: the inputs among positional arguments too, by the names that the model has for them.
            names = inspect.signature(held.model.forward).parameters if args else ()
            by_name = {name: given for name, given in zip(names, args, strict=False) if _has_tensors(given)}
            return drawn._replace(batch={**kwargs, **by_name})
        inputs = tuple(filter(_has_tensors, args))
        return drawn._replace(batch=(inputs[0] if len(inputs) == 1 else inputs,))

    def forget(self, name: str) -> None:
        """Let go of a parameter: from its next step on it is as old as it is then."""
        self.old.weights = {kept: tensor for kept, tensor in self.old.weights.items() if kept != name}

    def state(self) -> dict[str, Tensor]:
        """Return the old model's own weights."""
        return {**self.before, **super().state()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        weights = self.load_ways(state)
        if weights and self.teacher == "outputs":
            raise StateError("The state has the weights of an old model, and teacher='outputs' keeps none.")
        self.old.weights = weights

    def _whence(self) -> str:
        return "the inputs of each step" if isinstance(self.source, _TheStepsOwn) else super()._whence()

    def settings(self) -> dict[str, Any]:
        """Return what the old model is kept as."""
        return {**super().settings(), "match": self.match, "teacher": self.teacher}


class _TheStepsOwn:
    """A source that has nothing: the inputs are those of the step."""

    def draw(self, size: int, step: int) -> Drawn:
        return Drawn(None)


def _has_tensors(argument: object) -> bool:
    """Whether an argument is an input, and not the number of a head."""
    return any(isinstance(leaf, Tensor) for leaf in tree_flatten(argument)[0])
