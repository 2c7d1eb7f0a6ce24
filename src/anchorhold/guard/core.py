"""What a guard is made of: the user's options, a state that is saved, that of the current task, and the runtime."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.parallel import DistributedDataParallel

from anchorhold.adapters import Change
from anchorhold.engine.phi import Phi
from anchorhold.engine.reductions import Block, Reduction
from anchorhold.errors import Warned
from anchorhold.forms import Form, Matrix
from anchorhold.guard.arguments.selection import Selection
from anchorhold.guard.arguments.strengths import USUAL, PatternStrengths
from anchorhold.guard.batch_norm.frozen_statistics import FrozenStatistics, with_statistics
from anchorhold.guard.distributed.gathering import (
    Gather,
    OwnParts,
    gathers_layers,
    refuse_unless_copies_agree,
    those_with_parts,
)
from anchorhold.guard.distributed.ranks import ALONE, Ranks, ddp_wrapper, ranks_of
from anchorhold.guard.distributed.sharded_matrices import as_parameters_are
from anchorhold.guard.ledger import Ledger, diagonal_of
from anchorhold.guard.microbatches.gradient_sums import Watched
from anchorhold.guard.monitor import GONE, REPLACED
from anchorhold.guard.task_classes import HeadGradients
from anchorhold.holds import Held, Hold
from anchorhold.holds.base import TaskData, TrainingCall
from anchorhold.retention import KeptSets, Tolerance
from anchorhold.retention.controller import Control
from anchorhold.retention.kept_set import SampleMarks
from anchorhold.settings import plain
from anchorhold.spaces import SPACES, Space, SpaceName
from anchorhold.tensors.names import named_parameters
from anchorhold.tensors.sharding import (
    is_sharded,
    like_parameter,
    local,
    refuse_flattened,
    refuse_partitioned,
    sharded_among,
)
from anchorhold.tensors.storage import Storage

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

AnchorKind = Literal["last", "mean"]

NO_DATA = TaskData()


def has_linear_term(form: Form, anchor: AnchorKind, *, gradient_term: bool) -> bool:
    """Return whether a hold has a linear term; the anchor of the diagonal is the mean itself."""
    return anchor == "mean" and (gradient_term or not form.elementwise)


T = TypeVar("T")
Origin = Literal["open", "default", "given", "restored"]


@dataclass(frozen=True)
class Setting(Generic[T]):
    """A setting, and where its value is from.

    One that is open may still be decided: by the optimizers that are attached, or by adapters that come before anything
    is held.
    """

    value: T
    origin: Origin

    @property
    def is_open(self) -> bool:
        """Return whether it may still be decided."""
        return self.origin == "open"

    @property
    def is_given(self) -> bool:
        """Return whether the user gave it, rather than left it to what there is, or to what a state has."""
        return self.origin == "given"

    def having(self, value: T) -> "Setting[T]":
        """Return the setting with another value, from where it was."""
        return Setting(value, self.origin)

    def closed(self) -> "Setting[T]":
        """Return the setting with its value, which nothing decides any more."""
        return Setting(self.value, "default") if self.is_open else self


EVERY_STEP = Setting(1, "default")


class Waiting(NamedTuple):
    """The steps of a parameter that an implicit hold has yet to pull back."""

    steps: int
    """How many."""
    way: float
    """Σ c·h over them, with the strength and the effective rate of each."""


@dataclass(frozen=True)
class Options:
    """What the user asked for when the guard was made. None of it changes."""

    selection: Selection
    """Which parameters are protected."""
    storage: Storage
    """The precision and the device of what is kept."""
    holds: list[Hold]
    """What pulls beside the quadratic hold, each with a state of its own."""
    gather: Gather | None = None
    """What is gathered at once of a sharded model that is measured from data; ``None`` decides by what there is."""
    anchor_kind: AnchorKind = "last"
    """What the hold is centred at: the last solution, or the mean of all tasks'; see ``anchors.py``."""
    gradient_term: bool = False
    """Whether the gradients of the tasks' own losses are part of the hold."""
    from_scratch: bool = False
    """Whether the first task begins from nothing, so that nothing has to be held in it."""
    batch_norm: str | None = None
    """What is done about running statistics: ``"freeze"``, ``"fold"``, or nothing."""
    named_form: Form | None = None
    """The form of the driving measure where its name alone was given, and its settings are left to what a state has."""


