"""What a hold is: something that pulls a model back to what it has learned, once at every optimizer step.

A hold may add to the gradient before a step, move the weights after it, or both; it may do so from what the guard
remembers alone, or by running the model on data of its own. Measures see none of it: their g is the task's gradient and
their Δ the optimizer's step.
"""

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from anchorhold.engine.batches import Forward
from anchorhold.errors import ConfigurationError, NotFiniteError
from anchorhold.forms.base import Form, Matrix
from anchorhold.settings import number
from anchorhold.tensors.sharding import local
from anchorhold.tensors.storage import running_dtype, to_compute


class TaskData(NamedTuple):
    """The data that a task is consolidated with."""

    batches: Iterable[Any] | None = None
    """As they were given; ``None`` where there are none."""
    forward: Forward | None = None
    """How the model is called with them, where that was said."""


class TrainingCall(NamedTuple):
    """How the model was last called in training."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}
    autocast: Mapping[str, torch.dtype] = {}
    """The devices' kinds for which autocast was on, with its type."""


class Held(NamedTuple):
    """What a hold may look at."""

    model: nn.Module
    parameters: Mapping[str, nn.Parameter]
    """The protected parameters that the step moves, by name."""
    anchor: Mapping[str, Tensor]
    """θ*, the weights after the last consolidated task; nothing before the first."""
    importance: Mapping[str, Matrix]
    """Q of every block of parameters that is held, by the block's name."""
    strength: float
    """The guard's own strength c."""
    tasks: int
    """How many tasks have been consolidated."""
    steps: int = 0
    """How many steps the current task has taken."""
    trained: Mapping[str, nn.Parameter] = {}
    """All parameters that the step moves, protected or not; those outside the model by names of their own."""
    data: TaskData = TaskData()
    """What the task is consolidated with, at its end."""
    call: TrainingCall | None = None
    """How the model was last called in training, for holds that run it; ``None`` where it was not seen."""
    sums: Mapping[str, Tensor] = {}
    """What :meth:`~anchorhold.holds.Hold.task_sums` came to over all processes, at the end of a task."""


TOO_LARGE = "The strength, or an importance, is too large for it."
"""Why the guard's own pull is not finite where weights are."""


