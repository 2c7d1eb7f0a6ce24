"""What trainers' callbacks share: the guard that is given or made, its file in a checkpoint, its line in a log."""

import contextlib
import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch

from anchorhold.engine.batches import check_batches
from anchorhold.errors import AnchorholdWarning, BatchError, ConfigurationError, OrderError, shortened
from anchorhold.guard import Guard
from anchorhold.guard.distributed.ranks import is_one_of_several
from anchorhold.measures import SampleMeasure
from anchorhold.protection import ProtectedGuard
from anchorhold.settings import checked_share, number
from anchorhold.task_free import TaskFree
from anchorhold.tensors.sharding import whole_maxima, whole_sums


def checked_guard(given: object) -> Guard:
    """Return the guard, or say what was given in its place."""
    if not isinstance(given, Guard):
        name = f"the class {given.__name__}" if isinstance(given, type) else f"type {type(given).__name__}"
        raise ConfigurationError(
            f"A guard of {name}; expected a Guard, guard = anchorhold.Guard(model, anchorhold.SOS(), "
            "strength=...), or for a callback a function that makes one from the model: lambda model: "
            "anchorhold.Guard(model, ...)."
        )
    return given


def of_another_trainer(trainer: str, module: str) -> AttributeError:
    """Return what a trainer is told that was given the callback of another one, by the same name."""
    return AttributeError(
        f"This AnchorholdCallback is another trainer's. Give {trainer} its own: from anchorhold.integrations.{module} "
        "import AnchorholdCallback."
    )


class GuardInCallback:
    """The guard that a callback was given, or the one that a function given makes from the model that is trained.

    Args:
        given: the guard, or the function.
        end: what the callback's ``consolidate_at_end`` is.
    """

    def __init__(self, given: Guard | Callable[[Any], Guard], end: object = False) -> None:
        self._end = end
        if not _makes_guards(given):
            self._checked(given)
        self._guard = given if isinstance(given, Guard) else None
        self._make = None if isinstance(given, Guard) else given
        self._made_from: torch.nn.Module | None = None

    @property
    def is_there(self) -> bool:
        """Whether there is a guard already."""
        return self._guard is not None

    @property
    def guard(self) -> Guard:
        """The guard; one that a function makes is there from the start of training on."""
        if self._guard is None:
            raise OrderError("There is no guard yet: the function given makes it when training starts.")
        return self._guard

    def made_from(self, model: torch.nn.Module) -> Guard:
        """Return the guard for a model that is about to be trained: the one there is, or one that is made now."""
        if self._guard is None:
            assert self._make is not None
            self._guard = self._checked(self._make(model))
            self._made_from = model
        return self._guard

    def _checked(self, given: object) -> Guard:
        """Return a guard, or refuse one of protect() that would be consolidated on the new before it can finish."""
        guard = checked_guard(given)
        if isinstance(guard, ProtectedGuard) and self._end is not False:
            raise ConfigurationError(
                "AnchorholdCallback was given a guard of protect(), and would consolidate it on the new data when "
                "training ends, after which guard.finish() has nothing to average with. Give "
                "AnchorholdCallback(guard, consolidate_at_end=False) and call guard.finish() after training; with "
                "Hugging Face's Trainer, ProtectCallback(tokenizer) does all of it."
            )
        return guard

    def leave_other_model(self, model: torch.nn.Module) -> None:
        """Let go of a guard that was made from another model than this one, so that a new one is made."""
        if self._made_from not in (None, model):
            self.guard.detach()
            self._guard = self._made_from = None


def _makes_guards(given: object) -> bool:
    """Whether this may be a function that makes a guard from a model: not a model, a measure's class, or the like."""
    if not callable(given) or isinstance(given, torch.nn.Module):
        return False
    if isinstance(given, type) and not issubclass(given, Guard):
        return False
    try:
        inspect.signature(given).bind(None)
    except TypeError:  # it takes no single argument
        return False
    except ValueError:  # it does not say what it takes
        return True
    return True


