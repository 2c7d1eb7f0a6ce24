"""What a saved state holds: a table of its plain values, and one of the kinds of its tensors.

Writing and reading (``codec.py``), checking (``checks.py``) and the tables in the documentation follow from the rows.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anchorhold.adapters import in_parts
from anchorhold.errors import StateError
from anchorhold.forms import Diagonal
from anchorhold.guard.arguments.strengths import PatternStrengths
from anchorhold.guard.core import Core, Setting, Waiting
from anchorhold.guard.ledger import Ledger
from anchorhold.guard.state import value_types as types
from anchorhold.guard.state.microbatches import WATCHED, watched_tensors, watched_values
from anchorhold.guard.state.value_types import ValueType, checked_later
from anchorhold.guard.task_classes import HeadGradients
from anchorhold.guard.weights_mark import mark_of
from anchorhold.retention import Tolerance
from anchorhold.retention.controller import Control
from anchorhold.settings import plain
from anchorhold.tensors.packed import plain_tensor
from anchorhold.tensors.storage import Storage

VERSION = 2
"""The version of the table that is written."""
READABLE = (1, 2)
"""The versions that are read; anchorhold 0.1.0 wrote the first."""
INPUTS_FIRST, LOOKED_UP = "inputs first", "looked up"
"""How a block's weight lies: as ``[inputs, outputs]``, and that with rows that an embedding looks up."""

ALWAYS = object()
"""The default of a value that is always written."""


@dataclasses.dataclass(frozen=True)
class Value:
    """A plain value of a state."""

    key: str
    meaning: str
    type: ValueType
    write: Callable[[Core], Any] | None = None
    """Return the value of a guard, in types that JSON has; by default the attribute ``home``."""
    default: Any = ALWAYS
    """What a state without the key means. A value that equals it is not written."""
    home: str = ""
    """The attribute of the Core that the value is put back to; empty where :func:`~.codec.from_state` does it."""
    read: Callable[[Core, Any], Any] = lambda _core, value: value
    """Return what is put back. It may raise an error, and changes nothing."""
    since: int = 1
    """The version from which a state has to have it, unless there is a default."""
    must_match: bool = False
    """Whether the guard must have been made with the same."""

    def value_in(self, core: Core) -> Any:
        """Return the value of a guard as it is written."""
        return attrgetter(self.home)(core) if self.write is None else self.write(core)


@dataclasses.dataclass(frozen=True)
class Precision:
    """In which dtype a tensor is kept."""

    words: str
    keep: Callable[[Storage], Callable[[Tensor, Tensor], Tensor]]
    """Return the function that keeps a tensor beside its parameter."""


AS_STORED = Precision(
    "`state_dtype`; by default the parameter's, at least 32 bits, and with `8bit` 16 or 32 bits that are exact",
    lambda storage: storage.to_storage,
)
RUNNING = Precision("the parameter's, at least 32 bits", lambda storage: storage.running)
EXACT = Precision("the parameter's", lambda storage: storage.exact)


@dataclasses.dataclass(frozen=True)
class TensorKind:
    """A kind of tensors of a state. Their keys are a prefix, a slash and a name."""

    key: str
    """The keys, for the documentation."""
    meaning: str
    shape: str
    precision: Precision | None
    """``None`` for a hold's tensors, which the hold checks itself."""
    prefixes: Callable[[Core], Collection[str]]
    """Return the prefixes of a guard's keys."""
    tensors: Callable[[Core, str], Mapping[str, Tensor]]
    """Return a guard's tensors under a prefix, by the rest of their keys."""
    home: str = ""
    """The attribute of the Core that the tensors are put back to; empty where :func:`~.codec.from_state` does it."""
    is_by_parameter: bool = False
    """Whether a tensor is kept beside the parameter of its name, as it is read."""
    has_parts: Callable[[Core, str], bool] = lambda _core, _prefix: False
    """Return whether names end in ``#`` and a part. Without, a tensor has the shape of the parameter of its name."""