@dataclass
class GuardState:
    """What a guard knows of all tasks so far. It is saved."""

    ledgers: dict[str, Ledger]
    """The account of every measure, by name."""
    driver: str
    """The name of the measure that drives the penalty."""
    strength: float
    """c; of several by pattern the largest, and 0 while an exchange rate waits for the first consolidation."""
    decay: float
    """γ, by which a total is multiplied before a task is added."""
    asked: Setting[str | None]
    """How strongly the guard was asked to hold when it was made, or the one whose state it has, in words."""
    space: Setting[SpaceName]
    """What is held of adapters: their own parameters, or the weights that they are merged with."""
    implicit: Setting[bool | None]
    """Whether the quadratic hold acts after the step instead of joining the gradient; ``None`` until decided."""
    pull_every: Setting[int] = EVERY_STEP
    """After how many steps an implicit hold acts, each time for all of them at once."""
    exchange_rate: float | None = None
    """κ, where c is κ/(2T)."""
    tokens: list[float] = field(default_factory=list)
    """T of each task, the scored tokens in a sample, as its importance counts in the total. With an exchange rate that
    is the first one's, by which others are scaled; fewer than ``tasks`` where some T is not known."""
    tolerance: Tolerance | None = None
    """How much may be lost of what is kept, which the strength follows."""
    control: Control = field(default_factory=Control)
    """Where following is at."""
    anchor: dict[str, Tensor] = field(default_factory=dict)
    """θ*, the weights after the last consolidated task, or their mean over all tasks."""
    merged_anchor: dict[str, Change] = field(default_factory=dict)
    """What adapters added to weights after the last consolidated task, by weight, where those are held."""
    linear_term: dict[str, Tensor] = field(default_factory=dict)
    """r, the linear term of the sum of all tasks' penalties at θ*, where that is not its centre."""
    tasks: int = 0
    """How many tasks were consolidated."""
    is_as_given: bool = False
    """Whether the one task so far was consolidated here and before any step: the anchor is the model as it came."""
    left_frozen: frozenset[str] = frozenset()
    """The parameters that were left out of the last consolidation because they were frozen."""
    labels: frozenset[int] = frozenset()
    """The labels of all samples that tasks were measured with, where each had one."""
    frozen_norms: frozenset[str] = frozenset()
    """The batch norms whose statistics are to stay as they are."""
    folded_norms: dict[str, str] = field(default_factory=dict)
    """The batch norms that are held together with a layer, by name, each with the layer that it follows."""
    kept: KeptSets = field(default_factory=KeptSets)
    """Inputs by which it is seen what the model still knows; a file has their marks alone."""
    measured_from: SampleMarks = field(default_factory=SampleMarks)
    """By checksums, the samples that tasks' importance was measured from, to compare with those that are kept."""

    @property
    def is_anchored(self) -> bool:
        """Return whether there is anything that weights are held to."""
        return bool(self.anchor or self.merged_anchor)

    @property
    def driving(self) -> Ledger:
        """The account of the measure that drives the penalty."""
        return self.ledgers[self.driver]

    @property
    def tokens_of_all(self) -> float | None:
        """T of the total: the mean over its tasks by how much each still counts; ``None`` where it is not known.

        A nat of a token is Σ_k S_k/Σ_k T_k where S_k is the sum of a task's sample, so lengths add up as sums do.
        """
        if not self.tokens or len(self.tokens) != self.tasks:
            return None
        if self.driving.measure.total == "replace" or len(set(self.tokens)) == 1:
            return self.tokens[-1]
        decay = self.driving.decayed(self.decay)
        counts = [math.pow(decay, age) for age in reversed(range(len(self.tokens)))]
        return sum(count * tokens for count, tokens in zip(counts, self.tokens, strict=True)) / sum(counts)

    @property
    def strength_so_far(self) -> float:
        """c, the largest of several; 0 where it follows a tolerance and no step was held yet."""
        return 0.0 if self.tolerance is not None and self.control.log_start is None else self.strength

    @property
    def asks_to_hold(self) -> bool:
        """Whether weights are to be held to their anchor, once there is one."""
        return bool(self.strength) or self.exchange_rate is not None

    @property
    def strength_is_assumed(self) -> bool:
        """Whether the strength is the usual one and this guard was given none.

        A state does not tell whether the 1 in it was somebody's, so one that came with a state counts as nobody's.
        """
        unsaid = self.tolerance is None and self.exchange_rate is None and self.driving.strengths is None
        return unsaid and not self.asked.is_given and self.asked.value is None and self.strength == USUAL

    @property
    def strength_text(self) -> str:
        """The strength as it was asked for, or what it follows."""
        if self.tolerance is not None:
            return f"tolerance={self.tolerance.nats:g}"
        if self.exchange_rate is not None:
            return f"exchange_rate={self.exchange_rate:g}"
        strengths = self.driving.strengths
        return f"strength={self.strength:g}" if strengths is None else f"strength={strengths.times(self.strength)}"

    @property
    def pulled_after(self) -> bool:
        """Whether there is a quadratic hold, and it acts after the step."""
        return bool(self.implicit.value and self.anchor and self.strength)

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        """What identifies every measure in a saved state."""
        return {name: plain(name, ledger.measure.settings()) for name, ledger in self.ledgers.items()}

    def running(self) -> list[dict[str, Tensor]]:
        """Return the running states of all measures, each by parameter."""
        return [tensors for ledger in self.ledgers.values() for tensors in ledger.running.values()]


