"""The optimizers that a guard is attached to, and the gradients that it is shown for their steps."""

import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from anchorhold.engine.batches import Forward
from anchorhold.errors import ConfigurationError, OptimizerError, OrderError
from anchorhold.guard.arguments.checked_arguments import checked_pull_every
from anchorhold.guard.core import Core, Setting
from anchorhold.guard.distributed.rank_gradients import CommHook, RankGradients
from anchorhold.guard.distributed.ranks import is_fully_sharded
from anchorhold.guard.measurement import squares_of_samples
from anchorhold.guard.monitor import Attaching, Monitor, overriding
from anchorhold.guard.refreshing import refresh_for
from anchorhold.guard.rollback.weight_average import evaluated_weights
from anchorhold.guard.stepping.default_pull import Owned, set_implicit, why_explicit
from anchorhold.guard.stepping.observed import Observed, gradients_of_halves, protected_gradients, unscaled
from anchorhold.guard.stepping.optimizers.accepted import check_optimizer, ids, innermost, trained_by
from anchorhold.guard.stepping.optimizers.effective_rate import check_effective_rate, check_pull_every
from anchorhold.guard.stepping.watcher import StepWatcher

_HELD_TWICE = (
    "The penalty is part of a loss, and the attached optimizer's steps are held back by it too: it acts twice. Attach "
    "with attach(optimizer, hold=False), or leave it out of the loss."
)