class Place(NamedTuple):
    """What a tensor of a state is, by its key."""

    kind: TensorKind
    prefix: str
    """Such as ``"anchor"`` or ``"total/SI"``."""
    name: str
    """The parameter's, the block's, or the hold's own name for it."""
    part: str = ""
    """Which of a block's tensors it is."""


# Values: how some are written and read


def _strengths(core: Core) -> list[list[Any]] | None:
    strengths = core.state.driving.strengths
    return None if strengths is None else [[pattern, c] for pattern, c in strengths.given.items()]


def _tolerance(core: Core) -> dict[str, Any] | None:
    tolerance = core.state.tolerance
    return None if tolerance is None else dataclasses.asdict(tolerance.settled_in(core.state.driving.form))


@contextlib.contextmanager
def _errors_about_the_tolerance() -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"The state is damaged: what it says of its tolerance cannot be read ({type(error).__name__}: {error}). "
            "Use another copy."
        ) from error


def _read_tolerance(core: Core, given: dict[str, Any] | None) -> Tolerance | None:
    """Return the tolerance of a state; one that is silent leaves the guard's own."""
    if given is None:
        return core.state.tolerance
    with _errors_about_the_tolerance():
        if given["damping"] is None:  # which meant this where a state was made without saying
            given = {**given, "damping": 0.01 if core.state.driving.form.elementwise else 0.1}
        return Tolerance(**given)


def _read_control(_core: Core, given: dict[str, Any] | None) -> Control:
    with _errors_about_the_tolerance():
        return Control() if given is None else Control.restored(given)


def _read_pull_every(core: Core, every: int) -> Setting[int]:
    """Return the guard's own where it was given, and else that of the state."""
    return core.state.pull_every if core.state.pull_every.is_given else Setting(every, "restored")


def _layouts(core: Core) -> dict[str, str]:
    blocks = (matrix.block for matrix in core.state.driving.total.values() if matrix.block.inputs_first)
    return {block.name: LOOKED_UP if block.looked_up else INPUTS_FIRST for block in blocks}


def _sorted_set(key: str, meaning: str, type_: ValueType, home: str) -> Value:
    """Return the row of a set, which is written as a sorted list."""
    get = attrgetter(home)
    return Value(key, meaning, type_, lambda core: sorted(get(core)), [], home, lambda _, names: frozenset(names))


def _as_dict(_core: Core, values: Mapping[str, Any]) -> dict[str, Any]:
    return dict(values)