def sample_limits(guard: Guard) -> dict[str, int | None]:
    """Return how many samples each that looks at data takes, ``None`` for all: measures, gradient term and holds."""
    limits = {name: cast("SampleMeasure", m).sample_limit for name, m in guard.measures.items() if m.needs.data}
    if guard.options.gradient_term:
        limits["gradient_term=True"] = limits.get(next(iter(guard.measures)))  # those of the measure that holds
    return limits | dict.fromkeys(_filled_by_data(guard))


def _filled_by_data(guard: Guard) -> list[str]:
    return [f"the hold {hold.name!r}" for hold in guard.options.holds if hold.takes_batches]


def refuse_endless_data(guard: Guard, instead: str) -> None:
    """Refuse training data without a length where a measure would go through all of it; ``instead`` says what helps."""
    for name, limit in sample_limits(guard).items():
        if limit is None and name in _filled_by_data(guard):
            raise BatchError(
                f"The training data has no length and may never end, and {name} chooses from all of it what it keeps. "
                f"Fill its buffer yourself, buffer.fill(batches, task), {instead}."
            )
        if limit is None:
            raise BatchError(
                f"{name} measures with all of the training data, which has no length and may never end. Say how many "
                f"samples to take, as in Fisher(samples=500), {instead}."
            )


def checked_end(given: bool | Iterable[Any]) -> bool | Iterable[Any]:
    """Return what the end of training is to be measured with, or say at once what was given in its place."""
    return given if isinstance(given, bool) else check_batches(given)


@contextlib.contextmanager
def explaining(*notes: str) -> Iterator[None]:
    """Add to an error what a user should know who meets it in a callback."""
    try:
        yield
    except Exception as error:
        for note in notes:
            error.add_note(note)
        raise


TRAINED = (
    "Training itself was over, and the model has its weights; nothing of the guard has changed. To keep them, catch "
    "this error, save the model, and call guard.consolidate(batches) with batches that can be measured with."
)


STATE_NAME = "anchorhold.safetensors"
"""The file that holds it, beside those of the model and the optimizer."""


def state_file(folder: Path, name: str = STATE_NAME) -> Path:
    """Return the path of a guard's state in a checkpoint, which version 0.1.0 called holdfast.safetensors."""
    earlier = folder / name.replace("anchorhold", "holdfast")
    return earlier if earlier.is_file() and not (folder / name).exists() else folder / name


def join_processes(guard: Guard) -> None:
    """Let a guard measure with all processes of the job, where it was made from the model before it was wrapped.

    Trainers wrap models in DistributedDataParallel by themselves, so the guard cannot tell from the model.
    """
    if guard.options.group is None and is_one_of_several():
        guard.options.group = torch.distributed.group.WORLD


def statistics(guard: Guard) -> dict[str, float]:
    """Return the penalty, the mean and the largest total importance of a weight (0 at first), and the tasks so far.

    For a sharded model they are those of all its parts, and every process has to ask for them at the same time. Holds
    that run the model on batches of their own have a line each, of this process's last step, and kept sets what was
    lost at the last look, with the strength where that follows it: nothing is run for a log.
    """
    with torch.no_grad():
        penalty = float(guard.penalty(batches=False))
    lasts = {hold.name: getattr(hold, "last", None) for hold in guard.options.holds}
    held = {f"anchorhold/{name}": float(last) for name, last in lasts.items() if last is not None}
    importance = list(guard.importance.values())
    weights = sum(omega.numel() for omega in importance)
    total = sum(map(float, whole_sums([omega.sum(dtype=torch.float32) for omega in importance])))
    return {
        "anchorhold/penalty": penalty,
        "anchorhold/importance_mean": total / weights if weights else 0.0,
        "anchorhold/importance_max": max(map(float, whole_maxima(importance)), default=0.0),
        "anchorhold/tasks": float(guard.tasks),
        **held,
        **seen(guard),
    }


