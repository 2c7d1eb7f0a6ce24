"""Going back along the line to the anchor: by a share, until a tolerance is met, or both before a task ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from anchorhold.errors import ConfigurationError, OrderError, warn
from anchorhold.guard.core import Core
from anchorhold.guard.refreshing import refresh
from anchorhold.guard.retention.evaluate import look
from anchorhold.guard.rollback.averaged_adapters import AveragedAdapters, newcomers, newcomers_in_words
from anchorhold.guard.rollback.averaging import average_with_anchor, checked_way, move_to
from anchorhold.guard.rollback.weight_average import refuse_between_averages
from anchorhold.guard.stepping.attachment import Attachment
from anchorhold.retention import Retention
from anchorhold.retention.controller import checked_nats
from anchorhold.retention.way_back import PulledBack, furthest_within


class Rollback:
    """Move a guard's weights back towards their anchor, and know how far they last went.

    Args:
        core: what the guard knows.
        attachment: the optimizers that train the weights, and may stand between two averages of them.
    """

    def __init__(self, core: Core, attachment: Attachment) -> None:
        self.core = core
        self.attachment = attachment
        self.last: PulledBack | None = None
        """How far weights last went back to meet a tolerance."""

    def by_share(self, share: float) -> None:
        """Move weights to θ* + share·(θ − θ*)."""
        refuse_between_averages(self.attachment.attached())
        with self._put_back_if_refused():
            self.attachment.finish_pulls()
            average_with_anchor(self.core, share)

    def to_tolerance(self, given: float | None = None) -> PulledBack:
        """Move weights just so far that no kept set has lost more than a tolerance, by default the guard's own."""
        own = self._own_tolerance if given is None else checked_nats(given)
        if own is None:
            raise ConfigurationError("pull_back() without a tolerance: give one, guard.pull_back(0.02).")
        refuse_between_averages(self.attachment.attached())
        with self._put_back_if_refused(), self.attachment.watcher.calls.paused():
            self.attachment.finish_pulls()
            found = pull_back(self.core, own)
        # No step of the last task was seen, here or by whoever saved what was loaded.
        never = not (self.attachment.was_attached or self.core.task.steps or self.core.state.control.trace)
        found = replace(found, never_attached=never)
        if found.outcome == "cannot be met" or found.is_undone or found.single is not None:
            late = newcomers(self.core) if found.outcome == "cannot be met" else []
            warn(f"{found} But {newcomers_in_words(late)}" if late else str(found))
        self.last = found
        return found

    @contextmanager
    def before_the_end(self, share: float | None) -> Iterator[None]:
        """Go back as a task's end asks for, by a share and to the tolerance; if that end fails, nothing has moved.

        First of all weights are pulled for the steps that wait for it.
        """
        core = self.core
        # Without the sets that a state was saved with a task's end is refused.
        expected = core.state.kept or core.state.kept.expected
        to_tolerance = (
            core.state.tolerance is not None and core.state.is_anchored and bool(expected) and core.is_trained
        )
        self._refuse_to_move_what_was_watched(share, to_tolerance=to_tolerance)
        self._warn_of_what_nothing_held()
        if share is None and not to_tolerance and not core.task.waiting:
            yield
            return
        refresh(core)
        seen = self.last, dict(core.state.control.latest), core.state.control.at
        try:
            with self._put_back_if_refused(always=True):
                self.attachment.finish_pulls()
                if share is not None:
                    self.by_share(share)
                if to_tolerance:
                    self.to_tolerance()
                yield
        except BaseException:
            # What was said of a way that was not gone after all.
            self.last, core.state.control.latest, core.state.control.at = seen
            raise

    @contextmanager
    def _put_back_if_refused(self, *, always: bool = False) -> Iterator[None]:
        """Put weights back where anything is raised here, and the steps that wait for a pull.

        Args:
            always: whether to keep the weights also where no step waits, and whoever moves them puts them back.
        """
        core, waiting = self.core, dict(self.core.task.waiting)
        moved = core.runtime.parameters.values() if always or waiting else ()
        before = [(parameter, parameter.detach().clone()) for parameter in moved]
        try:
            yield
        except BaseException:
            with torch.no_grad():
                for parameter, own in before:
                    parameter.copy_(own)
            core.task.waiting = waiting
            raise

    @property
    def _own_tolerance(self) -> float | None:
        return None if self.core.state.tolerance is None else self.core.state.tolerance.nats

    def _retention(self) -> Retention:
        with self.attachment.set_aside():
            return look(self.core)

    def _refuse_to_move_what_was_watched(self, share: float | None, *, to_tolerance: bool) -> None:
        """Refuse to end a task elsewhere than where micro-batches were watched."""
        if self.core.task.watched is None:
            return
        if share is not None:
            first, why = f"average({share!r})", f"share={share!r}"
        elif to_tolerance and not self._retention().is_within:
            first, why = "pull_back()", f"tolerance={self._own_tolerance!r}, which is passed"
        else:
            return
        raise OrderError(
            f"consolidate() after gradients.microbatches(), with {why}: it would first move the weights back, away "
            f"from where micro-batches were watched. Nothing was moved. Call {first} yourself, then "
            "gradients.restart_task(), gradients.microbatches() and consolidate()."
        )

    def _warn_of_what_nothing_held(self) -> None:
        """Say so if a tolerance was passed in a task in which there was no anchor to go back to."""
        core = self.core
        if core.state.tolerance is None or core.state.is_anchored or not (core.state.kept and core.task.steps):
            return
        found = self._retention()
        if not found.is_within:
            warn(
                f"{found.kl:.3g} nats are lost of the kept set {found.worst.name!r}, and the tolerance is "
                f"{found.tolerance:g}: nothing was held in this task, and there are no weights from before to go back "
                "to. Call guard.consolidate(old_batches) before training starts."
            )