@dataclass
class TaskState:
    """What a guard knows of the current task. It is saved, and ends with the task."""

    start: dict[str, Tensor] = field(default_factory=dict)
    """θ(0), each parameter just before its first step of the task: after any re-initialisation, so not θ*."""
    steps: dict[str, int] = field(default_factory=dict)
    """How many steps each parameter has taken; those during which it was frozen are none."""
    waiting: dict[str, Waiting] = field(default_factory=dict)
    """The steps that were taken since the hold's last pull, where it does not act after each of them."""
    head: HeadGradients = field(default_factory=HeadGradients)
    """What the output layer's gradients say about the classes of the task."""
    watched: Watched | None = None
    """What micro-batches have shown since the last consolidation, without a step."""
    mark: dict[str, list[float]] = field(default_factory=dict)
    """Some of the weights that a loaded state was saved with, until they were compared with the model's."""

    @property
    def most_steps(self) -> int:
        """Return how many steps the parameter has taken that took most."""
        return max(self.steps.values(), default=0)


class Measured(NamedTuple):
    """How a task was measured."""

    tasks: int
    """How many tasks were consolidated with it."""
    forward: Callable[..., Any] | None = None
    """How the model was called, where that was said."""
    trace: float = 0.0
    """tr Q of the task."""

    def is_same(self, following: "Measured") -> bool:
        """Return whether the task that follows seems to be this one again: other labels or heads have another Q."""
        apart = abs(following.trace - self.trace)
        return (
            following.tasks == self.tasks + 1 and following.forward is self.forward and apart <= ALIKE * abs(self.trace)
        )


ALIKE = 0.2
"""How far apart the traces of two measurements of one task may be: drawn labels differ from one to the other."""