def seen(guard: Guard) -> dict[str, float]:
    """Return KL(p_old‖p_new) of the worst kept set and of each as they were last seen, and the strength.

    Logs may be written more often than there are looks: the step of the task after which the last one was is beside it.
    What the importance predicts to second order is of the same look, where that was one of training: after weights went
    back, it would be of others.
    """
    latest, step = guard.control.last_seen, guard.control.last_look
    if not latest or step is None:
        return {}
    strength = guard.strength
    largest = max(strength.values()) if isinstance(strength, dict) else strength
    found = {"anchorhold/kl": max(latest.values()), "anchorhold/kl_step": float(step), "anchorhold/strength": largest}
    found |= {f"anchorhold/kl/{name}": kl for name, kl in latest.items()}
    point = guard.control.trace[-1] if guard.control.trace else None
    if point is not None and point.predicted is not None and (point.step, point.kl) == (step, found["anchorhold/kl"]):
        found["anchorhold/second_order_prediction"] = point.predicted
    return found


def checked_share_at_end(given: float | None) -> float | None:
    """Return the share of what training has moved that weights keep when it ends, or say what was expected."""
    expected = "a number from 0 (all that was learned is undone) to 1 (nothing is), or None for all of it"
    return None if given is None else checked_share("share", given, expected)


class StopAt:
    """Stops training once more is lost of the worst kept set than a limit, at as many looks in a row as are set.

    A single look sees a part of the set alone, and training passes through peaks.
    """

    def __init__(self, limit: float | None) -> None:
        expected = "a number of nats above 0, or None to go on whatever is lost"
        self.limit = None if limit is None else float(number("stop_at", limit, expected, lambda nats: nats > 0))
        self.stopped_at: float | None = None
        """What was lost when training was stopped, if it was."""
        self._seen, self._beyond = -1, 0

    def begin(self, guard: Guard) -> None:
        """Look out from now on; refuse a limit on what nobody has kept."""
        self._seen, self._beyond, self.stopped_at = -1, 0, None
        if self.limit is not None and not guard.kept:
            raise OrderError(
                f"stop_at={self.limit:g} and no inputs to measure it on. Call guard.keep(inputs) before training."
            )
        if self.limit is not None and guard.tolerance is not None and self.limit <= guard.tolerance:
            warnings.warn(
                f"stop_at={self.limit:g} with tolerance={guard.tolerance:g}: training may come to the tolerance, and a "
                "little past it, before it goes back at the end, so that this stops it long before. A limit of three "
                "times the tolerance is for what goes wrong.",
                AnchorholdWarning,
                stacklevel=2,
            )

    def is_beyond(self, guard: Guard) -> bool:
        """Whether training is to stop now."""
        trace = guard.control.trace
        if self.limit is None or not trace or trace[-1].step == self._seen:
            return False
        self._seen = trace[-1].step
        self._beyond = self._beyond + 1 if trace[-1].kl > self.limit else 0
        if self._beyond < IN_A_ROW:
            return False
        if self.stopped_at is None:
            warnings.warn(
                f"Training stops at step {trace[-1].step} of the task: {trace[-1].kl:.3g} nats are lost of what was "
                f"kept, at {IN_A_ROW} looks in a row more than stop_at={self.limit:g}. guard.pull_back({self.limit:g}) "
                "goes back to where no more is.",
                AnchorholdWarning,
                stacklevel=2,
            )
        self.stopped_at = trace[-1].kl
        return True


IN_A_ROW = 3
"""Looks beyond a limit after which training stops."""