VALUES = (
    Value("version", "the version of this table", checked_later(" or ".join(map(str, READABLE))), lambda _: VERSION),
    Value("strength", "c; of several by pattern the largest", types.STRENGTH, home="state.strength"),
    Value("decay", "γ, the factor of the importance so far when a task is added", types.DECAY, home="state.decay"),
    Value(
        "driver", "the measure that drives the penalty", types.MEASURE, lambda core: core.state.driver, must_match=True
    ),
    Value(
        "measures", "the settings of every measure", types.MEASURES, lambda core: core.state.settings, must_match=True
    ),
    Value("tasks", "how many tasks were consolidated", types.COUNT, home="state.tasks"),
    Value(
        "steps",
        "how many steps each parameter has taken in the current task",
        types.STEPS,
        lambda core: dict(core.task.steps),
        home="task.steps",
        read=_as_dict,
    ),
    Value("parameters", "the protected parameters", types.DISTINCT, lambda core: sorted(core.runtime.parameters)),
    Value(
        "form",
        "the form of the importance that drives the penalty",
        checked_later("the form's name and its settings"),
        lambda core: plain("the form", core.state.driving.form.settings()),
        default=Diagonal().settings(),
        must_match=True,
    ),
    Value(
        "holds",
        "the further holds",
        checked_later("holds by name, with their settings"),
        lambda core: {hold.name: plain(hold.name, hold.settings()) for hold in core.options.holds},
        default={},
        must_match=True,
    ),
    Value(
        "anchor",
        "where the penalty is centred",
        checked_later("`last` or `mean`"),
        lambda core: core.options.anchor_kind,
        default="last",
        must_match=True,
    ),
    Value(
        "gradient_term",
        "whether the gradients of the tasks' losses are part of the penalty",
        checked_later("true or false"),
        lambda core: core.options.gradient_term,
        default=False,
        must_match=True,
    ),
    Value(
        "batch_norm",
        "what is done about running statistics",
        checked_later("null, `freeze` or `fold`"),
        lambda core: core.options.batch_norm,
        default=None,
        must_match=True,
    ),
    Value(
        "implicit",
        "whether the penalty acts after the optimizer's step, as a proximal step",
        types.TRUTH,
        lambda core: bool(core.state.implicit.value),
        default=False,
        must_match=True,
    ),
    Value(
        "space",
        "what is held of adapters: their own parameters, or the weights that they are merged with",
        checked_later("`weights` or `merged`"),
        lambda core: core.state.space.value,
        default="weights",
        must_match=True,
    ),
    Value(
        "implicit_is_open",
        "whether the optimizers that are attached decide on `implicit`",
        types.TRUTH,
        lambda core: core.state.implicit.is_open,
        default=False,
    ),
    Value(
        "implicit",
        "what they have decided so far, where they do; `false` is written here only",
        types.TRUTH,
        lambda core: core.state.implicit.value if core.state.implicit.is_open else None,
        default=None,
    ),
    Value(
        "pull_every",
        "after how many steps such a penalty acts, each time for all of them",
        types.EVERY,
        lambda core: core.state.pull_every.value,
        default=1,
        home="state.pull_every",
        read=_read_pull_every,
    ),
    Value(
        "waiting",
        "the steps that it has yet to pull back: how many, and Σ c·h of them",
        types.WAITING,
        lambda core: {name: list(each) for name, each in core.task.waiting.items()},
        default={},
        home="task.waiting",
        read=lambda _, pairs: {name: Waiting(steps, float(way)) for name, (steps, way) in pairs.items()},
    ),
    Value("tensors", "the tensors; in a file they are the file's own", types.TENSORS),
    Value(
        "strengths",
        "strengths by patterns of parameters' names, of which the first that matches counts",
        types.PATTERNS,
        _strengths,
        default=None,
        home="state.driving.strengths",
        read=lambda _, pairs: None if pairs is None else PatternStrengths(dict(pairs)),
    ),
    Value(
        "relative_strength",
        "s, by which version 0.1.0 found c; read where c is still to be found, and no longer written",
        types.RELATIVE,
        lambda _core: None,
        default=None,
    ),
    Value(
        "exchange_rate",
        "κ, where c is κ/(2T)",
        types.RATE,
        default=None,
        home="state.exchange_rate",
        read=lambda core, rate: rate if core.state.tolerance is None else None,
    ),
    Value(
        "tokens",
        "T of each task, the scored tokens in a sample, as its importance counts",
        types.TOKENS,
        lambda core: list(core.state.tokens),
        default=[],
        home="state.tokens",
        read=lambda _, tokens: list(map(float, tokens)),
    ),
    Value(
        "made_with",
        "the strength that was given first, where it was changed",
        types.WORDS,
        # A schedule sets it anew, for one.
        lambda core: None if core.state.asked.value == core.state.strength_text else core.state.asked.value,
        default=None,
    ),
    Value(
        "tolerance",
        "how much may be lost of the kept sets, which the strength follows",
        types.TOLERANCE,
        _tolerance,
        default=None,
        home="state.tolerance",
        read=_read_tolerance,
    ),
    Value(
        "kept",
        "the kept sets, each with numbers by which it is recognized",
        types.MARKS,
        lambda core: [[name, marks] for name, marks in core.state.kept.marks.items()],
        default=[],
        home="state.kept.expected",
        read=lambda _, pairs: {name: list(marks) for name, marks in pairs},
    ),
    Value(
        "control",
        "how the strength has followed the tolerance",
        types.CONTROL,
        lambda core: core.state.control.plain() if core.state.control.trace else None,
        default=None,
        home="state.control",
        read=_read_control,
    ),
    Value(
        "averages",
        "of totals that are means: of how many tasks",
        types.AVERAGES,
        lambda core: {label: dict(ledger.weights) for label, ledger in core.state.ledgers.items() if ledger.weights},
        default={},
    ),
    _sorted_set(
        "left_frozen", "the parameters that were frozen at the last consolidation", types.NAMES, "state.left_frozen"
    ),
    _sorted_set("labels", "the labels of the samples that importance was measured from", types.LABELS, "state.labels"),
    Value(
        "labels_of_task",
        "the labels of the current task so far",
        types.LABELS,
        lambda core: sorted(core.task.head.classes),
        default=[],
        home="task.head",
        read=lambda _, labels: HeadGradients(labels),
    ),
    _sorted_set("frozen_norms", "the batch norms whose statistics stay as they are", types.NAMES, "state.frozen_norms"),
    Value(
        "folded_norms",
        "the batch norms that are held with a layer, each with that layer",
        types.LAYERS,
        lambda core: dict(core.state.folded_norms),
        default={},
        home="state.folded_norms",
        read=_as_dict,
    ),
    Value(
        "layouts",
        "the blocks whose weight is not `[outputs, inputs]`",
        checked_later(f"`{INPUTS_FIRST}` or `{LOOKED_UP}` by block"),
        _layouts,
        default={},
    ),
    Value(
        "watched",
        "what `gradients.microbatches()` has seen of micro-batches",
        checked_later("numbers by name"),
        watched_values,
        default=None,
    ),
    Value(
        "weights",
        "some elements of some of the model's weights in the middle of a task, to tell whether the model is that one",
        types.ELEMENTS,
        mark_of,
        default={},
        home="task.mark",
        read=_as_dict,
    ),
    Value("tensor_count", "how many tensors there are", types.COUNT, since=2),
)
"""The plain values, in the order in which a file has them.

``implicit`` stands twice, since files have it before ``space`` where it is true, and after ``implicit_is_open`` where
that is set.
"""


