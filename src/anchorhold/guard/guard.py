"""The two lines that a user adds to a training loop."""

import dataclasses
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from anchorhold.engine.batches import Forward
from anchorhold.errors import AnchorholdWarning, ConfigurationError, warn
from anchorhold.forms import Form
from anchorhold.guard.anchors import rebase as rebase_anchor
from anchorhold.guard.arguments.checked_arguments import checked_rate
from anchorhold.guard.arguments.fitting_strengths import check_strengths
from anchorhold.guard.arguments.new_core import new_core
from anchorhold.guard.arguments.options import GuardOptions, names_options
from anchorhold.guard.arguments.selection import Protect
from anchorhold.guard.arguments.strengths import PatternStrengths, checked_strength
from anchorhold.guard.core import AnchorKind, Setting
from anchorhold.guard.costs import Costs, checked_bytes, costs_of
from anchorhold.guard.forget import forget_all
from anchorhold.guard.ledger import TaskImportance
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
from anchorhold.guard.summary import describe
from anchorhold.guard.task import end_task, found_strength, rehearse_end
from anchorhold.guard.views import ChosenOptions, Control, Gradients, HeldImportance
from anchorhold.holds import Hold
from anchorhold.measures import Measure
from anchorhold.retention import KeptSet, KeptSets, PulledBack, Retention, Tolerance
from anchorhold.retention.kept_set import SAMPLES
from anchorhold.tensors.packed import plain_tensor

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata


