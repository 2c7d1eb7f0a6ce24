"""Warn of training that goes past the guard: steps that no attached optimizer takes.

A guard acts when an attached optimizer's ``step()`` is called. An optimizer that was never attached, one that steps
within ``backward()``, a copy of model and optimizer: all of them train without it, and nothing would look wrong. So at
first it looks twice: at every optimizer that takes a step in this process, and at whether weights that get gradients
move while no step was seen.
"""

import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle, unserializable_hook

from anchorhold.errors import warn
from anchorhold.guard.monitor import Monitor, is_capturing
from anchorhold.guard.stepping.optimizers.accepted import IN_PIECES, PENALTY_IN_LOSS, ids, trained_by
from anchorhold.guard.stepping.training_calls import out_of_graphs
from anchorhold.tensors.sharding import is_trained_in_pieces, local

if TYPE_CHECKING:
    from anchorhold.guard.core import Core

PROBES = 8
"""Parameters that are looked at."""
ELEMENTS = 64
"""Elements of each."""
PATIENCE = 64
"""Steps after which nobody looks any more, though none of them has moved what is looked at."""
MOVES = 16
"""From so many backward passes to the next may weights have moved before it is told, as long as no step has moved them.

Some training moves them for a while on purpose, and back before its step: SAM, adversarial and noisy weights.
"""


