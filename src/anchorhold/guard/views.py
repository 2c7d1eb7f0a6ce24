"""The parts of a Guard by topic: what holds, what measures see of steps, how a tolerance is met, what was chosen.

:class:`~anchorhold.Guard` makes one of each when it is asked for; they keep nothing of their own.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.amp import GradScaler

from anchorhold.engine.batches import Forward
from anchorhold.errors import ConfigurationError
from anchorhold.forms import Form, Matrix
from anchorhold.guard.core import Core
from anchorhold.guard.distributed.gathering import Gather
from anchorhold.guard.distributed.rank_gradients import CommHook
from anchorhold.guard.distributed.ranks import checked_group
from anchorhold.guard.ledger import PathRecord, diagonal_of
from anchorhold.guard.microbatches.measure import measure_microbatches
from anchorhold.guard.refreshing import refresh
from anchorhold.guard.rollback.rollback import Rollback
from anchorhold.guard.stepping.attachment import Attachment
from anchorhold.guard.stepping.path_measures import path_of, take_path
from anchorhold.guard.summary import strength_record
from anchorhold.holds import Hold
from anchorhold.retention import PulledBack, TracePoint
from anchorhold.spaces import SpaceName
from anchorhold.tensors.storage import StateDtype

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class HeldImportance:
    """Read what holds the model, beyond its diagonal: ``guard.held``."""

    __slots__ = ("_core",)  # so that a name that is set by mistake is refused

    def __init__(self, core: Core) -> None:
        self._core = core

    @property
    def importance(self) -> dict[str, Tensor]:
        """Ω as it pulls: ``guard.importance`` with what damping adds to it, and weaker where patterns say so."""
        return diagonal_of(self._core.state.driving.held)

    @property
    def matrices(self) -> dict[str, Matrix]:
        """Q of every block that holds the model, by its name: as measured, whatever strengths and a tolerance add.

        The damping of a form of layers is part of it.
        """
        return dict(self._core.state.driving.measured)

    @property
    def has_linear_term(self) -> bool:
        """Whether the hold has a linear term at its anchor, once there is one: see :attr:`linear_term`."""
        return self._core.has_linear_term

    @property
    def linear_term(self) -> dict[str, Tensor]:
        r"""The r of :math:`c\langle D, Q(D)\rangle - 2c\langle D, r\rangle` at θ*, by parameter name.

        It is there with ``anchor="mean"`` in forms other than the diagonal, and with ``gradient_term=True``.
        """
        return dict(self._core.state.linear_term)

    def of(self, measure: str) -> dict[str, Tensor]:
        """Return a measure's total importance, by its name; also of one that only watches."""
        ledgers = self._core.state.ledgers
        if measure not in ledgers:
            raise ConfigurationError(f"No measure is called {measure!r} here; there are {', '.join(ledgers)}.")
        return ledgers[measure].diagonal

    def record(self) -> dict[str, float | None]:
        """Return how strongly tasks are held, for results: c, κ, T and tr Q, by name.

        >>> guard.held.record()
        {'strength': 0.5, 'exchange_rate': 1.0, 'tokens': 1.0, 'trace': 3.2}

        ``exchange_rate`` is what the strength amounts to, 2Tc, also where a strength or a tolerance was given: results
        can be compared by it. It is ``None`` for a measure that is not in nats, for strengths by patterns, and where T
        is not known. Before the first consolidation all but the strength are ``None``. ``strength`` is the largest of
        several, and 0 where it follows a tolerance that no step has met yet. Of a sharded model, each process calls
        this.
        """
        return strength_record(self._core)


