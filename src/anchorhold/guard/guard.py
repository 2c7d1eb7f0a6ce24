"""The two lines that a user adds to a training loop."""

import dataclasses
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from anchorhold.engine.batches import Forward
from anchorhold.errors import AnchorholdWarning, ConfigurationError, warn
from anchorhold.forms import Form, Matrix
from anchorhold.guard.anchors import rebase
from anchorhold.guard.arguments.checked_arguments import checked_rate
from anchorhold.guard.arguments.fitting_strengths import check_strengths
from anchorhold.guard.arguments.new_core import new_core
from anchorhold.guard.arguments.selection import Protect
from anchorhold.guard.arguments.strengths import PatternStrengths, checked_strength
from anchorhold.guard.core import AnchorKind, Setting
from anchorhold.guard.costs import Costs, checked_bytes, costs_of
from anchorhold.guard.distributed.gathering import Gather
from anchorhold.guard.distributed.rank_gradients import CommHook
from anchorhold.guard.forget import forget_all
from anchorhold.guard.ledger import PathRecord, TaskImportance, diagonal_of
from anchorhold.guard.merged_space import Space
from anchorhold.guard.microbatches.measure import watch_only
from anchorhold.guard.monitors import Monitor, monitor_kinds
from anchorhold.guard.not_a_callback import NotACallback
from anchorhold.guard.penalties import penalty_of
from anchorhold.guard.refreshing import refresh
from anchorhold.guard.retention.evaluate import look, warn_of_another_model
from anchorhold.guard.retention.following import predicted
from anchorhold.guard.retention.keep_inputs import keep_inputs, warn_unless_binding
from anchorhold.guard.rollback.rollback import Rollback
from anchorhold.guard.rollback.weight_average import evaluated_weights
from anchorhold.guard.state import files as state_files
from anchorhold.guard.state.codec import from_state, to_state
from anchorhold.guard.state.microbatches import can_be_kept
from anchorhold.guard.stepping.attachment import Attachment
from anchorhold.guard.stepping.observed import Observed
from anchorhold.guard.stepping.path_measures import path_of, take_path
from anchorhold.guard.summary import describe, strength_record
from anchorhold.guard.task import end_task, found_strength, rehearse_end
from anchorhold.holds import Hold
from anchorhold.measures import Measure
from anchorhold.retention import KeptSet, KeptSets, PulledBack, Retention, Tolerance, TracePoint
from anchorhold.retention.kept_set import SAMPLES

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.checkpoint.metadata import Metadata