class UnseenSteps(Monitor):
    """Look at the first steps of a training, until one is seen to move weights."""

    name = "unseen-steps"

    def __init__(self, core: "Core") -> None:
        super().__init__(core)
        self.attached: WeakSet[Optimizer] = WeakSet()
        """The optimizers that the guard is attached to."""
        self._met: WeakSet[Optimizer] = WeakSet()
        self._warned = False
        self.within_a_step = False
        """Whether an attached optimizer is in the middle of one."""
        self._probes: list[_Probe] = []
        self._left = 0

    def watch(self, optimizers: Sequence[Optimizer], trained: Mapping[str, nn.Parameter]) -> None:
        self.attached = WeakSet(optimizers)
        self._warned = False
        self.within_a_step = False
        self._end_probing()
        chosen = [(name, p) for name, p in trained.items() if p.requires_grad and p.numel()]
        apart = max(1, len(chosen) // PROBES)
        self._probes = [_Probe(self, name, parameter) for name, parameter in chosen[::apart][:PROBES]]
        self._left = PATIENCE
        with _lock:
            _watching.add(self)
            if not _hooked:
                _hooked.append(register_optimizer_step_pre_hook(out_of_graphs(_look_at)))

    def release(self) -> None:
        self.attached = WeakSet()
        self._end_probing()
        with _lock:
            _watching.discard(self)

    def enter_step(self) -> None:
        """Remember weights as they are before the step."""
        self.within_a_step = True
        for probe in self._probes:
            probe.look()

    def abandon_step(self) -> None:
        self.within_a_step = False

    def leave_step(self, *, blind: bool) -> None:
        """Look whether the step has moved weights: if it has, training goes through the guard."""
        self.within_a_step = False
        if not self._probes:
            return
        moved = [probe.name for probe in self._probes if probe.has_moved()]
        self._left -= 1
        if moved or self._left <= 0:
            self._end_probing()
        if moved and blind:
            warn(_WITHOUT_GRADIENT.format(name=moved[0]))

    def after_step(self) -> None:
        """Take weights that holds have moved as they are now: that is no training that goes past the guard."""
        for probe in self._probes:
            probe.follow()

    def stepped_by(self, optimizer: Optimizer) -> None:
        """Look at an optimizer that is about to take a step, and that no guard is attached to."""
        # What an attached one calls within its own step is part of that.
        if self.within_a_step or optimizer in self._met or any(inner in self.attached for inner in _inside(optimizer)):
            return
        self._met.add(optimizer)
        if self._warned:
            return
        protected = {id(p): name for name, p in self.core.runtime.parameters.items() if p.requires_grad}
        passing = [protected[key] for key in ids(trained_by(optimizer)) if key in protected]
        if passing:
            self._warned = True
            self._end_probing()
            warn(_not_attached(optimizer, min(passing), len(passing), list(self.attached)))
        elif self.core.state.is_anchored and _trains_pieces(optimizer, self.core.runtime.parameters.values()):
            self._warned = True
            warn(_IN_PIECES.format(kind=type(optimizer).__name__))
        elif not self.core.task.steps and any(_is_copy(optimizer, known) for known in self.attached):
            warn(_COPY.format(kind=type(optimizer).__name__))

    def moved_unseen(self, name: str) -> None:
        """Say that weights move from one backward pass to the next, and no step is seen."""
        self._end_probing()
        warn(_WITHIN_BACKWARD.format(name=name))

    def _end_probing(self) -> None:
        for probe in self._probes:
            probe.handle.remove()
        self._probes = []


class _Probe:
    """Some elements of a parameter, and a look at them whenever it gets a gradient."""

    def __init__(self, unseen: UnseenSteps, name: str, parameter: nn.Parameter) -> None:
        self.name = name
        self._unseen = weakref.ref(unseen)
        self._parameter = weakref.ref(parameter)
        self._seen: Tensor | None = None
        self._at_gradient: Tensor | None = None
        self.moved = 0
        me = weakref.ref(self)

        def at_gradient(_gradient: Tensor) -> None:
            probe = me()
            if probe is not None:
                probe.note_gradient()

        # A parameter that is sent to another process leaves its hooks behind, and need not say so of this one.
        self.handle: RemovableHandle = parameter.register_hook(unserializable_hook(at_gradient))

    def look(self) -> None:
        """Remember the elements as they are before a step."""
        self._seen = self._elements()

    def has_moved(self) -> bool:
        """Whether a step has moved them."""
        now, before = self._elements(), self._seen
        return now is not None and before is not None and not torch.equal(before, now)

    def follow(self) -> None:
        """Compare with what they are now, at the next gradient, if none but the guard has moved them since the last."""
        if self._at_gradient is not None and self._seen is not None and torch.equal(self._at_gradient, self._seen):
            self._at_gradient = self._elements()

    def note_gradient(self) -> None:
        """Compare them with what they were at the last gradient."""
        unseen = self._unseen()
        if unseen is None or unseen.within_a_step:
            return
        now, before = self._elements(), self._at_gradient
        self._at_gradient = now
        if now is None or before is None or torch.equal(before, now):
            return
        self.moved += 1
        if self.moved >= MOVES:
            unseen.moved_unseen(self.name)

    def _elements(self) -> Tensor | None:
        parameter = self._parameter()
        if parameter is None or is_capturing():
            return None
        own = local(parameter.detach()).reshape(-1)
        return own[:: max(1, own.numel() // ELEMENTS)].clone()


_lock = threading.Lock()
_watching: WeakSet[UnseenSteps] = WeakSet()
_hooked: list[RemovableHandle] = []
"""The hook by which guards see every optimizer's steps: a process has one."""


def _look_at(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    with _lock:
        watching = list(_watching)
    if not any(optimizer in unseen.attached for unseen in watching):
        for unseen in watching:
            unseen.stepped_by(optimizer)


def _is_copy(optimizer: Optimizer, attached: Optimizer) -> bool:
    """Whether an optimizer was copied, and from one like this."""
    # torch sets it when an optimizer is made, and neither copies nor pickles it.
    made = "_warned_capturable_if_run_uncaptured" in vars(optimizer)
    alike = [p.shape for p in trained_by(optimizer)] == [p.shape for p in trained_by(attached)]
    return not made and type(optimizer) is type(attached) and alike


def _trains_pieces(optimizer: Optimizer, protected: Iterable[Tensor]) -> bool:
    """Whether an optimizer seems to be the one inside DeepSpeed's ZeRO that trains the pieces of these parameters."""
    flat = all(parameter.ndim == 1 for parameter in trained_by(optimizer))
    return flat and any(is_trained_in_pieces(parameter) for parameter in protected if parameter.requires_grad)


def _inside(optimizer: Optimizer) -> list[Optimizer]:
    """Return the optimizers that one wraps, as SAM does its base, or several side by side."""
    held = list(vars(optimizer).values())
    held += [inner for value in held if isinstance(value, list | tuple) for inner in value]
    return [value for value in held if isinstance(value, Optimizer)]


def _not_attached(optimizer: Optimizer, name: str, count: int, attached: list[Optimizer]) -> str:
    others = f" and {count - 1} other protected parameters" if count > 1 else ""
    around = next((known for known in attached if optimizer in _inside(known)), None)
    what = (
        f"The attached {type(around).__name__} lets it do so outside its own step(), as SAM does in second_step(): "
        f"call step(closure), or attach the {type(optimizer).__name__}."
        if around is not None
        else "Call guard.attach(optimizer) with every optimizer that trains protected parameters, each new one too; "
        "guard.detach() if this training is not to be held, or if you add the penalty yourself."
    )
    whose = "is not attached" if attached else "the guard that has consolidated them is attached to no optimizer"
    return (
        f"This {type(optimizer).__name__} takes a step on {name!r}{others} and {whose}: what it does is neither "
        f"measured nor held. {what}"
    )


_COPY = (
    "This {kind} is a copy of one that a guard is attached to, and trains copies of its parameters, while those of the "
    "guard's own model have taken no step: a guard does not follow copies, so nothing is held here. Make one for the "
    "copied model: copy.deepcopy((model, optimizer, guard)) copies all three together; then call attach(optimizer) on "
    "the copied guard. If the copy is to be trained without one, to compare, this is as it should be."
)

_IN_PIECES = "This {kind} takes a step on what is protected, and nothing holds it. " + f"{IN_PIECES} {PENALTY_IN_LOSS}"

_WITHOUT_GRADIENT = (
    "A step has moved the weights {name!r} though no protected parameter had a gradient: measures along the path (SI, "
    "SOS) see nothing of such steps, and end with importances of 0. Use a measure that looks at data, such as Fisher() "
    "or MAS()."
)

_WITHIN_BACKWARD = (
    "The weights {name!r} move from one backward pass to the next, and no step of an attached optimizer has moved "
    "them: they are changed within backward() (LOMO, optimizers in gradient hooks) or by hand, so nothing is measured "
    "or held. Train with an optimizer whose step() comes after backward(), and attach it; with SAM, call step(closure) "
    "or attach its base optimizer."
)
