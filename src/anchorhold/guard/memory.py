"""All that a Guard remembers, shared by the parts that read it, write it and save it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from anchorhold.adapters import Change
from anchorhold.engine.phi import Phi
from anchorhold.engine.reductions import Block, Reduction
from anchorhold.forms import Form, Matrix
from anchorhold.guard.arguments.selection import Selection
from anchorhold.guard.arguments.strengths import USUAL, PatternStrengths
from anchorhold.guard.batch_norm.folding import FoldedTilt, Folding
from anchorhold.guard.batch_norm.frozen_statistics import FrozenStatistics, with_statistics
from anchorhold.guard.distributed.gathering import (
    Gather,
    gathers_layers,
    refuse_unless_copies_agree,
    those_with_parts,
)
from anchorhold.guard.distributed.own_parts import OwnParts
from anchorhold.guard.distributed.ranks import ALONE, Ranks, ddp_wrapper, ranks_of
from anchorhold.guard.distributed.sharded_matrices import as_parameters_are
from anchorhold.guard.ledger import Ledger, diagonal_of
from anchorhold.guard.merged_space import MergedSpace, Space
from anchorhold.guard.micro_batches.gradient_sums import Watched
from anchorhold.guard.noticing.new_classes import HeadGradients
from anchorhold.holds import Held, Hold, Tilt
from anchorhold.holds.base import TaskData, TrainingCall
from anchorhold.retention import KeptSets, Tolerance
from anchorhold.retention.controller import Control
from anchorhold.retention.sample_marks import SampleMarks
from anchorhold.settings import plain
from anchorhold.tensors.names import named_modules, named_parameters
from anchorhold.tensors.sharding import is_sharded, like_parameter, local, refuse_flattened, refuse_partitioned
from anchorhold.tensors.storage import Storage

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

T = TypeVar("T")

AnchorKind = Literal["last", "mean"]

NO_DATA = TaskData()


def leans(form: Form, anchor: AnchorKind, *, gradient_term: bool) -> bool:
    """Whether a hold leans at its anchor, the last solution; that of the plain diagonal is the mean itself."""
    return anchor == "mean" and (gradient_term or not form.elementwise)


@dataclass
class Memory:
    """The protected parameters of a model, what they are held to, and what is known about the current task."""

    model: nn.Module
    """The network itself; given one in a DDP wrapper, what is inside: measuring must not wait for other ranks."""
    selection: Selection
    ledgers: dict[str, Ledger]
    """The account of every measure, by name."""
    driver: str
    """The name of the measure that drives the penalty."""
    strength: float
    """c; of several by pattern the largest, and 0 while a relative one waits for the first consolidation."""
    decay: float
    storage: Storage
    holds: Sequence[Hold] = ()
    """What pulls beside the quadratic hold."""
    group: "ProcessGroup | None" = None
    """The processes that train the model, where the user has named them."""
    ranks: Ranks = ALONE
    """Those processes, named or found."""
    gather: Gather | None = None
    """What is gathered at once of a sharded model that is measured from data, where the user has said so."""
    by_layer: bool = False
    """Whether that is a layer, in what is measured now."""
    parameters: dict[str, nn.Parameter] = field(default_factory=dict)
    anchor: dict[str, Tensor] = field(default_factory=dict)
    """θ*, the weights after the last consolidated task, or their mean over all tasks."""
    anchor_kind: AnchorKind = "last"
    """What the hold is centred at: the last solution, or the mean of all tasks'; see ``centre/anchors.py``."""
    gradient_term: bool = False
    """Whether the gradients of the tasks' own losses are part of the hold."""
    relative_strength: float | None = None
    """s, where c is found from it at the first consolidation, or was."""
    strength_given: bool = False
    """Whether a user has said how strongly, rather than left it at what is usual or at what a state has."""
    made_with: str | None = None
    """What a user has said of it when the guard was made, or the one whose state it has: it may be set anew since."""
    tilt: dict[str, Tensor] = field(default_factory=dict)
    """r, how the sum of all tasks' penalties leans at θ*, where that is not its centre."""
    space: Space = "weights"
    """What is held of adapters: their own parameters, or the weights that they are merged with."""
    space_given: bool = True
    """Whether a user has said so, rather than left it to what there is, or to what a state has."""
    space_is_open: bool = False
    """Whether both would do, and adapters that come before anything is held may still decide it."""
    named_form: Form | None = None
    """The form of the driving measure where a user gave its name alone, and left its settings to what a state has."""
    merged_anchor: dict[str, Change] = field(default_factory=dict)
    """What adapters added to weights after the last consolidated task, by weight, where those are held."""
    tasks: int = 0
    is_as_given: bool = False
    """Whether the one task so far was consolidated here and before any step: the anchor is the model as it came."""
    start: dict[str, Tensor] = field(default_factory=dict)
    """θ(0), each parameter just before its first step of the current task: after any re-initialisation, so not θ*."""
    steps: dict[str, int] = field(default_factory=dict)
    """How many steps each parameter has taken in the current task; those during which it was frozen are none."""
    from_scratch: bool = False
    """Whether the first task is known to begin from nothing, so that nothing has to be held in it."""
    replaced: frozenset[str] = frozenset()
    """The held parameters in whose place the model has others since the last consolidation, as found before a step."""
    told_of: frozenset[str] = frozenset()
    """Those of them that were told of before a penalty was added to a loss, without any step to look at."""
    told_gone: frozenset[str] = frozenset()
    """What is held and was told to be gone from the model, in this task."""
    left_frozen: frozenset[str] = frozenset()
    """The parameters that were left out of the last consolidation because they were frozen."""
    labels: frozenset[int] = frozenset()
    """The labels of all samples that tasks were measured with, where each had one."""
    head: HeadGradients = field(default_factory=HeadGradients)
    """What the output layer's gradients say about the classes of the current task."""
    told: set[str] = field(default_factory=set)
    """What users were told of the form, or of a strength that nobody gave."""
    batch_norm: str | None = None
    """What is done about running statistics: ``"freeze"``, ``"fold"``, or nothing."""
    frozen_norms: frozenset[str] = frozenset()
    """The batch norms whose statistics are to stay as they are."""
    folded_norms: dict[str, str] = field(default_factory=dict)
    """The batch norms that are held together with a layer, by name, each with the layer that it follows."""
    told_of_norms: set[str] = field(default_factory=set)
    """The batch norms of which it was told that they cannot be folded."""
    frozen_statistics: FrozenStatistics = field(default_factory=FrozenStatistics)
    implicit: bool | None = False
    """Whether the quadratic hold acts after the step, implicitly, instead of joining the gradient; ``None`` until an
    optimiser has decided it."""
    implicit_given: bool = True
    """Whether a user has said so, rather than left it to what there is, or to what a state has."""
    implicit_is_open: bool = False
    """Whether both would do, and the optimisers that are attached decide it; see ``steps/default_pull.py``."""
    kept: KeptSets = field(default_factory=KeptSets)
    """Inputs by which it is seen what the model still knows."""
    measured_from: SampleMarks = field(default_factory=SampleMarks)
    """By checksums, the samples that tasks' importance was measured from: to be told from those that are kept."""
    marking: SampleMarks | None = None
    """Where samples are noted that are measured from now, while a task ends."""
    tolerance: Tolerance | None = None
    """How much of that may be lost, which the strength follows."""
    control: Control = field(default_factory=Control)
    """Where following is at."""
    watched: Watched | None = None
    """What micro-batches have shown since the last consolidation, without a step."""
    version: int = 0
    """Counts how often tensors were replaced, for those who walk through them laid out in another way."""

    def __post_init__(self) -> None:
        if self.tolerance is not None:
            self.driving.damping = self.tolerance.damping_in(self.driving.form)
        self._largest: tuple[Mapping[str, Matrix], int, dict[str, float]] | None = None
        self._norms: tuple[int, dict[str, BatchNorm]] | None = None
        self._folding: tuple[int, Folding] | None = None
        self._merged: tuple[int, MergedSpace] | None = None
        self.wrapper = ddp_wrapper(self.model)
        if self.wrapper is not None:
            self.model = self.wrapper.module
        self.find_ranks()

    def find_ranks(self) -> None:
        """Find out which processes train the model."""
        refuse_flattened(self.model)
        refuse_partitioned(self.model.named_parameters())
        self.ranks = ranks_of(self.wrapper or self.model, self.group)

    def choose_gathering(self) -> None:
        """Find out what is gathered at once of a sharded model, which all processes have to ask together."""
        if any(is_sharded(parameter) for parameter in self.model.parameters()):
            self.everyone.refuse_unless_equal({"gather": self.gather})  # or each would wait for another gathering
        self.by_layer = gathers_layers(self.model, self.ranks, self.gather)
        if self.by_layer:
            refuse_unless_copies_agree(self.model, self.everyone)

    def own_parts(self, phi: Phi) -> Callable[[Mapping[str, Tensor]], Reduction] | None:
        """Return how a process adds up its own part of a diagonal, if that is what it does."""
        every = {**self.parameters, **self.measured}
        return (lambda chosen: OwnParts(phi, {name: every[name] for name in chosen})) if self.by_layer else None

    @property
    def everyone(self) -> Ranks:
        """The processes that measure together: where layers are cut up, more than see different batches."""
        return those_with_parts(self.model, self.ranks)

    @property
    def driving(self) -> Ledger:
        """The account of the measure that drives the penalty."""
        return self.ledgers[self.driver]

    @property
    def is_anchored(self) -> bool:
        """Whether there is anything that weights are held to."""
        return bool(self.anchor or self.merged_anchor)

    @property
    def is_trained(self) -> bool:
        """Whether steps were taken in this task; what measures along the path are only shown is none."""
        shown = self.watched is not None and any(ledger.measure.needs.path for ledger in self.ledgers.values())
        return bool(self.steps) and not shown

    @property
    def leans(self) -> bool:
        """Whether the hold leans at its anchor."""
        return leans(self.driving.form, self.anchor_kind, gradient_term=self.gradient_term)

    @property
    def beside_the_quadratic(self) -> list[Hold]:
        """What pulls beside the quadratic hold of parameters: that of merged weights, its tilt, and further holds."""
        if self.merged_anchor and self.strength:
            return [self.merged.hold(self.merged_anchor), *self.holds]
        if not self.tilt or not self.strength:
            return list(self.holds)
        strengths = self.driving.strengths
        factors = {} if strengths is None else {name: strengths.factor([name]) for name in self.tilt}
        tilt = FoldedTilt(self.tilt, self.folding, factors) if self.folding.pairs else Tilt(self.tilt, factors)
        return [tilt, *self.holds]

    @property
    def asks_to_hold(self) -> bool:
        """Whether weights are to be held to their anchor, once there is one."""
        return bool(self.strength) or self.relative_strength is not None

    @property
    def strength_is_assumed(self) -> bool:
        """Whether the strength is the usual one and this guard was given none.

        A state does not tell whether the 1 in it was somebody's, so one that came with a state counts as nobody's.
        """
        unsaid = self.tolerance is None and self.relative_strength is None and self.driving.strengths is None
        return unsaid and not self.strength_given and self.made_with is None and self.strength == USUAL

    @property
    def said_strength(self) -> str:
        """The strength as it was asked for, or what it follows."""
        if self.tolerance is not None:
            return f"tolerance={self.tolerance.nats:g}"
        if self.relative_strength is not None:
            return f"relative_strength={self.relative_strength:g}"
        strengths = self.driving.strengths
        return f"strength={self.strength:g}" if strengths is None else f"strength={strengths.times(self.strength)}"

    def hold_by(self, strength: float, strengths: PatternStrengths | None, relative: float | None) -> None:
        """Hold by another strength from now on; none of it is checked any more."""
        self.strength, self.relative_strength, self.strength_given = strength, relative, True
        if strengths is not None or self.driving.strengths is not None:
            self.driving.strengths = strengths
            self.driving.settle(self.driving.total)
            self.version += 1

    @property
    def pulled_after(self) -> bool:
        """Whether there is a quadratic hold, and it acts after the step."""
        return bool(self.implicit and self.anchor and self.strength)

    @property
    def largest_importance(self) -> dict[str, float]:
        """The largest eigenvalue of each parameter's Q, for the diagonal its largest Ω.

        Found once for every total, and once more where the model has changed; of adapters, which may be switched and
        have moved, every time. Of sharded parameters, that over all processes' parts.
        """
        held = self.driving.held
        if self._largest is None or self._largest[0] is not held or self._largest[1] != self.version:
            found = self._largest_of_weights() if self.driving.form.elementwise else self._largest_of_blocks()
            self._largest = held, self.version, found
        found = self._largest[2]
        return found | self._largest_of_adapters(found) if self.merged.adapters else found

    def _largest_of_blocks(self) -> dict[str, float]:
        most = {matrix.block: float(matrix.largest_eigenvalue()) for matrix in self.driving.held.values()}
        steep = self.folding.steepness()
        return {name: value * steep.get(name, 1.0) for b, value in most.items() for name in b.parameters}

    def _largest_of_weights(self) -> dict[str, float]:
        diagonal = self.folding.diagonal(diagonal_of(self.driving.held))
        own = {name: local(omega) for name, omega in diagonal.items()}
        found = {name: float(omega.max()) if omega.numel() else 0.0 for name, omega in own.items()}
        if any(map(is_sharded, self.parameters.values())):
            every = self.ranks.each(lambda: found)
            found = {name: max(theirs.get(name, 0.0) for theirs in every) for name in found}
        return found

    def _largest_of_adapters(self, found: Mapping[str, float]) -> dict[str, float]:
        """Return the same of adapters' parameters, from that of the weights that they change."""
        steep, parts = self.merged.steepness(), self.merged.parts
        return {n: found[w] * steep[n] for w, own in parts.items() if w in found for n in own if n in steep}

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        """What identifies every measure in a saved state."""
        return {name: plain(name, ledger.measure.settings()) for name, ledger in self.ledgers.items()}

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
            self.model,
            parameters,
            self.anchor if anchor is None else anchor,
            self.driving.held if importance is None else importance,
            self.strength,
            self.tasks,
            # Optimisers that take turns are at the same step, whichever comes first.
            max((self.steps.get(name, 0) for name in parameters), default=0),
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
        if self._norms is None or self._norms[0] != self.version:
            guarded = {id(p) for p in (*self.parameters.values(), *self.frozen.values())}
            self._norms = (
                self.version,
                {
                    name: norm
                    for name, norm in with_statistics(self.model).items()
                    if any(id(p) in guarded for p in norm.parameters(recurse=False))
                    or (not norm.affine and self.selection.may_cover(f"{name}.running_mean"))
                },
            )
        return self._norms[1]

    @property
    def folding(self) -> Folding:
        """The layers whose weights are held as batch norms scale them."""
        if self._folding is None or self._folding[0] != self.version:
            modules = dict(named_modules(self.model)) if self.folded_norms else {}
            self._folding = self.version, Folding.of(self.folded_norms, modules, self.parameters)
        return self._folding[1]

    @property
    def merged(self) -> MergedSpace:
        """The adapters that are held by the weights that they change; none in the space of weights."""
        if self._merged is None or self._merged[0] != self.version:
            self._merged = self.version, MergedSpace.of(self.model, self.parameters, self.space)
        return self._merged[1]

    @property
    def measured(self) -> dict[str, nn.Parameter]:
        """What importance is of, by name: the protected parameters, with merged weights in adapters' place."""
        return self.measured_of(self.parameters)

    def measured_of(self, parameters: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
        """Return what importance is of, where these are the protected parameters."""
        return self.merged.coordinates(parameters) if self.space == "merged" else parameters

    @property
    def held_elsewhere(self) -> Collection[str]:
        """The parameters that are held as part of something else: of a folded map, or of a merged weight."""
        return self.merged.names if self.space == "merged" else self.folding.names

    def blocks(self, form: Form) -> list[Block]:
        """Return which of what is measured belong together in a form."""
        return self.merged.blocks_of(form, self.measured)

    def keep_statistics(self) -> None:
        """See to it that the statistics stay as they are that are to."""
        wanted = [norm for name, norm in with_statistics(self.model).items() if name in self.frozen_norms]
        self.frozen_statistics.keep(wanted, mode=self.model.training)

    def let_statistics_move(self) -> None:
        """Let all batch norms be in the mode of the model again."""
        self.frozen_statistics.keep([], mode=self.model.training)

    @property
    def frozen(self) -> dict[str, nn.Parameter]:
        """The parameters that, by default, only freezing has left out of the protected ones."""
        if not self.selection.default:
            return {}
        present = named_parameters(self.model)
        return {name: p for name, p in present if name not in self.parameters and not p.requires_grad}

    def parameters_with(self, names: Collection[str]) -> dict[str, nn.Parameter]:
        """Return the protected parameters and those of these names that, by default, only freezing has left out."""
        frozen = self.frozen
        present = named_parameters(self.model)
        found = {name: p for name, p in present if name in self.parameters or (name in names and name in frozen)}
        return self.merged.without_layers(found)

    def restart_task(self) -> None:
        """Start the current task's account anew."""
        for ledger in self.ledgers.values():
            ledger.restart()
        self.start = {}
        self.steps = {}
        self.head = HeadGradients()
        self.watched = None
        self.version += 1

    def found_by_any_rank(self, found: list[T]) -> list[T]:
        """Return what all ranks have found in their parts of the parameters; without sharding, all find the same."""
        if self.ranks.size == 1:
            return found
        sharded = any(is_sharded(p) and p.device.type == "cpu" for p in self.parameters.values())
        return [item for items in self.ranks.each(lambda: found) for item in items] if sharded else found

    def resting_matrix(
        self,
        matrix: Matrix,
        ledger: Ledger,
        once: Callable[[Tensor], Tensor],
        parameters: Mapping[str, Tensor] | None = None,
    ) -> Matrix:
        """Return an importance as it is kept, beside the parameters of its block; what is kept once, by ``once``."""
        beside = self.measured if parameters is None else parameters
        rest = partial(ledger.storage.resting, parameter=beside[matrix.block.parameters[0]])
        return as_parameters_are(matrix, beside).mapped(rest).mapped(once)

    def resting(self, tensor: Tensor, like: Tensor) -> Tensor:
        """Return a tensor as it is kept, beside a parameter and spread as that is."""
        return self.storage.resting(like_parameter(tensor, like), like)

    def running(self) -> list[dict[str, Tensor]]:
        """Return the running states of all measures, each by parameter."""
        return [tensors for ledger in self.ledgers.values() for tensors in ledger.running.values()]