class Guard(NotACallback):
    r"""Protects what a model has learned while it goes on learning.

    After each task, :meth:`consolidate` measures how important every protected weight was, adds that to the total
    importance Ω and makes the current weights the anchor θ*. From then on, each step of an attached optimizer is
    pulled back by the gradient of :math:`c\sum_i\Omega_i(\theta_i-\theta_i^*)^2`. The penalty is never part of the
    loss, so the gradient that measures see is the task's own.

    >>> guard = Guard(model, SOS(), strength=500.0, protect="body.*", from_scratch=True)
    >>> guard.attach(optimizer)
    >>> for task in tasks:
    ...     train(model, optimizer, task)
    ...     guard.consolidate(batches(task))

    Args:
        model: the network.
        measure: how importance is measured, a measure or its name in :func:`~anchorhold.measures.default_measures`.
        strength: the c of the penalty. What is right depends on the measure: search on a grid 1, 2, 5, 10, …; or give
            an exchange rate, or a tolerance. Where none of them is given, a Fisher information has an exchange rate of
            1; other measures have a strength of 1, with a warning once it holds. Also one for each of some patterns of
            parameters' names, ``{"body.*": 5.0, "*": 1.0}``, of which the first that matches counts; the parameters of
            one matrix (in forms other than the diagonal, a layer's weight and bias) have one.
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
        protect: glob patterns, a predicate ``(name, parameter) -> bool``, or parameters; by default every trainable
            parameter. Leave out heads that belong to one task.
        holds: what pulls beside the guard's own hold, each with a strength of its own: holds or their names.
        anchor: what weights are held to: ``"last"``, the last task's solution, or ``"mean"``, the mean of all tasks'
            solutions by their importance, which is the sum of all tasks' own penalties.
        decay: γ of online EWC: the total is multiplied by it before a task's importance is added.
        batch_norm: what becomes of batch norms' running statistics, which no penalty holds: ``"freeze"`` keeps them as
            they are after the first task, and ``"fold"`` holds a layer's weights as the batch norm after it scales
            them, γW/σ and γ(b − μ)/σ + β, so that :attr:`importance`, :attr:`anchor` and :attr:`held` are of
            those, in any form. ``None`` lets them move, with a warning.
        from_scratch: True if the model has learned nothing yet: nothing is held in the first task, and no warning is
            given of it. Of a pretrained model, which has something to lose, leave it out.
        watch: further measures that observe the same run without holding it, as a list or by names of one's own.
        monitors: the names of the monitors that watch training and warn, of :data:`anchorhold.guard.monitors.MONITORS`,
            or classes of one's own; by default all that are registered, and ``()`` for none.
        options: the rarer arguments: space, step, processes and storage, in one :class:`~anchorhold.GuardOptions`.
    """

    @names_options
    def __init__(
        self,
        model: nn.Module,
        measure: Measure | str,
        *,
        strength: float | Mapping[str, float] | None = None,
        exchange_rate: float | None = None,
        tolerance: float | Tolerance | None = None,
        form: Form | str = "diagonal",
        protect: Protect = None,
        holds: Sequence[Hold | str] = (),
        anchor: AnchorKind = "last",
        decay: float = 1.0,
        batch_norm: str | None = None,
        from_scratch: bool = False,
        watch: Sequence[Measure | str] | Mapping[str, Measure | str] = (),
        monitors: Sequence[str | type[Monitor]] | None = None,
        options: GuardOptions | None = None,
    ) -> None:
        self._core = new_core(
            model,
            measure,
            strength=strength,
            exchange_rate=exchange_rate,
            tolerance=tolerance,
            form=form,
            protect=protect,
            holds=holds,
            anchor=anchor,
            decay=decay,
            batch_norm=batch_norm,
            from_scratch=from_scratch,
            watch=watch,
            options=options,
        )
        self._monitors = monitor_kinds(monitors)
        self._attachment = Attachment(self._core, self._monitors)
        self._rollback = Rollback(self._core, self._attachment)

    def __repr__(self) -> str:
        return describe(self._core, self._attachment.attached(), self._attachment.held())

    if not TYPE_CHECKING:  # a type checker would take every name for an attribute that there is

        def __getattr__(self, name: str) -> Any:
            """Say of the names of its parts which part has them."""
            if not hasattr(type(self), name) and not name.startswith("_"):
                for part, kind in _PARTS.items():
                    if hasattr(kind, name):
                        raise AttributeError(
                            f"{type(self).__name__!r} object has no attribute {name!r}: it is guard.{part}.{name}"
                        )
            return super().__getattr__(name)

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
        state = self._core.state
        strengths = state.driving.strengths
        return state.strength_so_far if strengths is None else strengths.times(state.strength)

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

        In a form other than the diagonal this is its diagonal, for reading; what holds is ``guard.held.matrices``.
        """
        return {name: plain_tensor(omega) for name, omega in self._core.state.driving.diagonal.items()}

    @property
    def anchor(self) -> dict[str, Tensor]:
        """The weights θ* that the model is held to, by parameter name; empty before the first consolidation.

        With ``anchor="mean"`` this is the mean for the diagonal alone; in other forms, and with a gradient term, it is
        the last task's solution, and ``held.linear_term`` says how the hold leans there.
        """
        return {name: plain_tensor(theta) for name, theta in self._core.state.anchor.items()}

    def cost(self, rows: int | None = None) -> Costs:
        """Return what the guard's form takes of memory and time, block by block, before anything is measured.

        What is kept already is counted as it is. It is that of the measure that drives the hold, not of others. Its
        ``ratio`` is how many unprotected steps a held one is expected to take.

        >>> print(Guard(model, "EWC", form="rotated").cost(rows=256))

        Args:
            rows: that a layer sees in a training batch, samples times positions of a text. By default as many as in the
                batches of the last :meth:`consolidate` with data, each layer's own; before one, ``ratio`` is ``None``.
        """
        return costs_of(self._core, rows)

    def penalty(self, *, batches: bool = True) -> Tensor:
        """Return the penalty's value, differentiable: for a log, or for a loss of one's own.

        What does not depend on the weights is left out: with a linear term it is 0 at the anchor, and may be negative.
        Attached optimizers add its gradient by themselves. Whoever adds the penalty to the loss attaches with
        ``hold=False``, and gives path measures the task's loss through ``gradients.observe()``. A hold with a
        share ρ is in it with ρ of its loss, beside which the task's own counts 1 − ρ:
        ``(1 - share) * loss + guard.penalty()``.

        Args:
            batches: whether the losses of holds that run the model on batches of their own are part of it.
        """
        watcher = self._attachment.watcher
        watcher.following.refuse_without_inputs()  # there is no strength that it could be of
        value = penalty_of(self._core, self._attachment.monitors, watcher.calls, batches=batches)
        self._attachment.note_penalty(value)
        return value

    @property
    def options(self) -> ChosenOptions:
        """What the guard was made with, and what it has decided where that was left open."""
        return ChosenOptions(self._core, self._attachment)

    @property
    def held(self) -> HeldImportance:
        """What holds the model, beyond :attr:`importance`: matrices, a linear term, other measures' importance."""
        return HeldImportance(self._core)

    @property
    def gradients(self) -> Gradients:
        """What measures along the path see of each step, for loops that show them more than ``.grad``."""
        return Gradients(self._core, self._attachment)

    @property
    def control(self) -> Control:
        """How the strength follows a tolerance in this task."""
        return Control(self._core, self._rollback)

    # Watching an optimizer

    def attach(self, *optimizers: Optimizer, hold: bool = True) -> None:
        """Observe, and hold back, every step of these optimizers from now on.

        Args:
            optimizers: every optimizer that trains protected parameters, or a wrapper of it.
            hold: whether to add the penalty's gradient before each step, or to pull after it where the guard is
                implicit; of an optimizer that is attached already, the latest call counts.
        """
        self._attachment.attach(optimizers, hold=hold)
        self._attachment.keep_statistics()

    def detach(self) -> None:
        """Stop observing: remove every hook, and let batch norms be. What was consolidated stays.

        :meth:`attach` goes on from there.
        """
        self._attachment.detach()
        self._core.let_statistics_move()

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
        optimizers are attached, some of them are looked at every few steps, at about a tenth of a step's cost.

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

        With several processes, each of them calls this, with batches of its own. An attached schedule-free optimizer
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

    def average(self, share: float = 0.5) -> None:
        """Move the weights back towards the anchor: to θ* + share·(θ − θ*), their mean before and after training.

        What is not protected, such as a new head, stays as it is. Call it once training has ended;
        ``consolidate(batches, share=0.7)`` does, and then takes the task in as it is after that.

        Of an adapter it is what it adds to a weight that goes back: of a fresh one's BA just the share is left. The
        mean with one that had learned has twice the rank, and the nearest of its own takes its place.

        An anchor that is kept in fewer bits than the weights (``state_dtype``) has lost digits, which they then lose
        too.

        Args:
            share: that of the weights as they are: 1 changes nothing, 0 goes back to the anchor.
        """
        self._rollback.by_share(share)

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

    def refresh(self, *, rebase: bool = False) -> None:
        """Look at the model again, and take in parameters that were added, unfrozen or replaced.

        This happens by itself when an optimizer is attached, at a task's first step and at its end, and as soon as an
        attached optimizer trains a parameter that it did not train before.

        Args:
            rebase: hold merged weights to where they are now, by the importance that was measured before: for adapters
                that were merged into the weights for good (``merge_and_unload()``), and others in their place, in
                the space ``"merged"``. What those add is counted from here on.
        """
        if rebase:
            rebase_anchor(self._core)
        else:
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

        Its tensors are the live ones, as with PyTorch's optimizers, for as long as no parameter is added, frozen or
        consolidated; :meth:`save` writes a file.
        """
        if self._core.task.watched is not None and not can_be_kept(self._core):
            warn(
                "A state between gradients.microbatches() and consolidate(), of several processes that draw labels "
                "each by itself, is without what was seen of micro-batches, but for the running states of measures "
                "along the path, and those do not know which weights they are of: call consolidate() first."
            )
        return to_state(self._core)

    @torch.inference_mode(mode=False)
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state, after checking that it is whole and of this model and these measures."""
        refresh(self._core)
        core = self._core
        given = core.state.strength_text if core.state.asked.is_given else None
        own = core.state.strength, core.state.driving.strengths, core.state.exchange_rate
        from_state(core, state)
        if state.get("relative_strength") is not None and not core.state.strength and core.state.tolerance is None:
            core.state.strength, core.state.driving.strengths, core.state.exchange_rate = own
            warn(_RELATIVE.format(relative=state["relative_strength"], own=core.state.strength_text))
        self._attachment.decide_pull()
        made = state.get("made_with")
        core.state.asked = Setting(made or core.state.asked.value, "restored")
        if given not in (None, core.state.strength_text, made):
            core.state.asked = Setting(core.state.strength_text, "restored")
            kind = "strength" if core.state.tolerance is None else "tolerance"
            warn(_OTHER_STRENGTH.format(given=given, then=core.state.strength_text, kind=kind))
        core.state.strength = found_strength(core.state)  # importance of others comes with its T alone
        self._attachment.watcher.measures.observed = Observed()
        self._attachment.keep_statistics()
        if core.state.is_anchored and core.state.strength:
            self._attachment.begin_watching()

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
        """Return what a copy takes along: all but the optimizers, whose hooks are not copied with them.

        What a subclass has beside the guard's own goes along too.
        """
        if self._attachment.attached():
            warnings.warn(
                "A copy of an attached Guard is attached to nothing. Call attach() on the copy, with the "
                "optimizer that trains its model, before it is to hold anything.",
                AnchorholdWarning,
                stacklevel=4,
            )
        return {name: value for name, value in vars(self).items() if name not in ("_attachment", "_rollback")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._attachment = Attachment(self._core, self._monitors)
        self._rollback = Rollback(self._core, self._attachment)


_PARTS = {"held": HeldImportance, "gradients": Gradients, "control": Control, "options": ChosenOptions}


def may_attach(guard: Guard, optimizer: Optimizer) -> bool:
    """Return whether an optimizer trains protected parameters, or frozen ones that may be unfrozen."""
    return guard._attachment.may_attach(optimizer)  # noqa: SLF001


def blank_state_dict(guard: Guard, metadata: "Metadata", prefix: str = "guard") -> dict[str, Any]:
    """Return a state for ``torch.distributed.checkpoint.load`` to fill, whatever number of processes saved it.

    >>> state = {"guard": blank_state_dict(guard, FileSystemReader(folder).read_metadata())}
    >>> torch.distributed.checkpoint.load(state, checkpoint_id=folder)
    >>> guard.load_state_dict(state["guard"])

    Args:
        guard: the one that is to take over the state.
        metadata: what the checkpoint's reader says about it.
        prefix: the key that :meth:`~anchorhold.Guard.state_dict` was saved by; empty where it was saved by itself.
    """
    guard.refresh()
    return state_files.blank_state(guard._core, metadata, prefix)  # noqa: SLF001


_OTHER_STRENGTH = (
    "This guard was made with {given}, and the state that it has taken over has {then}, which holds from now on. If "
    "that is meant, make the guard with {then}; if not, set guard.{kind} after loading."
)

_RELATIVE = (
    "The state was to find its strength by relative_strength={relative:g}, which there is no more, and had not found "
    "it yet. The guard goes on with {own}, as it was made. If another is meant, set guard.strength or "
    "guard.exchange_rate."
)