@dataclass
class Runtime:
    """The model and the processes that train it, as they are now, with what was looked up of them. It is not saved."""

    model: nn.Module
    """The network itself; given one in a DDP wrapper, the module inside: measuring must not wait for other ranks."""
    group: "ProcessGroup | None" = None
    """The processes that train the model, where the user has named them."""
    wrapper: DistributedDataParallel | None = None
    """The DDP wrapper that the model was given in."""
    ranks: Ranks = ALONE
    """The processes that train the model, named or found."""
    by_layer: bool = False
    """Whether a sharded model is gathered a layer at a time, in the measurement that goes on."""
    parameters: dict[str, nn.Parameter] = field(default_factory=dict)
    """The protected parameters, by name."""
    replaced: frozenset[str] = frozenset()
    """The held parameters in whose place the model has others since the last consolidation, as found before a step."""
    warned: Warned = field(default_factory=Warned)
    """The warnings that the user was given."""
    frozen_statistics: FrozenStatistics = field(default_factory=FrozenStatistics)
    """The batch norms that are kept in eval mode."""
    last_measured: Measured = field(default_factory=lambda: Measured(0))
    """How a task was last measured here."""
    marking: SampleMarks | None = None
    """Where samples are noted that are measured from now, while a task ends."""
    rows: dict[str, float] = field(default_factory=dict)
    """How many rows each block's layer sees in a batch, as in those that the last task was measured with."""
    version: int = 0
    """Counts how often tensors were replaced, by which layouts and lookups made from them are made anew."""

    def __post_init__(self) -> None:
        self.wrapper = ddp_wrapper(self.model)
        if self.wrapper is not None:
            self.model = self.wrapper.module
        self.find_ranks()

    def find_ranks(self) -> None:
        """Find the processes that train the model."""
        refuse_flattened(self.model)
        refuse_partitioned(self.model.named_parameters())
        self.ranks = ranks_of(self.wrapper or self.model, self.group)

    def forget_replaced(self) -> None:
        """Take all parameters for those that are held, and let warnings that others are in their place come again."""
        self.replaced = frozenset()
        self.warned.drop(GONE, REPLACED)

    @property
    def measuring_ranks(self) -> Ranks:
        """The processes that measure together: where layers are cut up, more than see different batches."""
        return those_with_parts(self.model, self.ranks)

    def found_by_any_rank(self, found: list[T]) -> list[T]:
        """Return what all ranks have found in their parts of the parameters; without sharding, all find the same."""
        if self.ranks.size == 1:
            return found
        sharded = any(is_sharded(p) and p.device.type == "cpu" for p in self.parameters.values())
        return [item for items in self.ranks.each(lambda: found) for item in items] if sharded else found


