"""Noticing protection that is not there: parameters that nobody trains, or that nothing holds though something should.

All of it is legal, and some of it meant, so these are warnings: when a guard is attached, and at a task's first step.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from weakref import WeakKeyDictionary

from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from anchorhold.adapters import whole
from anchorhold.guard.memory import Memory
from anchorhold.guard.noticing.other_weights import warn_of_other_weights, warn_of_replaced_layers
from anchorhold.guard.noticing.telling import tell
from anchorhold.measures import FineTune


def warn_of_unowned(memory: Memory, owned: Collection[int]) -> None:
    """Warn of protected parameters that are trainable but that no attached optimiser moves.

    Args:
        memory: what the guard knows.
        owned: the ids of all parameters that attached optimisers train.
    """
    unowned = [name for name, p in memory.parameters.items() if p.requires_grad and id(p) not in owned]
    if unowned:
        tell(
            f"No attached optimiser trains {_and_others(unowned)}. Give attach() all optimisers at once; freeze what "
            "none trains, or leave it out of protect."
        )


def warn_of_parted_projections(memory: Memory, optimizers: int) -> None:
    """Warn if the gradient that a hold projects comes in parts, a step of one optimiser after another's."""
    if optimizers > 1 and (projecting := [hold.name for hold in memory.holds if hold.projects]):
        tell(
            f"The hold {projecting[0]!r} with {optimizers} optimisers: it projects the gradient of all that is "
            "trained, and each optimiser's step has a part of it, so that what comes out may still conflict with old "
            "samples. Give all parameters to one optimiser, in groups, or take Replay()."
        )


def warn_unless_anchored_is_trained(memory: Memory, owned: Collection[int]) -> None:
    """Warn if the penalty acts on nothing that moves, or on less than was consolidated."""
    here = [p for name, p in memory.parameters.items() if name in memory.anchor or name in memory.merged.names]
    if any(id(p) in owned for p in here):  # frozen ones may be thawed yet
        warn_of_gone(memory)
        return
    anchored = [*memory.anchor, *memory.merged_anchor]
    tell(
        f"The attached optimisers train other parameters than the {len(anchored)} consolidated ones (such as "
        f"{anchored[0]!r}), which are left out, or no longer in the model under their names: as long "
        "as that is so, the penalty holds nothing back. A guard of a base model does not hold an adapter, through "
        "which the network changes all the same: make the guard from the adapted model, after get_peft_model, "
        "with form='kronecker', which holds what the adapter adds to the weights, and consolidate it with proxy data."
    )


def warn_of_gone(memory: Memory) -> None:
    """Warn of parameters that were consolidated, and that the model no longer has by their names."""
    _tell_of_gone(memory, memory.parameters)


def warn_of_gone_in_the_penalty(memory: Memory, parameters: Mapping[str, nn.Parameter]) -> None:
    """Warn of those once before a penalty is added to a loss by hand, where there may be no step to look at.

    Args:
        memory: what the guard knows.
        parameters: the protected parameters that the model has now.
    """
    if memory.strength and not memory.steps:
        _tell_of_gone(memory, parameters)


def _tell_of_gone(memory: Memory, present: Mapping[str, nn.Parameter]) -> None:
    gone = [name for name in memory.anchor if name not in present and name not in memory.told_gone]
    memory.told_gone = (memory.told_gone - present.keys()) | frozenset(gone)  # what has come back may go again
    if gone:
        tell(
            f"The model no longer has {_and_others(gone)} under that name, so what was consolidated there is not held. "
            "If a layer was wrapped or renamed, make a guard from the model as it is now, and consolidate it with "
            "data; if it was taken away on purpose, call forget(name)."
        )


def warn_of_unloaded_adapters(memory: Memory) -> None:
    """Warn once of merged weights that were consolidated, in a model that has no adapter any more."""
    if memory.strength and not memory.told_gone >= memory.merged_anchor.keys():
        memory.told_gone |= memory.anchor.keys() | memory.merged_anchor.keys()
        tell(
            f"The model has no adapter any more that could hold {_and_others(sorted(memory.merged_anchor))} where "
            "they were when they were consolidated, so the penalty has nothing of them. If adapters were merged into "
            "the weights for good, put the next ones on (get_peft_model) and call guard.rebase(); to train the weights "
            "themselves, make a guard from the model as it is now, and consolidate it with data."
        )