class BestWithin:
    """Scores evaluations for a trainer that looks for its best checkpoint: by their loss, if little enough is lost.

    By the loss alone the best checkpoint is often the one that has forgotten most. Beside every loss that an evaluation
    has, ``eval_loss``, it puts ``eval_within_loss``: the same where at most so much is lost of the worst kept set, and
    beyond that a thousand and the nats, so that the least lost is best where none is within. Trainers keep scores in
    single precision, in which a thousand leaves room for a ten-thousandth of a nat.
    """

    BEYOND = 1e3
    NAME = "within_loss"

    def __init__(self, limit: float | None) -> None:
        expected = "a number of nats above 0, or None to leave evaluations as they are"
        self.limit = None if limit is None else float(number("best_within", limit, expected, lambda nats: nats > 0))
        self._least: float | None = None
        """What was lost at the evaluation that had lost least, where there was any."""

    def begin(self, guard: Guard) -> None:
        """Refuse a limit on what nobody has kept."""
        self._least = None
        if self.limit is not None and not guard.kept:
            raise OrderError(
                f"best_within={self.limit:g} and no inputs to measure it on. Call guard.keep(inputs) before training."
            )

    def check_search(self, metrics: Iterable[str], example: str) -> None:
        """Say so where what the trainer compares checkpoints by is none of the scores."""
        compared = list(metrics)
        if self.limit is not None and compared and not any(name.endswith(self.NAME) for name in compared):
            warnings.warn(
                f"best_within={self.limit:g}, but checkpoints are compared by {', '.join(map(repr, compared))}, which "
                f"knows nothing of what is lost. Compare them by a score that does: {example}.",
                AnchorholdWarning,
                stacklevel=2,
            )

    def scores(self, metrics: Mapping[str, Any], guard: Guard) -> dict[str, float]:
        """Return what goes beside the losses of an evaluation."""
        if self.limit is None:
            return {}
        losses = {name: loss for name, value in metrics.items() if (loss := _loss_of(name, value)) is not None}
        if not losses:
            return {}
        kl = guard.retention().kl
        self._least = kl if self._least is None else min(kl, self._least)
        return {f"{name.removesuffix('loss')}{self.NAME}": self._score(loss, kl) for name, loss in losses.items()}

    def _score(self, loss: float, kl: float) -> float:
        if not math.isfinite(loss):
            return math.inf
        assert self.limit is not None
        return loss if kl <= self.limit else max(self.BEYOND, 10 * abs(loss)) + kl

    def tell_of_the_end(self) -> None:
        """Say so if no evaluation was within the limit."""
        if self.limit is not None and self._least is not None and self._least > self.limit:
            warnings.warn(
                f"No evaluation was within best_within={self.limit:g}: {self._least:.3g} nats were lost at the one "
                "that had lost least, which counts as the best. Hold more strongly, evaluate earlier, or allow more.",
                AnchorholdWarning,
                stacklevel=2,
            )


def _loss_of(name: str, value: object) -> float | None:
    """Return a loss of an evaluation as a number; ``None`` for what is no loss, or no number."""
    if not name.endswith("loss") or name.endswith(BestWithin.NAME) or name.startswith("anchorhold/"):
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        return None


def end_within_tolerance(guard: Guard, share: float | None) -> None:
    """Go back by a share, and as far as a tolerance asks for, where training ends and no task does.

    Consolidating does so itself.
    """
    if share is not None:
        guard.average(share)
    if guard.tolerance is not None and guard.anchor and guard.kept and guard.gradients.path.steps:
        guard.pull_back()


def checked_task_free(given: object, guard: object) -> TaskFree | None:
    """Return it, or refuse one of another guard, which would consolidate something else than is held."""
    if given is None or (isinstance(given, TaskFree) and given.guard is guard):
        return given
    what = " of another guard" if isinstance(given, TaskFree) else f"={shortened(given)}"
    raise ConfigurationError(
        f"task_free{what}; expected task_free=anchorhold.TaskFree(guard) with the very guard that the callback is "
        "given."
    )


def made_task_free(make: Callable[[Guard], TaskFree], guard: Guard) -> TaskFree:
    """Return what a function makes from the guard, or refuse one that makes nothing."""
    found = checked_task_free(make(guard), guard)
    if found is None:
        raise ConfigurationError(
            "task_free is a function that returned None for the guard, so that nothing would consolidate; expected one "
            "that makes it, such as task_free=lambda guard: anchorhold.TaskFree(guard)."
        )
    return found


_TASK_FREE = "holdfast_task_free"
"""Where a guard's state in a checkpoint says how far consolidation by itself has come."""


def task_free_state(task_free: TaskFree | None) -> dict[str, Any]:
    """Return what goes beside the guard's state."""
    return {} if task_free is None else {_TASK_FREE: task_free.state_dict()}


def resume_task_free(task_free: TaskFree, found: Mapping[str, Any]) -> None:
    """Let it go on from where it was when a guard's state was written."""
    if _TASK_FREE in found:
        task_free.load_state_dict(found[_TASK_FREE])
        return
    warnings.warn(
        "The checkpoint says nothing of task_free: it was made without it, or by a version that did not write it. It "
        f"goes on from its own {task_free.steps} steps; task_free.load_state_dict gives it others.",
        AnchorholdWarning,
        stacklevel=2,
    )