class Gradients:
    """Choose what measures along the path see of each step: ``guard.gradients``."""

    __slots__ = ("_attachment", "_core")  # so that a name that is set by mistake is refused

    def __init__(self, core: Core, attachment: Attachment) -> None:
        self._core = core
        self._attachment = attachment

    def observe(self, loss: Tensor, *, scaler: GradScaler | None = None, accumulate: bool = False) -> None:
        """Measure the coming step with the gradient of this loss, instead of the one in ``.grad``.

        The paper's own choice is the loss of the same batch with dropout off. Call it before ``optimizer.step()``.

        Args:
            loss: the task's loss, never scaled.
            scaler: the ``GradScaler`` of a float16 loop: the gradient is taken at its scale, and unscaled.
            accumulate: add to what was observed for this step, as ``backward()`` adds to ``.grad``, rather than
                replace it: for all but the first of a step's micro-batches.
        """
        self._attachment.observe(loss, scaler, accumulate=accumulate)

    def independent(
        self,
        loss: Tensor,
        samples: int | None = None,
        *,
        scaler: GradScaler | None = None,
        accumulate: bool = False,
    ) -> None:
        """Take the gradient of this loss as g′, an estimate that is independent of the coming step.

        It must come from a batch that takes no part in the step. Call it before ``optimizer.step()``.

        Args:
            loss: the task's loss on a second batch, never scaled.
            samples: how many samples each of g and g′ is the mean of, for ``SOS(alpha="unbiased")``; with
                ``accumulate``, all micro-batches together.
            scaler: as for :meth:`observe`.
            accumulate: as for :meth:`observe`.
        """
        self._attachment.observe_independent(loss, samples, scaler, accumulate=accumulate)

    def samples(self, batches: Iterable[Any], *, forward: Forward | None = None) -> None:
        """Let measures see the squared gradients of the coming step's samples, each by itself: for RWalk.

        It takes a pass of the per-sample engine, in eval mode. Call it before ``optimizer.step()``; where no measure
        needs it, it does nothing.

        Args:
            batches: those that the step is made of, with their targets: one, or all of its micro-batches. With several
                processes, each gives its own.
            forward: as for :meth:`~anchorhold.Guard.consolidate`.
        """
        self._attachment.observe_samples(batches, forward)

    def halves(
        self,
        first: Tensor,
        second: Tensor,
        samples: int | None = None,
        *,
        scaler: GradScaler | None = None,
        accumulate: bool = False,
    ) -> None:
        r"""Run backward for the mean of two halves' losses, and let SOS see the two gradients apart.

        With α ≠ 0, SOS needs two estimates that are independent of *each other* only, so the halves of one batch do
        and cost no extra pass. SIU and SIB need one that is independent of the step, which is made of both halves.

        Args:
            first: the mean loss of the batch's first half.
            second: the mean loss of its second half; both may come from one forward pass.
            samples: how many samples each half has, for ``SOS(alpha="unbiased")``; with ``accumulate``, all
                micro-batches together.
            scaler: the ``GradScaler`` of a float16 loop; ``.grad`` is then scaled, as its ``step`` expects.
            accumulate: as for :meth:`observe`.
        """
        self._attachment.backward_halves(first, second, samples, scaler, accumulate=accumulate)

    def ranks(self, samples: int | None = None, *, comm_hook: CommHook | None = None, state: object = None) -> None:
        r"""Let SOS see the gradients of a DDP job's ranks apart, from now on: its g and g′ at no extra pass.

        With α ≠ 0, SOS needs two estimates that are independent of *each other* only. With R ranks there are R of
        them, and v takes the mean of :math:`(g_r-\alpha g_s)^2` over all pairs, for one more sum over the ranks as long
        as the gradient. SIU and SIB need one that is independent of the step, which is made of all of them. With
        gradient accumulation, all but the last backward pass of a step go under ``no_sync()``.

        Args:
            samples: how many samples each *rank's* gradient is the mean of, for ``SOS(alpha="unbiased")``; with
                accumulation, those of all its micro-batches.
            comm_hook: a DDP communication hook of one's own that averages gradients. It must not be registered with
                the model, which takes only one, and must return their mean, up to the rounding of compression.
            state: what that hook is given as its state.
        """
        self._attachment.observe_ranks(samples, comm_hook, state)

    @torch.inference_mode(mode=False)
    def microbatches(self, batches: Iterable[Any], *, forward: Forward | None = None) -> None:
        """Let measures see the gradients of micro-batches, as in training at a learning rate of 0: nothing moves.

        For models that no device can hold, with fewer passes and fewer measures than ``gather="layers"``: under FSDP2
        and with tensor parallelism the model runs as it does in training, in eval mode, and all that is kept is sharded
        as the parameters are. Call ``consolidate()`` afterwards, without data. May be called several times before that.

        >>> guard = Guard(model, Fisher(labels="true"), strength=100.0)
        >>> guard.gradients.microbatches(micro_batches)
        >>> guard.consolidate()

        From micro-batches of one sample this is the empirical Fisher itself, with ``labels="sampled"`` the Fisher of
        drawn labels; from larger ones an estimate of it without bias. SOS and the posterior precision see one
        gradient after another, those of the mean loss over labels. Other measures, and other forms than the diagonal,
        are refused.

        Args:
            batches: as for :meth:`~anchorhold.Guard.consolidate`, with labels. With several processes, each gives its
                own; those of a model that FSDP2 shards make one micro-batch together.
            forward: as for :meth:`~anchorhold.Guard.consolidate`.
        """
        core = self._core
        core.runtime.ranks.together(lambda: refresh(core))
        self._attachment.finish_pulls()  # consolidate() wants the weights that are seen here
        with self._attachment.set_aside(), core.space.put_in_place():
            measure_microbatches(core, self._attachment.monitors, batches, forward)

    @property
    def path(self) -> PathRecord:
        """What path measures have gathered in the current task.

        It may be set by whoever takes steps without an optimizer that could be attached, such as an engine that
        updates weights and measures in one kernel. Tensors are taken as they are, and copied by the next step of an
        attached optimizer at the earliest.
        """
        return path_of(self._core, self._attachment.watcher.measures.every)

    @path.setter
    def path(self, record: PathRecord) -> None:
        take_path(self._core, self._attachment.watcher.measures.every, record)

    def restart_task(self) -> None:
        """Drop what path measures have gathered since the last consolidation, and start this task's account anew."""
        self._attachment.restart_task()