class Hold:
    """A pull of one's own beside the guard's.

    Args:
        strength: how strongly it pulls, in a unit of its own.
    """

    name: ClassVar[str] = ""
    """What it is registered as."""

    runs_model: ClassVar[bool] = False
    """Whether it runs the model on data of its own: gradients are then enabled while it is asked, and its gradient is
    averaged over the processes that train the model."""

    takes_batches: bool = False
    """Whether it looks at the data of a task when that is consolidated."""

    share: float | None = None
    """ρ, the part of a step that is the hold's: the task's own gradient then counts 1 − ρ wherever the hold has one."""

    projects: ClassVar[bool] = False
    """Whether it changes the task's gradient by :meth:`joined`, rather than adds the gradient of a loss to it."""

    by_weight: ClassVar[bool] = False
    """Whether it goes by the importance of each protected parameter, which adapters held in merged space have not."""

    why_not_finite: ClassVar[str] = "Look at what it is computed from."
    """What to tell the user whose weights are finite, and the pull on them is not."""

    def __init__(self, strength: float = 1.0) -> None:
        expected = "a number from 0 to 1e38"
        self.strength = float(number("strength", strength, expected, lambda given: 0 <= given <= 1e38))

    def check(self, form: Form) -> None:
        """Refuse a guard whose importance is kept in a form that it cannot do with."""

    def waits(self, tasks: int) -> bool:
        """Whether there is nothing to hold after so many tasks, until one more is consolidated."""
        return False

    def told(self) -> str:
        """Return in a few words what it keeps and how strongly, for whoever prints the guard."""
        return ""

    def begin_task(self, held: Held) -> None:
        """Look at the weights before a task's first step."""

    def before_step(self, held: Held) -> None:
        """Look at the weights before a step: once, however often the optimizer evaluates a closure in it."""

    def gradient(self, held: Held) -> Mapping[str, Tensor]:
        """Return what to add to the task's gradient before a step, for the parameters that are pulled."""
        return {}

    def joined(self, pull: Mapping[str, Tensor], task: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return what is added to the task's gradient by a hold that projects it, given its own gradient and that one.

        Both are those of all processes, without a loss scale, by parameter; the task has none for what it did not use.
        """
        return pull

    def value(self, held: Held) -> Tensor | None:
        """Return the loss whose gradient that is, where there is one, differentiable in the parameters."""
        return None

    def after_step(self, held: Held) -> None:
        """Move the weights, in place, after a step."""

    def task_sums(self, held: Held) -> dict[str, Tensor]:
        """Return sums over this process's data of a task, by names of its own.

        They are added up over all processes, and are ``held.sums`` in :meth:`end_task`. The state of a hold that has
        any is then the first process's on all of them, to the last bit.
        """
        return {}

    def end_task(self, held: Held) -> None:
        """Take in a task that has just been consolidated: the anchor and the importance are the new ones."""

    def settings(self) -> dict[str, Any]:
        """Return the hold's settings as plain values, to be stored with its state: all but its strength."""
        return {}

    def state(self) -> dict[str, Tensor]:
        """Return all that it has to remember, by names of its own."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state, or refuse what is none of this hold's."""
        if state:
            raise ConfigurationError(f"{type(self).__name__} keeps no state, and was given {', '.join(sorted(state))}.")

    def notices(self) -> list[str]:
        """Return what users should know of how the tasks so far are held; each is told once."""
        return []

    def forget(self, name: str) -> None:
        """Let go of a parameter."""

    def snapshot(self) -> Any:
        """Return whatever :meth:`roll_back` needs to be as now; by default, copies of its state."""
        return {name: tensor.clone() for name, tensor in self.state().items()}

    def roll_back(self, snapshot: Any) -> None:
        """Be as when a snapshot was taken: the end of a task was refused."""
        self.load_state(snapshot)


def checked_pull(
    hold: Hold, pull: object, parameters: Mapping[str, nn.Parameter], known: Collection[str]
) -> dict[str, Tensor]:
    """Return what a hold wants to add to gradients, or refuse what is none of the parameters' names or shapes."""
    if not isinstance(pull, Mapping):
        raise ConfigurationError(
            f"The hold {hold.name!r} returned a {type(pull).__name__} as its gradient; expected tensors by parameter, "
            "none for a hold that does not pull."
        )
    if unknown := [name for name in pull if name not in known]:
        raise ConfigurationError(
            f"The hold {hold.name!r} returned a gradient for {unknown[0]!r}, which is no protected parameter, and none "
            "that the step moves; expected names of held.parameters or held.trained."
        )
    found = {name: tensor for name, tensor in pull.items() if name in parameters}
    for name, tensor in found.items():
        if not isinstance(tensor, Tensor) or tensor.shape != parameters[name].shape:
            given = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise ConfigurationError(
                f"The hold {hold.name!r} returned a gradient of shape {given} for {name!r}, which has "
                f"{tuple(parameters[name].shape)}; expected one number a weight."
            )
    _refuse_unless_finite(hold, found)
    return found


def is_looked_at(tensor: Tensor) -> bool:
    """Whether pulls of this one are looked at before any is added: on a CPU, where that costs little."""
    return tensor.device.type == "cpu"


def _refuse_unless_finite(hold: Hold, pull: Mapping[str, Tensor]) -> None:
    """Refuse a pull that is no number, where one is looked at."""
    sums = {name: local(tensor.detach()).sum() for name, tensor in pull.items() if is_looked_at(tensor)}
    if not sums or bool(torch.stack(list(sums.values())).isfinite().all()):
        return
    whose = f"hold {hold.name!r}" if hold.name else "penalty"  # which is the guard's own, and goes by no name
    for name, total in sums.items():
        if not bool(total.isfinite()):
            raise NotFiniteError(
                f"The gradient of the {whose} for {name!r} holds a NaN or an infinity. The step was not taken and "
                f"nothing was recorded. {hold.why_not_finite}"
            )


def refuse_spoilt_weights(hold: Hold, parameters: Mapping[str, nn.Parameter]) -> None:
    """Say so if a hold has moved weights to where there are no numbers; on a CPU, where looking costs little."""
    if type(hold).after_step is Hold.after_step:
        return
    for name, parameter in parameters.items():
        if parameter.device.type == "cpu" and not bool(local(parameter.detach()).sum().isfinite()):
            raise NotFiniteError(
                f"The hold {hold.name!r} left a NaN or an infinity in the weights {name!r} after the step. Restore an "
                "earlier checkpoint, and look at what its after_step() computes."
            )


@contextlib.contextmanager
def states_kept(holds: Iterable[Hold]) -> Iterator[None]:
    """Give all of some holds the states back that they had, if anything is raised here."""
    before = [(hold, hold.snapshot()) for hold in holds]
    try:
        yield
    except BaseException:
        for hold, snapshot in before:
            hold.roll_back(snapshot)
        raise


def displacement(
    matrix: Matrix, parameters: Mapping[str, Tensor], anchor: Mapping[str, Tensor], *, rounded: bool = False
) -> dict[str, Tensor]:
    """Return D = θ − θ* of a block; 0 for parameters that are not given.

    It is in single precision at least, or rounded from that to what Q's products are made in.
    """
    like = next(parameters[name] for name in matrix.block.parameters if name in parameters)
    exact = running_dtype(like)
    dtype = matrix.compute_dtype(exact) if rounded else exact
    found = {}
    for name in matrix.block.parameters:
        if name not in parameters:
            found[name] = torch.zeros_like(anchor[name], dtype=dtype, device=like.device)
            continue
        theta, theta_star = parameters[name], to_compute(anchor[name], like)
        if exact == dtype:
            found[name] = theta.to(dtype) - theta_star.to(dtype)
        else:  # in one pass: torch subtracts 16-bit numbers in single precision, and rounds what it writes
            found[name] = torch.sub(theta, theta_star, out=torch.empty_like(theta, dtype=dtype))
    return found