class Attachment:
    """Tie a guard to optimizers; see :class:`~anchorhold.Guard` for what its calls are for."""

    def __init__(self, core: Core, monitors: Sequence[type[Monitor]]) -> None:
        self.core = core
        self.monitors = [kind(core) for kind in monitors]
        self.watcher = StepWatcher(core, self.monitors)
        self._held: WeakSet[Optimizer] = WeakSet()
        """The optimizers whose steps are held back."""
        self._hooks: list[tuple[weakref.ref[Optimizer], list[RemovableHandle]]] = []
        self.was_attached = False
        """Whether it ever was, to any optimizer."""

    def attach(self, optimizers: tuple[Optimizer, ...], *, hold: bool) -> None:
        """Watch these optimizers from now on, besides those that are watched already."""
        if not optimizers:
            raise OptimizerError("attach() was given no optimizer. Give every one that trains protected parameters.")
        # Some wrappers, such as Accelerate's, never run hooks: the optimizer inside is hooked.
        optimizers = tuple(innermost(optimizer) for optimizer in optimizers)
        core = self.core
        refresh_for(core, "attach()")
        protected = {id(p): name for name, p in core.runtime.parameters.items()}
        # An optimizer all of whose parameters are frozen for now may come along with others, not by itself.
        frozen = core.frozen if any(_trains(optimizer, protected) for optimizer in optimizers) else {}
        for optimizer in optimizers:
            check_optimizer(optimizer, core.runtime.parameters, frozen)
            if hold and core.state.implicit.value and not core.state.implicit.is_open:
                check_pull_every(optimizer, core.state.pull_every.value)
                check_effective_rate(optimizer, core.state.driving.form)
        # Before anything is hooked: a warning may be an error to the caller.
        owned = self.owned() | {key for optimizer in optimizers for key in ids(trained_by(optimizer))}
        given = {id(optimizer): optimizer for optimizer in optimizers}
        attaching = Attaching(owned, len({*given, *map(id, self.attached())}), hold=hold)
        for monitor in self.monitors:
            monitor.before_attach(attaching)
        live = []
        for ref, handles in self._hooks:
            # Attached before: the latest call counts, so it is hooked anew.
            if id(ref()) in given:
                _remove(handles)
            elif ref() is not None:
                live.append((ref, handles))
        for optimizer in given.values():
            handles = self.watcher.hook(optimizer, hold=hold)
            for monitor in self.monitors:
                monitor.after_attach(optimizer, handles[0], hold=hold)
            # Weakly, so that the guard keeps no optimizer alive that its owner has dropped.
            live.append((weakref.ref(optimizer), handles))
        self._hooks = live
        self.was_attached = True
        self._held = WeakSet(set(self._held) - set(optimizers)) if not hold else WeakSet({*self._held, *optimizers})
        # Only now is it known which optimizers hold.
        self.decide_pull()
        self.begin_watching()
        if self.watcher.measures.rank_gradients is not None:
            self.watcher.measures.rank_gradients.active = True

    @property
    def holds_by_itself(self) -> bool:
        """Return whether some attached optimizer's steps are held back."""
        return bool(self.held())

    def held(self) -> Owned:
        """Return the attached optimizers whose steps are held back, each with the protected parameters it trains."""
        return {each: self.watcher.layouts.owned(each) for each in self.attached() if each in self._held}

    def decide_pull(self) -> None:
        """Let attached optimizers decide whether the hold acts after their steps, where the user has not."""
        core, held = self.core, self.held()
        # Together: after the steps of all of them, or of none.
        if core.state.implicit.is_open and held:
            core.state.implicit = core.state.implicit.having(not why_explicit(core, held))

    def set_implicit(self, value: bool | None) -> None:
        """Hold after steps from now on, or in them, or as the attached optimizers decide."""
        every = self.core.state.pull_every.value
        if every > 1 and value is not True:
            raise ConfigurationError(
                f"implicit={value!r} with pull_every={every}, which is a hold after steps. Set "
                "guard.options.pull_every = 1 first."
            )
        set_implicit(self.core, value, self.held())
        self.decide_pull()

    def set_pull_every(self, value: int) -> None:
        """Act after every so many steps from now on, or refuse it and stay as it was."""
        core = self.core
        every = checked_pull_every(value, core.state.implicit.value if core.state.implicit.is_given else None)
        for optimizer in self.held():
            check_pull_every(optimizer, every)
        if every > 1:
            set_implicit(core, True, self.held())
        self.finish_pulls()
        core.state.pull_every = Setting(every, "given")

    def finish_pulls(self) -> None:
        """Pull weights for the steps that wait for it, where the hold does not act after each."""
        self.watcher.update.implicit.finish()

    def note_penalty(self, penalty: Tensor) -> None:
        """Note that the penalty's value was asked for: to be part of a loss, where no optimizer is attached.

        Warn once if an attached optimizer holds by it already, as soon as it is differentiated: then it acts twice.
        """
        if not self.attached():
            for monitor in self.monitors:
                monitor.release()
        elif penalty.requires_grad and (self.core.state.strength or self.core.options.holds) and self.holds_by_itself:
            # A penalty that is only logged is never differentiated.
            penalty.register_hook(lambda _gradient: self.core.runtime.warned.once("held twice", _HELD_TWICE))

    def begin_watching(self) -> None:
        """Let monitors watch from now on, also while no optimizer is attached."""
        owned, attached = self.owned(), self.attached()
        trained = {name: p for name, p in self.core.runtime.parameters.items() if id(p) in owned}
        for monitor in overriding(self.monitors, "watch"):
            monitor.watch(attached, trained)

    def may_attach(self, optimizer: Optimizer) -> bool:
        """Return whether an optimizer trains protected parameters, or frozen ones that may be unfrozen."""
        core = self.core
        return _trains(optimizer, ids([*core.runtime.parameters.values(), *core.frozen.values()]))

    def detach(self) -> None:
        """Pull for the steps that wait for it, and remove every hook."""
        self.finish_pulls()
        for _, handles in self._hooks:
            _remove(handles)
        self._hooks = []
        self.watcher.release()
        # DDP gives no communication hook back: it stays, and only averages from now on.
        if self.watcher.measures.rank_gradients is not None:
            self.watcher.measures.rank_gradients.active = False

    def attached(self) -> list[Optimizer]:
        """Return the optimizers that are attached and still exist."""
        return [optimizer for ref, _ in self._hooks if (optimizer := ref()) is not None]

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Let the model be run as it is evaluated, by calls that are none of training's."""
        with evaluated_weights(self.attached()), self.watcher.calls.paused():
            yield

    def restart_task(self) -> None:
        """Start the current task's account anew, and drop what was shown for the coming step."""
        self.core.restart_task()
        self.watcher.measures.observed = Observed()
        # Rows would keep the states that were dropped alive until the next step.
        self.watcher.layouts.forget()

    def keep_statistics(self) -> None:
        """Keep the statistics of batch norms as they are to be from now on."""
        self.core.keep_statistics()
        # Not held: who moved the statistics means them so, and scales and shifts do not follow.
        self.core.space.follow(self.core.runtime.ranks.take_first, is_held=False)

    def owned(self) -> set[int]:
        """Return the ids of all parameters that attached optimizers train."""
        return {key for optimizer in self.attached() for key in ids(trained_by(optimizer))}

    def observe(self, loss: Tensor, scaler: GradScaler | None, *, accumulate: bool) -> None:
        """Take the gradient of a loss as g."""
        self._prepare("gradients.observe")
        if self.watcher.measures.every:
            observed = Observed(gradient=protected_gradients(self.core, loss, scaler))
            if not accumulate:
                self.watcher.measures.observed.gradient = {}
            self.watcher.measures.observed.add(observed)

    def observe_independent(
        self, loss: Tensor, samples: int | None, scaler: GradScaler | None, *, accumulate: bool
    ) -> None:
        """Take the gradient of a loss as g′."""
        self._prepare("gradients.independent")
        if any(measure.needs.independent for measure in self.watcher.measures.every.values()):
            observed = Observed(independent=protected_gradients(self.core, loss, scaler), samples=samples)
            if not accumulate:
                self.watcher.measures.observed.independent = {}
                self.watcher.measures.observed.samples = None
            self.watcher.measures.observed.add(observed)

    def observe_samples(self, batches: Iterable[Any], forward: Forward | None) -> None:
        """Take the squared gradients of samples as those of the coming step's."""
        self._prepare("gradients.samples")
        if self.watcher.measures.squares:
            # These passes are none of training's: the call to remember stays the step's own.
            with self.watcher.calls.paused():
                self.watcher.measures.observed.squares = squares_of_samples(self.core, batches, forward)

    def backward_halves(
        self, first: Tensor, second: Tensor, samples: int | None, scaler: GradScaler | None, *, accumulate: bool
    ) -> None:
        """Run backward for the mean of two losses, and take their gradients as g and g′."""
        self._prepare("gradients.halves")
        self._refuse_measures_of_the_step("both halves of the batch do")
        if is_fully_sharded(self.core.runtime.model):
            raise OrderError(
                "gradients.halves() cannot take the gradients of a sharded model apart: FSDP brings them together in "
                "backward() only. Call gradients.independent() with the loss of a second batch."
            )
        # What the model or an attached optimizer trains: heads may be modules of their own.
        every = [*self.core.runtime.model.parameters(), *(p for o in self.attached() for p in trained_by(o))]
        trained: list[Tensor] = list({id(p): p for p in every if p.requires_grad}.values())
        halves = gradients_of_halves(self.core, first, second, trained, scaler)
        names = {id(parameter): name for name, parameter in self.core.runtime.parameters.items()}
        observed = Observed(samples=samples)
        for parameter, *pair in zip(trained, *halves, strict=True):
            given = [half for half in pair if half is not None]
            if given:
                # By 2 also where one half has no gradient: that is one of 0. The scaler's factor stays in.
                mean = sum(given[1:], start=given[0]) / 2
                parameter.grad = mean if parameter.grad is None else parameter.grad + mean
            if id(parameter) in names:
                name = names[id(parameter)]
                # Measures see no loss scale; in .grad it stays, for the scaler to take out.
                observed.gradient[name], observed.independent[name] = (unscaled(half, scaler) for half in pair)
        if accumulate:
            self.watcher.measures.observed.add(observed)
        else:
            self.watcher.measures.observed = observed

    def observe_ranks(self, samples: int | None, comm_hook: CommHook | None, state: object) -> None:
        """Take the gradients of a DDP job's ranks as estimates that are independent of each other."""
        self._require_attached("gradients.ranks")
        self._refuse_measures_of_the_step("those of all ranks do")
        owned = self.owned()
        trained = (p for p in self.core.runtime.parameters.values() if id(p) in owned and p.requires_grad)
        self.watcher.measures.rank_gradients = RankGradients(
            self.core.runtime.wrapper, samples, comm_hook, state, watched=next(trained, None)
        )

    def _prepare(self, call: str) -> None:
        """Refuse a call before attach(), and begin to watch what was unfrozen or added since the last step."""
        self._require_attached(call)
        for optimizer in self.attached():
            self.watcher.layouts.take_in_new(optimizer)

    def _require_attached(self, call: str) -> None:
        if not self._hooks:
            raise OrderError(f"{call}() before attach(): no optimizer is being observed. Call attach(optimizer) first.")

    def _refuse_measures_of_the_step(self, why: str) -> None:
        """Refuse measures whose g′ must be independent of the step, where all gradients make it."""
        for name, measure in self.watcher.measures.every.items():
            if measure.needs.step and measure.needs.independent:
                raise OrderError(
                    f"{name} needs a gradient that took no part in the step; {why}. Call gradients.independent() with "
                    "the loss of a second batch."
                )


def _trains(optimizer: object, parameters: Collection[int]) -> bool:
    """Return whether an optimizer trains any of the parameters that have these ids."""
    return isinstance(optimizer, Optimizer) and not ids(trained_by(optimizer)).isdisjoint(parameters)


def _remove(handles: Iterable[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()