class Control:
    """Read how the strength follows a tolerance in this task: ``guard.control``. Nothing is run for it."""

    __slots__ = ("_control", "_rollback")  # so that a name that is set by mistake is refused

    def __init__(self, core: Core, rollback: Rollback) -> None:
        self._control = core.state.control
        self._rollback = rollback

    @property
    def trace(self) -> tuple[TracePoint, ...]:
        """What was seen of the kept inputs in this task, look by look, with the strength from then on."""
        return tuple(self._control.trace)

    @property
    def last_seen(self) -> dict[str, float]:
        """KL(p_old‖p_new) of each kept set as it was last seen in training."""
        return dict(self._control.latest)

    @property
    def last_look(self) -> int | None:
        """After which step of its task kept inputs were last looked at; 0 for before its first, ``None`` for never."""
        return self._control.at if self._control.latest else None

    @property
    def pulled_back(self) -> PulledBack | None:
        """How far weights last went back to meet a tolerance, by ``pull_back()`` or where a task ended."""
        return self._rollback.last


class ChosenOptions:
    """Read what a guard was made with, and what it has decided where that was left open: ``guard.options``."""

    __slots__ = ("_attachment", "_core")  # so that a name that is set by mistake is refused

    def __init__(self, core: Core, attachment: Attachment) -> None:
        self._core = core
        self._attachment = attachment

    @property
    def form(self) -> Form:
        """In which coordinates the importance that holds the model is kept."""
        return self._core.state.driving.form

    @property
    def space(self) -> SpaceName:
        """What is held of adapters: their own parameters, or the weights that they are merged with."""
        return self._core.state.space.value

    @property
    def holds(self) -> tuple[Hold, ...]:
        """What pulls beside the guard's own hold."""
        return tuple(self._core.options.holds)

    @property
    def batch_norm(self) -> str | None:
        """What becomes of batch norms' running statistics."""
        return self._core.options.batch_norm

    @property
    def gradient_term(self) -> bool:
        """Whether the gradients of the tasks' own losses are part of the hold."""
        return self._core.options.gradient_term

    @property
    def implicit(self) -> bool | None:
        """Whether the quadratic hold acts after each step, implicitly; may be set at any time.

        Where nobody has said so and both would do, it is ``None`` until ``attach()`` has decided it, for all
        optimizers whose steps are held together. If one of them comes to move a layer's weight and bias by different
        rates, the hold joins the gradient from then on, with a warning. A state goes on as it was saved: one without a
        word of it, as earlier versions wrote, in the gradient.
        """
        return self._core.state.implicit.value

    @implicit.setter
    def implicit(self, value: bool | None) -> None:
        self._attachment.set_implicit(value)

    @property
    def pull_every(self) -> int:
        """After how many steps the hold acts, each time for all of them; may be set at any time, 1 for each of them.

        In between weights are up to so many steps of the task away from where the hold takes them. ``consolidate()``,
        ``detach()``, ``average()`` and ``pull_back()`` first pull for the steps that still wait.
        """
        return self._core.state.pull_every.value

    @pull_every.setter
    def pull_every(self, value: int) -> None:
        self._attachment.set_pull_every(value)

    @property
    def gather(self) -> Gather | None:
        """What is gathered at once of a sharded model to measure it; ``None`` where the devices' room decides."""
        return self._core.options.gather

    @property
    def state_dtype(self) -> StateDtype | None:
        """The precision in which the anchor and Ω are kept; ``None`` for as precise as the parameters."""
        return self._core.options.storage.dtype

    @property
    def state_device(self) -> torch.device | None:
        """The device on which all of them are kept; ``None`` for that of the parameters."""
        return self._core.options.storage.device

    @property
    def group(self) -> "ProcessGroup | None":
        """The processes that train this model together, ``None`` for one alone; may be set before training."""
        return self._core.runtime.ranks.group

    @group.setter
    def group(self, value: "ProcessGroup | None") -> None:
        self._core.runtime.group = checked_group(value)
        self._core.runtime.find_ranks()