class Guard(NotACallback):
    r"""Protects what a model has learned while it goes on learning.

    After each task, :meth:`consolidate` measures how important every protected weight was, adds that to the total
    importance Ω and makes the current weights the anchor θ*. From then on, each step of an attached optimiser is
    pulled back by the gradient of :math:`c\sum_i\Omega_i(\theta_i-\theta_i^*)^2`. The penalty is never part of the
    loss, so the gradient that measures see is the task's own.

    >>> guard = Guard(model, SOS(), strength=500.0, protect="body.*", from_scratch=True)
    >>> guard.attach(optimizer)
    >>> for task in tasks:
    ...     train(model, optimizer, task)
    ...     guard.consolidate(batches(task))

    Args:
        model: the network.
        measure: how importance is measured, a measure or its name in :func:`anchorhold.measures`.
        strength: the c of the penalty. What is right depends on the measure: search on a grid 1, 2, 5, 10, …; or give
            an exchange rate, or a tolerance. Where none of them is given, a Fisher information has an exchange rate of
            1; other measures have a strength of 1, with a warning once it holds. Also one for each of some patterns of
            parameters' names, ``{"body.*": 5.0, "*": 1.0}``, of which the first that matches counts; the parameters of
            one matrix (in forms other than the diagonal, a layer's weight and bias) have one.
        protect: glob patterns, a predicate ``(name, parameter) -> bool``, or parameters; by default every trainable
            parameter. Leave out heads that belong to one task.
        exchange_rate: κ, in the place of a strength, for a measure in nats: a Fisher information (exact, sampled, or
            empirical at an optimum), OnlineEWC without its scaling, or PosteriorPrecision, in any form. c is κ/(2T) for
            T scored tokens in a sample, so that the objective is the new loss plus κ times the nats lost of a token of
            each old task, to second order; both losses are means of nats over samples or tokens. With 1 a nat of the
            old is worth a nat of the new. Too weak for a classifier that is certain of all it was trained on, whose
            Fisher information is near 0; as tasks add up, so does what they hold: docs/guides/how-strong.md.
        tolerance: how much may be lost, in the place of a strength: the largest KL(p_old‖p_new) at the end of
            training, in nats a sample or token, on inputs that :meth:`keep` was given, for the worst set of them. The
            strength follows it; a :class:`~anchorhold.Tolerance` says how.
        form: in which space importance is kept, a form or its name: ``"diagonal"``, one number a weight;
            ``"rotated"``, the same in each layer's own coordinates; ``"kronecker"``, a product of two factors for each
            layer. Both have a damping of 0.001; a state from before they had any goes on without where the name alone
            is given. :meth:`cost` says what a form takes.
        space: what is held of adapters: ``"weights"``, their own parameters, as any others; or ``"merged"``, what they
            add to the weights of their layers, D = s(BA − B*A*) for LoRA, by the importance of those weights. ``None``
            is ``"merged"`` in the forms ``"kronecker"`` and ``"rotated"`` with a measure that looks at data, where the
            adapters can be held so and no pattern names their own parameters (``"*lora_*"``); else ``"weights"``.
            :attr:`space` says which it is.
        holds: what pulls beside the guard's own hold, each with a strength of its own: holds or their names.
        decay: γ of online EWC: the total is multiplied by it before a task's importance is added.
        anchor: what weights are held to: ``"last"``, the last task's solution, or ``"mean"``, the mean of all tasks'
            solutions by their importance, which is the sum of all tasks' own penalties.
        gradient_term: whether the gradient of each task's own loss is part of its penalty, as in SOLA (Yin et al.
            2020, arXiv 2006.10974), which is ``anchor="mean"`` with this and ``strength=0.5``: for tasks that end
            before they have converged. It takes data with labels, and an importance in the loss's own unit, such as
            :class:`~anchorhold.Fisher`'s.
        from_scratch: True if the model has learned nothing yet: nothing is held in the first task, and no warning is
            given of it. Of a pretrained model, which has something to lose, leave it out.
        watch: further measures that observe the same run without holding it, as a list or by names of one's own.
        group: the ``torch.distributed`` processes that train this model together, each on batches of its own. A model
            in a DDP wrapper, or one that ``fully_shard`` was applied to, brings its own.
        gather: what each process gathers at once of a sharded model that is measured from data: ``"model"``, all of it,
            so that each measures its own batches; or ``"layers"``, one at a time, so that no process ever has more, and
            all go through the batches of all together, which takes longer. ``None`` gathers the model, unless a
            device says that it has no room for it, or layers are cut up (tensor parallelism).
        batch_norm: what becomes of batch norms' running statistics, which no penalty holds: ``"freeze"`` keeps them as
            they are after the first task, and ``"fold"`` holds a layer's weights as the batch norm after it scales
            them, γW/σ and γ(b − μ)/σ + β, so that :attr:`importance`, :attr:`anchor` and :attr:`tilt` are of those, in
            any form. ``None`` lets them move, with a warning.
        implicit: whether the hold acts after each step of the optimiser, by a pull that no strength can make overshoot,
            D ← D/(1 + 2cηΩ), instead of joining the gradient. η is what a weight really goes for its gradient, so the
            optimiser has to be one that this is known of: SGD, and for the diagonal Adam, AdamW, NAdam, RAdam, Adamax,
            RMSprop and Adagrad. ``None`` is that where the attached optimisers all are SGD, for the diagonal and, with
            one rate for a layer's weight and bias, in the forms ``"rotated"``, ``"kronecker"`` and ``"lowrank"``; else
            the gradient. :attr:`implicit` says which it is.
        state_dtype: of the anchor and Ω, ``torch.bfloat16`` to halve them; by default as precise as the parameters,
            and single at least. Running states are never kept in less, since averages freeze in 16 bits.
        state_device: where all of them are kept, such as ``"cpu"``; by default with the parameters.
        monitors: the names of the monitors that watch training and warn, of :data:`anchorhold.guard.monitors.MONITORS`,
            or classes of one's own; by default all that are registered, and ``()`` for none.
    """

    def __init__(
        self,
        model: nn.Module,
        measure: Measure | str,
        strength: float | Mapping[str, float] | None = None,
        protect: Protect = None,
        *,
        exchange_rate: float | None = None,
        tolerance: float | Tolerance | None = None,
        form: Form | str = "diagonal",
        space: Space | None = None,
        holds: Sequence[Hold | str] = (),
        decay: float = 1.0,
        anchor: AnchorKind = "last",
        gradient_term: bool = False,
        from_scratch: bool = False,
        watch: Sequence[Measure | str] | Mapping[str, Measure | str] = (),
        group: "ProcessGroup | None" = None,
        gather: Gather | None = None,
        batch_norm: str | None = None,
        implicit: bool | None = None,
        state_dtype: torch.dtype | None = None,
        state_device: torch.device | str | None = None,
        monitors: Sequence[str | type[Monitor]] | None = None,
    ) -> None:
        self._core = new_core(
            model,
            measure,
            strength,
            protect,
            exchange_rate=exchange_rate,
            tolerance=tolerance,
            form=form,
            space=space,
            holds=holds,
            decay=decay,
            anchor=anchor,
            gather=gather,
            gradient_term=gradient_term,
            from_scratch=from_scratch,
            watch=watch,
            group=group,
            batch_norm=batch_norm,
            implicit=implicit,
            state_dtype=state_dtype,
            state_device=state_device,
        )
        self._monitors = monitor_kinds(monitors)
        self._attachment = Attachment(self._core, self._monitors)
        self._rollback = Rollback(self._core, self._attachment)

    def __repr__(self) -> str:
        return describe(self._core, self._attachment.attached(), self._attachment.held())

    # What there is to read

    @property
    def model(self) -> nn.Module:
        """The network; given one in a DDP wrapper, what is inside."""
        return self._core.runtime.model

    @property
    def measures(self) -> dict[str, Measure]:
        """Every measure that watches, by name; the first one drives the penalty."""
        return {name: ledger.measure for name, ledger in self._core.state.ledgers.items()}

    @property
    def strength(self) -> float | dict[str, float]:
        """The strength c of the penalty, or those by patterns of names; may be set at any time, as either.

        With an exchange rate it is 0, and nothing is held, until the first consolidation has counted tokens; to set it
        is to do without that rate from now on. Where it follows a tolerance it cannot be set, and is 0 before the first
        step that it holds.
        """
        core = self._core
        if core.state.tolerance is not None and core.state.control.log_start is None:
            return 0.0
        strengths = core.state.driving.strengths
        return core.state.strength if strengths is None else strengths.times(core.state.strength)

    @strength.setter
    def strength(self, value: float | Mapping[str, float]) -> None:
        if self._core.state.tolerance is not None:
            raise ConfigurationError(
                f"strength={value!r}: here it follows tolerance={self._core.state.tolerance.nats:g}. Set "
                "guard.tolerance, or make a Guard with a strength."
            )
        c = checked_strength(value)
        if isinstance(c, dict):
            strengths = PatternStrengths(c)
            check_strengths(self._core, strengths)
            self._core.set_strength(strengths.largest, strengths, None)
        else:
            self._core.set_strength(c, None, None)
        self._look_at_another_strength()

    @property
    def exchange_rate(self) -> float | None:
        """κ, the nats of new loss that a nat lost of an old token may cost; ``None`` with a strength or a tolerance.

        May be set at any time, and takes the place of a strength, also of one by patterns. Tasks that were consolidated
        with a strength were added as they are: T is then the mean of theirs.
        """
        return self._core.state.exchange_rate

    @exchange_rate.setter
    def exchange_rate(self, value: float) -> None:
        state = self._core.state
        tolerance = None if state.tolerance is None else state.tolerance.nats
        if tolerance is not None:
            raise ConfigurationError(
                f"exchange_rate={value!r}: here the strength follows tolerance={tolerance:g}. Set guard.tolerance, or "
                "make a Guard with an exchange rate."
            )
        if value is None:
            raise ConfigurationError("exchange_rate=None: to do without one, set guard.strength.")
        rate = checked_rate(value, None, None, state.driving.measure)
        if state.tasks and state.tokens_of_all is None:
            raise ConfigurationError(
                f"exchange_rate={value!r}: how many tokens were scored in a sample is not known of all tasks, as of "
                "those of version 0.1.0. For T of them set guard.strength = exchange_rate / (2 * T); T is 1 for a "
                "classifier."
            )
        self._core.set_strength(0.0, None, rate)
        state.strength = found_strength(state)
        self._look_at_another_strength()

    def record(self) -> dict[str, float | None]:
        """Return how strongly tasks are held, for results: c, κ, T and tr Q, by name.

        >>> guard.record()
        {'strength': 0.5, 'exchange_rate': 1.0, 'tokens': 1.0, 'trace': 3.2}

        ``exchange_rate`` is what the strength amounts to, 2Tc, whoever has given it: results that have it can be
        compared by it. It is ``None`` for a measure that is not in nats, strengths by patterns, and where T is not
        known; all but the strength are before the first consolidation. ``strength`` is the largest of several. Of a
        sharded model, each process calls this.
        """
        return strength_record(self._core)

    def _look_at_another_strength(self) -> None:
        """Let monitors look at a strength that was set in the middle of a task."""
        if self._core.task.steps and self._attachment.holds_by_itself:
            for monitor in self._attachment.monitors:
                monitor.before_parameters(self._core.runtime.parameters)

    @property
    def tolerance(self) -> float | None:
        """How much may be lost, in nats a sample or token, where that was said; may be set to another at any time."""
        return None if self._core.state.tolerance is None else self._core.state.tolerance.nats

    @tolerance.setter
    def tolerance(self, value: float) -> None:
        if self._core.state.tolerance is None:
            raise ConfigurationError(
                f"tolerance={value!r} for a Guard that was made with a strength. Make one with a tolerance."
            )
        self._core.state.tolerance = dataclasses.replace(self._core.state.tolerance, nats=value)
        self._core.state.asked = Setting(self._core.state.asked.value, "given")
        warn_unless_binding(self._core.state, self._core.state.kept.values())

    @property
    def kept(self) -> KeptSets:
        """The sets of inputs that :meth:`keep` was given, by name; ``kept.save(path)`` writes a file of them alone."""
        return self._core.state.kept

    @property
    def trace(self) -> tuple[TracePoint, ...]:
        """What was seen of the kept inputs in this task, look by look, with the strength from then on."""
        return tuple(self._core.state.control.trace)

    @property
    def last_seen(self) -> dict[str, float]:
        """KL(p_old‖p_new) of each kept set as it was last seen in training: nothing is run for it."""
        return dict(self._core.state.control.latest)

    @property
    def last_look(self) -> int | None:
        """After which step of its task kept inputs were last looked at; 0 for before its first, ``None`` for never."""
        return self._core.state.control.at if self._core.state.control.latest else None

    @property
    def pulled_back(self) -> PulledBack | None:
        """How far weights last went back to meet a tolerance, by :meth:`pull_back` or where a task ended."""
        return self._rollback.last

    @property
    def form(self) -> Form:
        """In which space the importance that holds the model is kept."""
        return self._core.state.driving.form

    @property
    def space(self) -> Space:
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
    def implicit(self) -> bool | None:
        """Whether the quadratic hold acts after each step, implicitly; may be set at any time.

        Where nobody has said so and both would do, it is ``None`` until :meth:`attach` has decided it, for all
        optimisers whose steps are held together. If one of them comes to move a layer's weight and bias by different
        rates, the hold joins the gradient from then on, with a warning. A state goes on as it was saved: one without a
        word of it, as earlier versions wrote, in the gradient.
        """
        return self._core.state.implicit.value

    @implicit.setter
    def implicit(self, value: bool | None) -> None:
        self._attachment.set_implicit(value)

    @property
    def group(self) -> "ProcessGroup | None":
        """The processes that train this model together, ``None`` for one alone; may be set before training."""
        return self._core.runtime.ranks.group

    @group.setter
    def group(self, value: "ProcessGroup | None") -> None:
        self._core.runtime.group = value
        self._core.runtime.find_ranks()

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The protected parameters, by name."""
        return dict(self._core.runtime.parameters)

    @property
    def tasks(self) -> int:
        """How many tasks have been consolidated."""
        return self._core.state.tasks

    @property
    def importance(self) -> dict[str, Tensor]:
        """The total importance Ω that holds the model, by parameter name; empty before the first consolidation.

        In a form other than the diagonal this is its diagonal, for reading; what holds is :attr:`matrices`.
        """
        return self._core.state.driving.diagonal

    @property
    def held_importance(self) -> dict[str, Tensor]:
        """Ω as it pulls: :attr:`importance` with what damping adds to it, and weaker where patterns say so."""
        return diagonal_of(self._core.state.driving.held)

    @property
    def matrices(self) -> dict[str, Matrix]:
        """Q of every block that holds the model, by its name: as measured, whatever strengths and a tolerance add.

        The damping of a form of layers is part of it.
        """
        return dict(self._core.state.driving.measured)

    @property
    def anchor(self) -> dict[str, Tensor]:
        """The weights θ* that the model is held to, by parameter name; empty before the first consolidation.

        With ``anchor="mean"`` this is the mean for the diagonal alone; in other forms, and with a gradient term, it is
        the last task's solution, and :attr:`tilt` says how the hold leans there.
        """
        return dict(self._core.state.anchor)

    @property
    def gradient_term(self) -> bool:
        """Whether the gradients of the tasks' own losses are part of the hold."""
        return self._core.options.gradient_term

    @property
    def leans(self) -> bool:
        """Whether the hold leans at its anchor, once there is one: see :attr:`tilt`."""
        return self._core.has_linear_term

    @property
    def tilt(self) -> dict[str, Tensor]:
        r"""How the hold leans at θ*: r of :math:`c\langle D, Q(D)\rangle - 2c\langle D, r\rangle`, by parameter name.

        It is there with ``anchor="mean"`` in forms other than the diagonal, and with ``gradient_term=True``.
        """
        return dict(self._core.state.linear_term)

    def cost(self) -> Costs:
        """Return what the guard's form takes of memory and time, block by block, before anything is measured.

        What is kept already is counted as it is. It is that of the measure that drives the hold, not of others.

        >>> print(Guard(model, "EWC", form="rotated").cost())
        """
        return costs_of(self._core)

    def importance_of(self, name: str) -> dict[str, Tensor]:
        """Return the total importance that any one of the watching measures has found."""
        if name not in self._core.state.ledgers:
            raise ConfigurationError(f"No measure is called {name!r} here; there are {', '.join(self.measures)}.")
        return self._core.state.ledgers[name].diagonal

    def penalty(self, *, batches: bool = True) -> Tensor:
        """Return the penalty's value, differentiable: for a log, or for a loss of one's own.

        What does not depend on the weights is left out: with a :attr:`tilt` it is 0 at the anchor, and may be negative.
        Attached optimisers add its gradient by themselves. Whoever adds the penalty to the loss attaches with
        ``hold=False``, and gives path measures the task's loss through :meth:`observe`. A hold with a share ρ is in it
        with ρ of its loss, beside which the task's own counts 1 − ρ: ``(1 - share) * loss + guard.penalty()``.

        Args:
            batches: whether the losses of holds that run the model on batches of their own are part of it.
        """
        watcher = self._attachment.watcher
        watcher.following.refuse_without_inputs()  # there is no strength that it could be of
        value = penalty_of(self._core, self._attachment.monitors, watcher.calls, batches=batches)
        self._attachment.note_penalty(value)
        return value

    # Watching an optimiser

    def attach(self, *optimizers: Optimizer, hold: bool = True) -> None:
        """Observe, and hold back, every step of these optimisers from now on.

        Args:
            optimizers: every optimiser that trains protected parameters, or a wrapper of it.
            hold: whether to add the penalty's gradient before each step, or to pull after it where the guard is
                implicit; of an optimiser that is attached already, the latest call counts.
        """
        self._attachment.attach(optimizers, hold=hold)
        self._attachment.keep_statistics()

    def may_attach(self, optimizer: Optimizer) -> bool:
        """Whether an optimiser trains protected parameters, or frozen ones that will be once they are unfrozen."""
        return self._attachment.may_attach(optimizer)

    def detach(self) -> None:
        """Stop observing: remove every hook, and let batch norms be. What was consolidated stays.

        :meth:`attach` goes on from there.
        """
        self._attachment.detach()
        self._core.let_statistics_move()

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

    def observe_independent(
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

    def observe_samples(self, batches: Iterable[Any], *, forward: Forward | None = None) -> None:
        """Let measures see the squared gradients of the coming step's samples, each by itself: for RWalk.

        It takes a pass of the per-sample engine, in eval mode. Call it before ``optimizer.step()``; where no measure
        needs it, it does nothing.

        Args:
            batches: those that the step is made of, with their targets: one, or all of its micro-batches. With several
                processes, each gives its own.
            forward: as for :meth:`consolidate`.
        """
        self._attachment.observe_samples(batches, forward)

    def backward_halves(
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

    def observe_ranks(
        self, samples: int | None = None, *, comm_hook: CommHook | None = None, state: object = None
    ) -> None:
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

    @property
    def path(self) -> PathRecord:
        """What path measures have gathered in the current task.

        It may be set by whoever takes steps without an optimiser that could be attached, such as an engine that
        updates weights and measures in one kernel. Tensors are taken as they are, and copied by the next step of an
        attached optimiser at the earliest.
        """
        return path_of(self._core, self._attachment.watcher.measures.every)

    @path.setter
    def path(self, record: PathRecord) -> None:
        take_path(self._core, self._attachment.watcher.measures.every, record)

    # What is left of what was known

    @torch.inference_mode(mode=False)
    def keep(
        self,
        inputs: Iterable[Any],
        name: str | None = None,
        *,
        forward: Forward | None = None,
        samples: int = SAMPLES,
    ) -> KeptSet:
        """Keep some inputs, with what the model says of them now, to see by them how much is lost from now on.

        Give others than the model was trained on, or than importance is measured from: of those it loses least. While
        optimisers are attached, some of them are looked at every few steps, at about a tenth of a step's cost.

        Args:
            inputs: batches, as for :meth:`consolidate`, of which labels are not needed; a single batch may be a tensor
                or a mapping. With several processes, each gives its own.
            name: what the set is called; by default a number.
            forward: how the model is called, ``forward(model, inputs)``, returning logits ``[N, ..., C]``: through the
                head that these inputs belong to, where there are several.
            samples: how many are kept, the first ones: a few hundred will do.

        Returns:
            The set. Predictions are kept in 32 bits, or in 16 where they are many, as a language model's are.
        """
        return keep_inputs(self._core, self._attachment, inputs, name, forward, samples)

    @torch.inference_mode(mode=False)
    def retention(self) -> Retention:
        """Return what is left of what was kept: KL(p_old‖p_new), and the loss then and now where there are labels.

        >>> print(guard.retention())

        Beside it is what the importance predicts to second order since the last consolidation, for comparison alone.

        With several processes, each of them calls this.
        """
        with self._attachment.set_aside():
            found = dataclasses.replace(look(self._core), second_order_prediction=predicted(self._core))
        warn_of_another_model(self._core, found)
        return found

    @torch.inference_mode(mode=False)
    def pull_back(self, tolerance: float | None = None) -> PulledBack:
        """Move the weights back towards the anchor, just so far that no kept set has lost more than a tolerance.

        :meth:`consolidate` does so first where the guard has a tolerance. What is not protected stays as it is; if the
        tolerance cannot be met, everything does, and a warning says so. With several processes, each of them calls
        this.

        Args:
            tolerance: in nats a sample or token; by default the guard's own.
        """
        return self._rollback.to_tolerance(tolerance)

    # Tasks

    @torch.inference_mode(mode=False)  # what is kept has to serve in training, wherever this is called
    def consolidate(
        self,
        batches: Iterable[Any] | None = None,
        *,
        forward: Forward | None = None,
        share: float | None = None,
        within: int | None = None,
    ) -> dict[str, TaskImportance]:
        """End a task: fold its importance into the total, and make the current weights the anchor.

        If anything goes wrong, an exception is raised and nothing has changed.

        Where there is a tolerance, weights first go back towards the anchor as far as it takes: :meth:`pull_back`.

        With several processes, each of them calls this, with batches of its own. An attached schedule-free optimiser
        is put into its eval mode meanwhile, so that what is measured and held are the weights that are evaluated.

        Args:
            batches: inputs, ``(inputs, targets)`` pairs or mappings with ``"labels"``, for measures that look at data
                (a DataLoader will do). The same samples serve all measures.
            forward: how the model is called, ``forward(model, inputs)``, returning ``[N, ..., C]``; by default
                ``model(inputs)``.
            share: go back towards the last anchor first, as :meth:`average` does. Measures along the path see where
                that leads: SI divides by the square of a shorter way.
            within: bytes that a form's sums over samples may take: layers are then measured in turns, each of which
                goes through the batches by itself. ``print(guard.cost())`` says what all of them take together.

        Returns:
            What each measure found for this task, by the measure's name. Its tensors may be the guard's own: clone
            what you want to change.
        """
        within = self._core.runtime.ranks.together(lambda: checked_bytes(within))
        with self._rollback.before_the_end(share), evaluated_weights(self._attachment.attached()):
            return end_task(self._core, self._attachment, batches, forward, within)

    @torch.inference_mode(mode=False)
    def watch_only(self, batches: Iterable[Any], *, forward: Forward | None = None) -> None:
        """Let measures see the gradients of micro-batches, as in training at a learning rate of 0: nothing moves.

        For models that no device can hold, with fewer passes and fewer measures than ``gather="layers"``: under FSDP2
        and with tensor parallelism the model runs as it does in training, in eval mode, and all that is kept is sharded
        as the parameters are. Call ``consolidate()`` afterwards, without data. May be called several times before that.

        >>> guard = Guard(model, Fisher(labels="true"), strength=100.0)
        >>> guard.watch_only(micro_batches)
        >>> guard.consolidate()

        From micro-batches of one sample this is the empirical Fisher itself, with ``labels="sampled"`` the Fisher of
        drawn labels; from larger ones an estimate of it without bias. SOS and the posterior precision see one
        gradient after another, those of the mean loss over labels. Other measures, and other forms than the diagonal,
        are refused.

        Args:
            batches: as for :meth:`consolidate`, with labels. With several processes, each gives its own; those of a
                model that FSDP2 shards make one micro-batch together.
            forward: as for :meth:`consolidate`.
        """
        core = self._core
        core.runtime.ranks.together(lambda: refresh(core))
        with self._attachment.set_aside(), core.merged.put_in_place():
            watch_only(core, self._attachment.monitors, batches, forward)

    def average(self, share: float = 0.5) -> None:
        """Move the weights back towards the anchor: to θ* + share·(θ − θ*), their mean before and after training.

        What is not protected, such as a new head, stays as it is. Call it once training has ended;
        ``consolidate(batches, share=0.7)`` does, and then takes the task in as it is after that.

        Of an adapter it is what it adds to a weight that goes back: of a fresh one's BA just the share is left. The
        mean with one that had learned has twice the rank, and the nearest of its own takes its place.

        An anchor that is kept in 16 bits (``state_dtype``) has lost digits, which the weights then lose too.

        Args:
            share: that of the weights as they are: 1 changes nothing, 0 goes back to the anchor.
        """
        self._rollback.by_share(share)

    def rebase(self) -> None:
        """Hold merged weights to where they are now, by the importance that was measured before.

        For adapters that were merged into the weights for good (``merge_and_unload()``), and others in their place,
        with ``space="merged"``: what those add is counted from here on.
        """
        rebase(self._core)

    @torch.inference_mode(mode=False)
    def rehearse(self, batches: Iterable[Any] | None = None, *, forward: Forward | None = None) -> None:
        """Try :meth:`consolidate` on two samples, before hours of training; guard and model stay as they are.

        What would be refused at the end is refused now: batches of a form that nobody can read, a model that cannot
        be called with them, layers that mix samples, samples that a buffer cannot keep. With several processes, each of
        them calls this. Where neither a measure nor a hold looks at data, there is nothing to try. The random states of
        torch, numpy and Python stay as they are.

        Args:
            batches: as for :meth:`consolidate`. Only the first one or two are read; an iterator loses them, and a
                DataLoader with a generator or persistent workers of its own has begun a pass.
            forward: as for :meth:`consolidate`.
        """
        rehearse_end(self._core, self._attachment, batches, forward)

    def restart_task(self) -> None:
        """Drop what path measures have gathered since the last consolidation, and start this task's account anew."""
        self._attachment.restart_task()

    def refresh(self) -> None:
        """Look at the model again, and take in parameters that were added, unfrozen or replaced.

        This happens by itself when an optimiser is attached, at a task's first step and at its end, and as soon as an
        attached optimiser trains a parameter that it did not train before.
        """
        refresh(self._core)

    def forget(self, *names: str) -> None:
        """Let go of parameters: drop their anchor, importance and running state.

        >>> guard.forget("head.weight", "head.bias")
        >>> guard.forget("head.*")

        In a form that has one matrix for several parameters, that lets go of the others' importance too, with a
        warning.

        Args:
            names: of parameters, as in :attr:`parameters`, or glob patterns of them, as for ``protect``; each has to
                match one at least, or nothing is forgotten at all.
        """
        forget_all(self._core, names)

    # State

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to go on exactly: anchor, totals, and the running state of the current task.

        Its tensors are the live ones, as with PyTorch's optimisers, for as long as no parameter is added, frozen or
        consolidated; :meth:`save` writes a file.
        """
        if self._core.task.watched is not None and not can_be_kept(self._core):
            warn(
                "A state between watch_only() and consolidate(), of several processes that draw labels each by itself, "
                "is without what was seen of micro-batches, but for the running states of measures along the path, "
                "and those do not know which weights they are of: call consolidate() first."
            )
        return to_state(self._core)

    @torch.inference_mode(mode=False)
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state, after checking that it is whole and of this model and these measures."""
        refresh(self._core)
        core = self._core
        given = core.state.said_strength if core.state.asked.is_given else None
        own = core.state.strength, core.state.driving.strengths, core.state.exchange_rate
        from_state(core, state)
        if state.get("relative_strength") is not None and not core.state.strength and core.state.tolerance is None:
            core.state.strength, core.state.driving.strengths, core.state.exchange_rate = own
            warn(_RELATIVE.format(relative=state["relative_strength"], own=core.state.said_strength))
        self._attachment.decide_pull()
        made = state.get("made_with")
        core.state.asked = Setting(made or core.state.asked.value, "restored")
        if given not in (None, core.state.said_strength, made):
            core.state.asked = Setting(core.state.said_strength, "restored")
            kind = "strength" if core.state.tolerance is None else "tolerance"
            warn(_OTHER_STRENGTH.format(given=given, then=core.state.said_strength, kind=kind))
        core.state.strength = found_strength(core.state)  # importance of others comes with its T alone
        self._attachment.watcher.measures.observed = Observed()
        self._attachment.keep_statistics()
        if core.state.is_anchored and core.state.strength:
            self._attachment.begin_watching()

    def blank_state_dict(self, metadata: "Metadata", prefix: str = "guard") -> dict[str, Any]:
        """Return a state for ``torch.distributed.checkpoint.load`` to fill, whatever number of processes saved it.

        >>> state = {"guard": guard.blank_state_dict(FileSystemReader(folder).read_metadata())}
        >>> torch.distributed.checkpoint.load(state, checkpoint_id=folder)
        >>> guard.load_state_dict(state["guard"])

        Args:
            metadata: what the checkpoint's reader says about it.
            prefix: the key that :meth:`state_dict` was saved by; empty where it was saved by itself.
        """
        refresh(self._core)
        return state_files.blank_state(self._core, metadata, prefix)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a safetensors file, whole or not at all.

        Of several processes the first one writes. Only if the model is sharded do all of them have to call this.
        """
        state_files.write(path, self.state_dict(), self._core.runtime.ranks)

    def load(self, path: str | os.PathLike[str] | None = None) -> None:
        """Take over the state of a file that :meth:`save` wrote."""
        state_files.refuse_without_guard(self, path)
        self.load_state_dict(state_files.read(path))
        for monitor in self._attachment.monitors:
            monitor.at_load(str(path))

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy takes along: all but the optimisers, whose hooks are not copied with them.

        What a subclass has beside the guard's own goes along too.
        """
        if self._attachment.attached():
            warnings.warn(
                "A copy of an attached Guard is attached to nothing. Call attach() on the copy, with the "
                "optimiser that trains its model, before it is to hold anything.",
                AnchorholdWarning,
                stacklevel=4,
            )
        return {name: value for name, value in vars(self).items() if name not in ("_attachment", "_rollback")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._attachment = Attachment(self._core, self._monitors)
        self._rollback = Rollback(self._core, self._attachment)


_OTHER_STRENGTH = (
    "This guard was made with {given}, and the state that it has taken over has {then}, which holds from now on. If "
    "that is meant, make the guard with {then}; if not, set guard.{kind} after loading."
)

_RELATIVE = (
    "The state was to find its strength by relative_strength={relative:g}, which there is no more, and had not found "
    "it yet. The guard goes on with {own}, as it was made. If another is meant, set guard.strength or "
    "guard.exchange_rate."
)