# Tensors


def prefix_of_total(label: str) -> str:
    """Return the prefix of a measure's importance."""
    return f"total/{label}"


def prefixes_of_running(label: str, ledger: Ledger) -> dict[str, str]:
    """Return a measure's running states by prefix; the name of a single one is not part of it."""
    states = list(ledger.measure.running)
    return {f"running/{label}" if len(states) == 1 else f"running.{state}/{label}": state for state in states}


def prefix_of_hold(name: str) -> str:
    """Return the prefix of a hold's tensors."""
    return f"hold/{name}"


def _running(core: Core) -> dict[str, dict[str, Tensor]]:
    return {
        prefix: ledger.running[state]
        for label, ledger in core.state.ledgers.items()
        for prefix, state in prefixes_of_running(label, ledger).items()
    }


def _ledger(core: Core, prefix: str) -> Ledger:
    return core.state.ledgers[prefix.partition("/")[2]]


def _total(core: Core, prefix: str) -> dict[str, Tensor]:
    return {
        f"{block}#{part}" if part else block: tensor
        for block, matrix in _ledger(core, prefix).total.items()
        for part, tensor in matrix.state().items()
    }


def _merged(core: Core, _prefix: str) -> dict[str, Tensor]:
    anchor = core.state.merged_anchor.items()
    return {f"{weight}#{part}": tensor for weight, change in anchor for part, tensor in in_parts(change).items()}


def _by_parameter(key: str, meaning: str, precision: Precision, home: str) -> TensorKind:
    """Return the row of tensors that one attribute of the Core has, by parameter."""
    get, prefix = attrgetter(home), key.partition("/")[0]
    return TensorKind(
        f"`{key}`",
        meaning,
        "the parameter's",
        precision,
        lambda _: [prefix],
        lambda core, _: get(core),
        home,
        is_by_parameter=True,
    )