@torch.no_grad()
def pull_back(core: Core, tolerance: float) -> PulledBack:
    """Move weights back towards the anchor, to the furthest point at which no kept set has lost more than a tolerance.

    If that cannot be met, or anything goes wrong, they stay where they are.
    """
    state, control, form = core.state, core.state.control, core.state.driving.form
    held, trace = checked_way(core, "pull_back()"), control.trace
    state.kept.refuse_unless_complete()
    if not state.kept:
        look(core)  # says that there are none
    own: dict[str, Tensor] = {name: parameter.detach().clone() for name, parameter in held.items()}
    adapters = AveragedAdapters(core, held)

    def lost_at(share: float) -> float:
        move_to(core.state, held, own, share, adapters.between(own, share))
        return look(core).kl

    share = 1.0
    try:
        # Of the task that was trained last, which may have been taken in since.
        found = furthest_within(lost_at, tolerance, control.most if trace else None)
        share = found.share
    finally:
        move_to(core.state, held, own, share, adapters.between(own, share))
    left = look(core)
    control.latest = {each.name: each.kl for each in left.sets}
    control.at = core.task.most_steps
    if state.tolerance is not None:
        tightened = bool(trace) and trace[-1].strength > trace[0].strength
        found = replace(found, start=state.tolerance.start_in(form), tightened=tightened)
    # The set of whose kind most may be lost, by two standard errors, unless that is the worst one.
    most = max(left.sets, key=lambda each: each.kl + 2 * (each.error or 0.0))
    least_sure = None if most.error is None or most.name == left.worst.name else (most.name, most.kl, most.error)
    return replace(
        found,
        is_diagonal=form.elementwise,
        at_first=trace[0].kl if trace else None,
        error=left.worst.error,
        least_sure=least_sure,
        single=next((each.name for each in left.sets if each.error is None), None),
        is_unproven=state.kept[left.worst.name].is_unproven,
    )