def warn_of_fresh_adapters(memory: Memory) -> None:
    """Warn if adapters add nothing to weights, and did when they were consolidated."""
    then = {name for name, change in memory.merged_anchor.items() if bool(whole(change).any())}
    now = memory.merged.changes() if then else {}
    if then and not any(bool(whole(now[name]).any()) for name in then if name in now):
        tell(
            f"The adapters add nothing to {_and_others(sorted(then))}, and did when they were consolidated: they are "
            "pulled back to that. If what they had learned was merged into the weights for good (merge_and_unload), "
            "it would come on top of itself: call guard.rebase(), which counts from the weights as they are now."
        )


def warn_of_uncalled_adapters(memory: Memory, called: Collection[str]) -> None:
    """Warn of merged weights that nothing is known of, since nobody called their layers while data was looked at."""
    missed = [name for name in memory.merged.adapters if name not in called]
    if missed and any(ledger.measure.needs.data for ledger in memory.ledgers.values()):
        tell(
            f"The layers of {_and_others(missed)} were not called while importance was measured, so that it is 0 and "
            "nothing holds what their adapters add. If the data does not reach them, that is as it should be. If the "
            "model reads their weights past them, as fused kernels do, measure with the model as it is without those "
            "and load() what was found into a guard of this one; or give space='weights', which holds the adapters' "
            "own parameters."
        )


class Unheld:
    """Says at a task's first step, and where an optimiser gets further parameters, what of them nothing holds."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self._told: set[str] = set()
        self._file: str | None = None
        """What the state was loaded from, if no step was taken since."""

    def loaded(self, file: str) -> None:
        """Look at the next step whether the model has the weights that belong to a file, where those are known."""
        self._file = None if self.memory.steps else file

    def begin_task(self) -> None:
        """Look anew, whatever was told about the last task."""
        memory, file = self.memory, self._file
        self._told, self._file = set(), None
        if memory.strength and memory.is_anchored:
            warn_of_gone(memory)
            warn_of_fresh_adapters(memory)
            warn_of_replaced_layers(memory)
            if file is not None:
                warn_of_other_weights(memory, file)

    def look(self, owned: Mapping[str, nn.Parameter]) -> None:
        """Look at the parameters that an attached optimiser is about to move, and is asked to hold."""
        memory = self.memory
        if _EVERYTHING in self._told:
            return
        if memory.holds:
            self._look_at_holds()
            self._look_at_the_guards_own()
            self.look_at_the_strength()
            return
        if not memory.asks_to_hold:
            return
        if isinstance(memory.driving.measure, FineTune):
            return  # which is to hold nothing
        if not memory.is_anchored:
            if not memory.from_scratch:
                self._told.add(_EVERYTHING)
                tell(_NOTHING_YET.format(strength=memory.said_strength, measure=memory.driver))
            return
        largest = memory.largest_importance
        if not any(largest.values()):
            self._told.add(_EVERYTHING)
            tell(_NOTHING_MATTERS.format(measure=memory.driver))
            return
        self.look_at_the_strength()
        frozen = [name for name in owned if name in memory.left_frozen and name not in self._told]
        thawed = [name for name in frozen if not largest.get(name)]
        if thawed:
            self._told |= set(thawed)
            tell(_THAWED.format(names=_and_others(thawed)))

    def _look_at_holds(self) -> None:
        """Look whether any hold has something to keep; what it keeps, and how much of the model, is its own affair."""
        memory = self.memory
        if memory.from_scratch or not all(hold.waits(memory.tasks) for hold in memory.holds):
            return
        self._told.add(_EVERYTHING)
        tell(_HOLDS_WAIT.format(names=", ".join(hold.name for hold in memory.holds)))

    def _look_at_the_guards_own(self) -> None:
        """Look whether the guard's own hold, beside others that may keep what they keep, has anything to pull at."""
        memory = self.memory
        expected = memory.asks_to_hold and not memory.from_scratch and not isinstance(memory.driving.measure, FineTune)
        if expected and not memory.anchor and _EVERYTHING not in self._told:
            self._told.add(_EVERYTHING)
            tell(_NOTHING_OF_ITS_OWN.format(strength=memory.said_strength, measure=memory.driver))

    def look_at_the_strength(self) -> None:
        """Say once, where weights are held, that nobody has said how strongly."""
        memory = self.memory
        if isinstance(memory.driving.measure, FineTune) or not (memory.is_anchored and memory.strength_is_assumed):
            return
        if _UNSAID not in memory.told:
            memory.told.add(_UNSAID)
            tell(_UNSAID.format(measure=memory.driver))