@dataclass
class Core:
    """All four together, and what follows from several of them. Functions that need one of them take that."""

    options: Options
    state: GuardState
    task: TaskState
    runtime: Runtime

    def __post_init__(self) -> None:
        if self.state.tolerance is not None:
            self.state.driving.damping = self.state.tolerance.damping_in(self.state.driving.form)
        self._largest: tuple[Mapping[str, Matrix], int, dict[str, float]] | None = None
        self._norms: tuple[int, dict[str, BatchNorm]] | None = None
        self._space: tuple[int, Space] | None = None
        self._blocks: tuple[int, Form, list[Block]] | None = None

    def choose_gathering(self) -> None:
        """Find out what is gathered at once of a sharded model, which all processes have to ask together."""
        self.runtime.by_layer = False
        if not sharded_among(self.runtime.model.parameters()):
            return
        # Or each would wait for another gathering.
        self.runtime.measuring_ranks.refuse_unless_equal({"gather": self.options.gather})
        self.runtime.by_layer = gathers_layers(self.runtime.model, self.runtime.ranks, self.options.gather)
        if self.runtime.by_layer:
            refuse_unless_copies_agree(self.runtime.model, self.runtime.measuring_ranks)

    def own_parts(self, phi: Phi) -> Callable[[Mapping[str, Tensor]], Reduction] | None:
        """Return how a process adds up its own part of a diagonal, if that is what it does."""
        every = {**self.runtime.parameters, **self.measured}
        return (lambda chosen: OwnParts(phi, {name: every[name] for name in chosen})) if self.runtime.by_layer else None

    @property
    def is_trained(self) -> bool:
        """Whether steps were taken in this task; what measures along the path are only shown is none."""
        shown = self.task.watched is not None and any(
            ledger.measure.needs.path for ledger in self.state.ledgers.values()
        )
        return bool(self.task.steps) and not shown

    @property
    def has_linear_term(self) -> bool:
        """Whether the hold has a linear term at its anchor."""
        return has_linear_term(
            self.state.driving.form, self.options.anchor_kind, gradient_term=self.options.gradient_term
        )

    @property
    def beside_the_quadratic(self) -> list[Hold]:
        """What pulls beside the quadratic hold of parameters: that of merged weights, its linear term, and others."""
        if not self.state.strength:
            return list(self.options.holds)
        own: list[Hold] = [*self.space.holds(self.state.merged_anchor)] if self.state.merged_anchor else []
        if self.state.linear_term:
            strengths = self.state.driving.strengths
            factors = {} if strengths is None else {name: strengths.factor([name]) for name in self.state.linear_term}
            own.append(self.space.linear_term(self.state.linear_term, factors))
        return [*own, *self.options.holds]

    def value_of_changes(self, importance: Mapping[str, Matrix], strength: float) -> float:
        """Return what c⟨D, Q(D)⟩ comes to of what adapters add to weights, by some importance and strength."""
        held = self.held(self.runtime.parameters, importance=importance)._replace(strength=strength)
        values = [hold.value(held) for hold in self.space.holds(self.state.merged_anchor)]
        return sum(float(value) for value in values if value is not None)

    def set_strength(self, strength: float, strengths: PatternStrengths | None, rate: float | None) -> None:
        """Hold by another strength from now on; none of it is checked any more."""
        self.state.strength, self.state.exchange_rate = strength, rate
        self.state.asked = Setting(self.state.asked.value, "given")
        if strengths is not None or self.state.driving.strengths is not None:
            self.state.driving.strengths = strengths
            self.state.driving.commit(self.state.driving.total)
            self.runtime.version += 1

    @property
    def largest_importance(self) -> dict[str, float]:
        """The largest eigenvalue of each parameter's Q, for the diagonal its largest Ω.

        Found once for every total, and once more where the model has changed; of adapters, which may be switched and
        have moved, every time. Of sharded parameters, that over all processes' parts.
        """
        held = self.state.driving.held
        if self._largest is None or self._largest[0] is not held or self._largest[1] != self.runtime.version:
            if self.state.driving.form.elementwise:
                diagonal = self.space.diagonal(diagonal_of(held))
                own = {name: local(omega) for name, omega in diagonal.items()}
                found = {name: float(omega.max()) if omega.numel() else 0.0 for name, omega in own.items()}
                if any(map(is_sharded, self.runtime.parameters.values())):
                    every = self.runtime.ranks.each(lambda: found)
                    found = {name: max(theirs.get(name, 0.0) for theirs in every) for name in found}
            else:
                most = {matrix.block: float(matrix.largest_eigenvalue()) for matrix in held.values()}
                steep = self.space.steepness()
                found = {n: value * steep.get(n, 1.0) for block, value in most.items() for n in block.parameters}
            self._largest = held, self.runtime.version, found
        found = self._largest[2]
        of_parts = self.space.largest_of_parts(found)
        return found | of_parts if of_parts else found

    def held(
        self,
        parameters: Mapping[str, nn.Parameter],
        anchor: Mapping[str, Tensor] | None = None,
        importance: Mapping[str, Matrix] | None = None,
        *,
        trained: Mapping[str, nn.Parameter] | None = None,
        data: TaskData = NO_DATA,
        call: TrainingCall | None = None,
    ) -> Held:
        """Return what holds may look at while some parameters move."""
        return Held(
            self.runtime.model,
            parameters,
            self.state.anchor if anchor is None else anchor,
            self.state.driving.held if importance is None else importance,
            self.state.strength,
            self.state.tasks,
            # Optimizers that take turns are at the same step, whichever comes first.
            max((self.task.steps.get(name, 0) for name in parameters), default=0),
            parameters if trained is None else trained,
            data,
            call,
        )

    @property
    def norms(self) -> dict[str, BatchNorm]:
        """The batch norms with running statistics that belong to what is protected: looked for once a version.

        Those are the ones whose scale or shift is protected, or would be if it were not frozen. One that has neither
        goes with the patterns that its statistics match, where there are any.
        """
        if self._norms is None or self._norms[0] != self.runtime.version:
            guarded = {id(p) for p in (*self.runtime.parameters.values(), *self.frozen.values())}
            self._norms = (
                self.runtime.version,
                {
                    name: norm
                    for name, norm in with_statistics(self.runtime.model).items()
                    if any(id(p) in guarded for p in norm.parameters(recurse=False))
                    or (not norm.affine and self.options.selection.may_cover(f"{name}.running_mean"))
                },
            )
        return self._norms[1]

    @property
    def space_kind(self) -> type[Space]:
        """The kind of coordinates in which importance is measured, and the hold acts."""
        return SPACES["fold" if self.options.batch_norm == "fold" else self.state.space.value]

    def space_of(self, parameters: Mapping[str, nn.Parameter]) -> Space:
        """Return the space of the model as it is now, where these are the protected parameters, or refuse it."""
        return self.space_kind(self.runtime.model, parameters, self.state.folded_norms)

    @property
    def space(self) -> Space:
        """The space of the protected parameters: made once a version."""
        if self._space is not None and self._space[0] == self.runtime.version:
            return self._space[1]
        return self._enter(self.space_of(self.runtime.parameters))

    def protect(self, parameters: dict[str, nn.Parameter], space: Space) -> None:
        """Protect other parameters from now on, in a space that was made for them."""
        self.runtime.parameters = parameters
        self.runtime.version += 1
        self._enter(space)

    def _enter(self, space: Space) -> Space:
        if self._space is not None:
            space.resume(self._space[1])
        self._space = self.runtime.version, space
        return space

    @property
    def measured(self) -> dict[str, nn.Parameter]:
        """What importance is of, by name."""
        return self.space.measured(self.runtime.parameters)

    def blocks(self, form: Form) -> list[Block]:
        """Return which of what is measured belong together in a form."""
        if self._blocks is None or self._blocks[:2] != (self.runtime.version, form):
            self._blocks = self.runtime.version, form, self.space.blocks(form, self.measured)
        return self._blocks[2]

    def keep_statistics(self) -> None:
        """See to it that the statistics stay as they are that are to."""
        wanted = [norm for name, norm in with_statistics(self.runtime.model).items() if name in self.state.frozen_norms]
        self.runtime.frozen_statistics.keep(wanted, mode=self.runtime.model.training)

    def let_statistics_move(self) -> None:
        """Let all batch norms be in the mode of the model again."""
        self.runtime.frozen_statistics.keep([], mode=self.runtime.model.training)

    @property
    def frozen(self) -> dict[str, nn.Parameter]:
        """The parameters that, by default, only freezing has left out of the protected ones."""
        if not self.options.selection.default:
            return {}
        present = named_parameters(self.runtime.model)
        return {name: p for name, p in present if name not in self.runtime.parameters and not p.requires_grad}

    def parameters_with(self, names: Collection[str]) -> dict[str, nn.Parameter]:
        """Return the protected parameters and those of these names that, by default, only freezing has left out."""
        frozen = self.frozen
        present = named_parameters(self.runtime.model)
        found = {
            name: p for name, p in present if name in self.runtime.parameters or (name in names and name in frozen)
        }
        return self.space.without_layers(found)

    def restart_task(self) -> None:
        """Start the current task's account anew."""
        for ledger in self.state.ledgers.values():
            ledger.restart()
        # Steps were taken, whatever is measured of them: a task's end has pulled for them before.
        self.task = TaskState(waiting=self.task.waiting)
        self.runtime.version += 1

    def matrix_to_storage(
        self,
        matrix: Matrix,
        ledger: Ledger,
        once: Callable[[Tensor], Tensor],
        parameters: Mapping[str, Tensor] | None = None,
    ) -> Matrix:
        """Return an importance as it is kept, beside the parameters of its block; what is kept once, by ``once``."""
        beside = self.measured if parameters is None else parameters
        return ledger.to_storage(as_parameters_are(matrix, beside), beside[matrix.block.parameters[0]], once)

    def to_storage(self, tensor: Tensor, like: Tensor) -> Tensor:
        """Return a tensor as it is kept, beside a parameter and spread as that is."""
        return self.options.storage.to_storage(like_parameter(tensor, like), like)
