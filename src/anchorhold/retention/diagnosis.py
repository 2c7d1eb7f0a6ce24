"""What is said of a tolerance: whether it was met, and why it was not, or why so little of it was used.

One function says it of where a task ended, for ``pull_back()`` and ``consolidate()`` alike, and another of where a task
begins: both by what was measured, so that they cannot name two causes of one state.
"""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anchorhold.retention.way_back import PulledBack

NEARLY = 0.8
"""The part of a tolerance that counts as all of it."""
MOST = 0.5
"""The part of a tolerance from which it is said, before a task, that earlier ones have used it."""
LEAST = 1 / 30
"""The part of a start that is advised at least: from hardly any loss it cannot be told how much weaker is right."""
LIKE_NONE, LIKE_NONE_AT_MOST = 0.1, 0.01
"""The part of a tolerance, and the nats, that a set from a file may differ by from the model that it was kept with: 16
bits in the place of 32 make less."""
ROUNDED = 1e-3
"""Nats that are put down to rounding however small a tolerance is."""
FAR = 0.5
"""The share of what was learned that a way back has to take for a form to be named that needs less of one."""

_ANEW = (
    "What is lost counts from when a set was kept, over all tasks since. Allow more, each task to come a part of its "
    "own, as by guard.tolerance = {nats:g} * k before the k-th; or keep the inputs anew with the model of now "
    "(guard.kept.drop(name), guard.keep(inputs, name)), so that each task counts for itself."
)
_CHANGED = (
    "weights were changed since the last task ended, as by a head that was initialised anew, or what is not protected "
    "has changed, such as running statistics of batch norms"
)
_OF_ANOTHER = "the set, which came from a file, was kept with another model"
_UNSURE = (
    "Other inputs {like} may have lost from {low} to {high}, by how much the kept ones differ (two standard "
    "errors): keep more of them where that matters."
)
_SINGLE = (
    "The kept set {name!r} is a single sample, which tells nothing of others of its kind: keep a few hundred, or a "
    "long text in pieces."
)
_NEVER = (
    "Training never came near it: there was no more to lose, or the hold was too strong for so few steps. If too "
    "little of the new is learned, {weaker}, or train for longer."
)
_LET_GO = (
    "what is new asked for no more in the end, or the hold was loosened too late. If too little of the new is "
    "learned, {weaker}, or train for longer."
)
_TIGHTENED = (
    "the strength ended above the one that it began with, since what was lost early made it hold harder than the end "
    "asked for. If too little of the new is learned, {weaker}."
)
_NEVER_ATTACHED = (
    "this guard was never attached to an optimizer, so that no step was held, unless guard.penalty() was part of the "
    "loss. Call guard.attach(optimizer) before training."
)
_ROTATED = 'form="rotated", which on digits learned more for the same loss than a diagonal at any strength or start'


def diagnosis(found: "PulledBack") -> str:
    """Return how a tolerance was met where a task ended, or why not, and what to do."""
    if found.outcome == "cannot be met":
        assert found.nearest is not None
        share, least = found.nearest
        return (
            f"The tolerance of {found.tolerance:g} nats cannot be met: {found.kl:.3g} are lost, {least:.3g} at the "
            f"nearest point of the way back to the anchor (share {share:g}); nothing was moved. {_why_beyond(found)}"
        )
    if found.outcome == "pulled back":
        return (
            f"Pulled back to {found.share:.3f} of the way from the anchor: {found.kl:.3g} nats are lost in place of "
            f"{found.kl_before:.3g}, with a tolerance of {found.tolerance:g}.{_far(found)}{_unsure(found)}"
        )
    within = f"{found.kl:.3g} nats are lost, within the tolerance of {found.tolerance:g}."
    return f"{within}{_unused(found)}{_unsure(found)}"


def is_of_another(kl: float, tolerance: float | None) -> bool:
    """Whether a model from which nothing can have been lost is not the one that a set was kept with."""
    share = math.inf if tolerance is None else LIKE_NONE * tolerance
    return kl > max(ROUNDED, min(share, LIKE_NONE_AT_MOST))


def of_another_model(name: str, kl: float, tolerance: float | None) -> str:
    """Return what to say of a set from a file that is not of the model that it is loaded beside.

    Args:
        name: the kept set.
        kl: how far predictions are from those that were kept, though no step was taken since the first consolidation.
        tolerance: how much may be lost, where that was said.
    """
    left = "" if tolerance is None else f", and leaves {max(0.0, tolerance - kl):.2g} of the tolerance of {tolerance:g}"
    return (
        f"The kept set {name!r} came from a file, and this model's predictions differ by {kl:.3g} nats from those in "
        "it, though it has taken no step since the guard's first consolidate(): the set was kept with another model, "
        f"or this one was trained, quantised or changed since. That counts as lost from the start{left}. Load the "
        "weights that the set was kept with, or keep its inputs anew with the model of now "
        f"(guard.kept.drop({name!r}), guard.keep(inputs, {name!r})); leave it so if that much was lost before, and is "
        "to count."
    )