_EVERYTHING = "*"
"""Stands for all parameters, where none is held."""

_NOTHING_YET = (
    "This guard holds nothing yet: no task has been consolidated, so {strength} has nothing to pull at. If "
    "the model is trained from scratch that is as it should be: Guard(..., from_scratch=True) says so. If it is "
    "a pretrained one, call consolidate(batches) before training, with a measure that looks at data, such as Fisher() "
    "or MAS(), and data that stands for what it knows; {measure} will know of this task at its end."
)

_NOTHING_OF_ITS_OWN = (
    "This guard holds nothing yet by {measure}: no task has been consolidated, so {strength} has nothing to pull "
    "at, and only the holds beside it act. Call consolidate(batches) before training, or say that this is meant: "
    "Guard(model, 'fine-tune', holds=[...]), or from_scratch=True for a model that has learned nothing yet."
)

_HOLDS_WAIT = (
    "This guard holds nothing yet: {names} keeps what a model was or had seen when a task was consolidated, and none "
    "has been. If the model is trained from scratch that is as it should be: Guard(..., from_scratch=True) says "
    "so. If it is a pretrained one, call consolidate(batches) before training, with data that stands for what it knows."
)

_NOTHING_MATTERS = (
    "{measure} has found that every weight has importance 0, so nothing is held, at any strength. Look at what was "
    "consolidated: outputs that do not depend on the protected parameters, labels that say nothing, steps that moved "
    "nothing."
)

_UNSAID = (
    "No strength was given to this guard, and {measure} holds with 1. Each measure's importances have a size of their "
    "own: where a strength was searched for, the best was 8 to 50,000 for EWC as a diagonal and 1 to 500 for SOS, so "
    "that with 1 next to nothing may be held. Give relative_strength=, whose unit is the mean importance (0.003 to "
    "0.03 to begin with), tolerance=, how much may be lost on inputs that guard.keep() is given, or strength=, 1.0 too "
    "if that is meant: docs/guides/how-strong.md has what was best where."
)

_THAWED = (
    "Frozen until the last task was consolidated, and trained now: {names}. Their importance is not known, so nothing "
    "holds them. If they have learned something, consolidate before they are thawed with a measure that looks at data, "
    "such as Fisher() or MAS(), and name them in protect (protect='*' for all parameters), which then covers frozen "
    "ones too; of new heads this is as it should be."
)


def _and_others(names: Sequence[str]) -> str:
    more = len(names) - 1
    return repr(names[0]) + (f" and {more} other protected parameter{'s' if more > 1 else ''}" if more else "")


_holders: WeakKeyDictionary[Optimizer, list[tuple[RemovableHandle, frozenset[int]]]] = WeakKeyDictionary()
"""The hooks that add a penalty's gradient to an optimiser's steps, with the ids of the parameters that each holds."""


def meet(optimizer: Optimizer, hook: RemovableHandle, protected: Iterable[int], *, hold: bool) -> None:
    """Enter a new hook, and warn if one that is still there holds any of the same parameters."""
    mine = frozenset(protected)
    others = [(handle, theirs) for handle, theirs in _holders.get(optimizer, []) if _is_live(handle)]
    if any(mine & theirs for _, theirs in others):
        tell(
            f"This {type(optimizer).__name__} is attached to another Guard, which protects some of the same "
            "parameters: measures here will see its penalty as part of the task's gradient. Call detach() on the other "
            "one, or make a new optimiser; to observe with several measures, give them to one: watch=[...]."
        )
    _holders[optimizer] = [*others, (hook, mine)] if hold else others


def _is_live(handle: RemovableHandle) -> bool:
    hooks = handle.hooks_dict_ref()
    return hooks is not None and handle.id in hooks