TENSOR_KINDS = (
    _by_parameter(
        "anchor/PARAMETER",
        "θ*, the weights after the last task, or their mean over all tasks",
        AS_STORED,
        "state.anchor",
    ),
    _by_parameter(
        "start/PARAMETER", "θ(0), the weights just before the first step of the current task", EXACT, "task.start"
    ),
    _by_parameter("tilt/PARAMETER", "r, the linear term of the penalty at θ*", AS_STORED, "state.linear_term"),
    TensorKind(
        "`running/MEASURE/PARAMETER`, of several states `running.STATE/MEASURE/PARAMETER`",
        "what a measure has accumulated in the current task",
        "the parameter's",
        RUNNING,
        _running,
        lambda core, prefix: _running(core)[prefix],
        is_by_parameter=True,
    ),
    TensorKind(
        "`merged/WEIGHT#B` and `merged/WEIGHT#A`, or `merged/WEIGHT#D`",
        "what adapters had added to a weight after the last task: BA, or D",
        "`[outputs, r]` and `[r, inputs]`, or `[outputs, inputs]`",
        AS_STORED,
        lambda _: ["merged"],
        _merged,
        has_parts=lambda _core, _prefix: True,
    ),
    TensorKind(
        "`total/MEASURE/PARAMETER`, of other forms than the diagonal `total/MEASURE/BLOCK#TENSOR`",
        "Ω, the importance so far; of other forms what Q is made of",
        "the parameter's; of other forms the form's own",
        AS_STORED,
        lambda core: [prefix_of_total(label) for label in core.state.ledgers],
        _total,
        has_parts=lambda core, prefix: not _ledger(core, prefix).form.elementwise,
    ),
    TensorKind(
        "`hold/HOLD/NAME`",
        "the state of a further hold",
        "the hold's own",
        None,
        lambda core: [prefix_of_hold(hold.name) for hold in core.options.holds],
        lambda core, prefix: next(h.state() for h in core.options.holds if prefix_of_hold(h.name) == prefix),
    ),
    TensorKind(
        "`watched/PARAMETER#NUMBER.mean`, `watched/PARAMETER#NUMBER.spread`",
        "the mean gradient of the micro-batches that `gradients.microbatches()` has seen, and the sum of squared "
        "distances from it",
        "the parameter's",
        RUNNING,
        lambda _: [WATCHED],
        lambda core, _: watched_tensors(core),
        has_parts=lambda _core, _prefix: True,
    ),
)
"""The kinds of tensors, in the order in which they are written."""


def tensors_of(core: Core) -> dict[str, Tensor]:
    """Return all tensors of a guard by their keys; those that are packed as any version reads them."""
    return {
        f"{prefix}/{name}": plain_tensor(tensor)
        for kind in TENSOR_KINDS
        for prefix in kind.prefixes(core)
        for name, tensor in kind.tensors(core, prefix).items()
    }


def place_of(core: Core, key: str) -> Place:
    """Return what a tensor of a state is, by its key. Raise :class:`StateError` if no kind has such keys."""
    for kind in TENSOR_KINDS:
        for prefix in kind.prefixes(core):
            if key.startswith(f"{prefix}/"):
                name, part = key[len(prefix) + 1 :], ""
                if kind.has_parts(core, prefix) and "#" in name:
                    name, _, part = name.rpartition("#")
                return Place(kind, prefix, name, part)
    raise StateError(f"The state holds {key!r}, which this version does not know.")


def place_in_model(core: Core, parameters: Mapping[str, nn.Parameter], key: str, shape: torch.Size) -> Place:
    """Return what a tensor of a state is. Raise :class:`StateError` if it has not the shape of its parameter."""
    place = place_of(core, key)
    if place.kind.precision is None or place.kind.has_parts(core, place.prefix):
        return place
    parameter = parameters.get(place.name)
    if parameter is None or parameter.shape != shape:
        has = "none of that name" if parameter is None else f"one of shape {tuple(parameter.shape)}"
        advice = f"For a layer that was taken away on purpose, call forget({place.name!r}) before saving."
        if parameter is not None and place.name in core.space.in_parts:
            advice = "It is an adapter's: a state is loaded for an adapter of the same rank that it was saved with."
        raise StateError(
            f"The state was made for another model: it holds a parameter {place.name!r} of shape {tuple(shape)}, and "
            f"this model has {has}. {advice}"
        )
    return place


def parameters_of(core: Core, keys: Iterable[str], names: Iterable[str] = ()) -> dict[str, nn.Parameter]:
    """Return the protected parameters, and those of these tensors and names that have been frozen since."""
    return core.parameters_with({*names, *(place_of(core, key).name for key in keys)})