def used_before(name: str, kl: float, tolerance: float, at_last_end: float | None, *, is_unproven: bool = False) -> str:
    """Return what to say of a task that begins with most of a tolerance used.

    Args:
        name: the kept set that has lost most.
        kl: what it has lost before the first step.
        tolerance: how much may be.
        at_last_end: what was lost when the task before ended, where that was looked at.
        is_unproven: whether that set came from a file, and may be of another model.
    """
    left = f"it leaves {max(0.0, tolerance - kl):.2g} to this task"
    used_up = at_last_end is not None and kl <= 1.1 * at_last_end
    why = "Earlier tasks have used it up" if used_up else f"Earlier tasks have used it up, or {_CHANGED}"
    why += f", or {_OF_ANOTHER}" if is_unproven else ""
    return (
        f"Before the first step of this task, predictions on the kept set {name!r} differ by {kl:.3g} nats from those "
        f"that were kept, and the tolerance is {tolerance:g}: {left}. {why}. {_anew(tolerance)}"
    )


def measured_from(name: str, shared: int, count: int) -> str:
    """Return what to say of a set whose inputs importance was measured from, too; ``results/tolerance-kept-twice.md``.

    Args:
        name: the kept set.
        shared: how many of its inputs were measured from.
        count: of how many.
    """
    return (
        f"{shared} of {count} inputs of the kept set {name!r} are ones that importance was measured from. The hold "
        "keeps what the model says of those best, so that others of their kind lose more than they show: on digits 1.2 "
        "times what they lose where unseen inputs are kept, and up to 1.5 times the tolerance. Keep inputs that were "
        "neither trained on nor given to consolidate()."
    )


def never_binds(name: str, classes: int, tolerance: float) -> str | None:
    """Return what to say of a tolerance above what losing everything costs: the logarithm of the number of classes."""
    everything = math.log(classes)
    if tolerance < everything:
        return None
    return (
        f"A tolerance of {tolerance:g} nats allows everything to be forgotten: on the kept set {name!r}, with "
        f"{classes} classes, a model that finds all of them as likely is {everything:.4g} nats away at most, and only "
        "one that is sure of wrong ones is farther. Give a part of that, such as 0.05."
    )


def _anew(tolerance: float) -> str:
    return _ANEW.format(nats=tolerance)


def _began_used(found: "PulledBack") -> bool | None:
    """Whether most of a tolerance was used before the task; ``None`` where nobody looked."""
    return None if found.at_first is None else found.at_first > MOST * found.tolerance


def _why_beyond(found: "PulledBack") -> str:
    """Say why also the anchor has lost more than a tolerance."""
    began_used = _began_used(found)
    other = f", or {_OF_ANOTHER}" if found.is_unproven else ""
    if began_used is None:
        return f"Earlier tasks have used it up, or {_CHANGED}{other}. {_anew(found.tolerance)}"
    if began_used:
        return f"{found.at_first:.3g} were lost before the first step of this task{other}. {_anew(found.tolerance)}"
    return (
        "Before the first step of this task it was met: what is not protected, such as a head or running statistics, "
        "has changed since. Protect it (protect=), freeze it, or allow more."
    )


def _far(found: "PulledBack") -> str:
    """Say why so much of what was learned had to go, where that is so."""
    if found.share >= FAR:
        return f" But {_NEVER_ATTACHED}" if found.never_attached else ""
    undone = "So nearly all that was learned is undone: " if found.is_undone else "Most of what was learned had to go: "
    if _began_used(found):
        return f" {undone}{found.at_first:.3g} were lost before the first step of this task. {_anew(found.tolerance)}"
    if found.never_attached:
        return f" {undone}{_NEVER_ATTACHED}"
    other = f", or take {_ROTATED}" if found.is_diagonal else ""
    before = "" if found.at_first is not None else ", or earlier tasks have used it up"
    return f" {undone}the tolerance is too small for this task, held as it was{before}. Allow more{other}."


def _unsure(found: "PulledBack") -> str:
    """Say what the kept inputs leave open, where that is much."""
    single = "" if found.single is None else f" {_SINGLE.format(name=found.single)}"
    if not found.left_open:
        return single
    like, kl, error = found.left_open[0]
    low, high = max(0.0, kl - 2 * error), kl + 2 * error
    return f" {_UNSURE.format(like=like, low=f'{low:.2g}', high=f'{high:.2g}')}{single}"


def _unused(found: "PulledBack") -> str:
    """Say why less is lost than was allowed, where that is so."""
    if found.never_attached:
        return f" But {_NEVER_ATTACHED}"
    if found.is_diagonal:  # one that begins weaker hardly learns more
        weaker = f"take {_ROTATED}"
    elif found.start is None:
        weaker = "hold less"
    else:
        start = weaker_start(found.start, found.kl / found.tolerance)
        weaker = f"begin weaker, with Tolerance({found.tolerance:g}, start={start:g})"
    if not found.was_touched:
        return f" {_NEVER.format(weaker=weaker)}"
    if found.kl >= NEARLY * found.tolerance:
        return ""
    most = found.most_during_training or 0.0
    where = f", where a look at some of the kept inputs in training had found {most:.3g}" if most > found.kl else ""
    why = (_TIGHTENED if found.tightened else _LET_GO).format(weaker=weaker)
    return f" That is {found.kl / found.tolerance:.0%} of it{where}: {why}"


def weaker_start(start: float, used: float) -> float:
    """Return where to begin so that about all of a tolerance is used, in one digit.

    In few steps the strength stays near where it began, so that what was lost says how much weaker it may be. Of the
    powers 1, 1.5 and 2 it was 1.5 that learned most in runs of 30 to 300 steps on digits; a tenth of the start, however
    much was used, holds too little where that was most of it: ``results/tolerance-weaker-starts.md`` compares.

    Args:
        start: where the run began.
        used: the part of its tolerance that was lost at its end.
    """
    return float(f"{start * max(used**1.5, LEAST):.1g}")
