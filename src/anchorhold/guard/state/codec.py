"""Turning what a Guard remembers into a state and back, with every check made before anything changes.

A state is plain values and named tensors, of which ``state_places.py`` says what each is.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, get_args

from torch import Tensor, nn

from anchorhold.adapters import Change, in_parts, mapped, of_parts, size_of
from anchorhold.errors import ConfigurationError, StateError, warn
from anchorhold.forms import Matrix
from anchorhold.guard.arguments.strengths import PatternStrengths
from anchorhold.guard.batch_norm.frozen_statistics import with_statistics
from anchorhold.guard.core import Core, GuardState, Options, Runtime
from anchorhold.guard.distributed.ranks import ALONE
from anchorhold.guard.ledger import Ledger
from anchorhold.guard.merged_space import Space
from anchorhold.guard.refreshing import go_over_to
from anchorhold.guard.state.checks import (
    check_completeness,
    check_dtype,
    check_importance,
    check_numbers,
    check_values,
)
from anchorhold.guard.state.files import VERSION
from anchorhold.guard.state.form import take_its_form, warn_of_its_form
from anchorhold.guard.state.microbatches import WATCHED, watched_of, watched_tensors, watched_values
from anchorhold.guard.state.places import by_parameter, parameters_of, place_of, running_kinds
from anchorhold.guard.state.settings import (
    USUAL_SETTINGS,
    beside_the_usual,
    check_settings,
    decided_pull,
    followed_tolerance,
    how_strong,
    take_its_pull,
)
from anchorhold.guard.task_classes import HeadGradients
from anchorhold.holds.base import Hold, states_kept
from anchorhold.tensors.finite import is_finite
from anchorhold.tensors.sharding import is_sharded, like_parameter, whole

INPUTS_FIRST, LOOKED_UP = "inputs first", "looked up"
"""How a block's weight lies: as ``[inputs, outputs]``, and that too with rows that are looked up."""


def to_state(core: Core) -> dict[str, Any]:
    """Return everything needed to go on exactly, as plain values and named tensors."""
    state: dict[str, Any] = {
        "version": VERSION,
        "strength": core.state.strength,
        "decay": core.state.decay,
        "driver": core.state.driver,
        "measures": core.state.settings,
        "tasks": core.state.tasks,
        "steps": dict(core.task.steps),
        "parameters": sorted(core.runtime.parameters),
        **beside_the_usual(core),
        **decided_pull(core.state),
        "tensors": {},
    }
    state |= how_strong(core.state)
    if averages := _averages(core.state):
        state["averages"] = averages
    state |= {key: sorted(kept) for key, kept in _noted(core).items() if kept}
    if core.state.folded_norms:
        state["folded_norms"] = dict(core.state.folded_norms)
    if layouts := _layouts(core.state):
        state["layouts"] = layouts
    tensors = state["tensors"]
    for kind, kept in by_parameter(core).items():
        tensors |= {f"{kind}/{name}": tensor for name, tensor in kept.items()}
    for weight, change in core.state.merged_anchor.items():
        tensors |= {f"merged/{weight}#{part}": tensor for part, tensor in in_parts(change).items()}
    for label, ledger in core.state.ledgers.items():
        for block, matrix in ledger.total.items():
            for part, tensor in matrix.state().items():
                tensors[f"total/{label}/{block}" + (f"#{part}" if part else "")] = tensor
    for hold in core.options.holds:
        tensors |= {f"hold/{hold.name}/{name}": tensor for name, tensor in hold.state().items()}
    state |= watched_values(core)
    tensors |= watched_tensors(core)
    state["tensor_count"] = len(tensors)
    return state


def from_state(core: Core, state: Mapping[str, Any]) -> None:
    """Take over a state, if it is whole and of this model and these measures."""
    check_values(state)
    before, form = (core.state.space, core.runtime.parameters, core.state.implicit), core.state.driving.form
    try:
        _take_its_space(core, state)
        take_its_form(core, state)
        _take(core, state)
    except BaseException:
        (core.state.space, core.runtime.parameters, core.state.implicit), core.state.driving.form = before, form
        core.runtime.version += 1
        raise
    core.state.space = core.state.space.closed()
    warn_of_its_form(core, form)


def _take_its_space(core: Core, state: Mapping[str, Any]) -> None:
    """Let adapters be held as they are in the state, where this guard was not told how."""
    then = state.get("space", USUAL_SETTINGS["space"])
    if core.state.space.is_given or then == core.state.space.value or then not in get_args(Space):
        return
    try:
        go_over_to(core, then)
    except ConfigurationError as error:
        raise StateError(f"The state has space={then!r}, in which this model cannot be held: {error}") from error


def _take(core: Core, state: Mapping[str, Any]) -> None:
    check_settings(core, state)
    tolerance, control = followed_tolerance(core, state)
    tensors: Mapping[str, Tensor] = state["tensors"]
    parameters = parameters_of(core, tensors, state["parameters"])
    measured = core.measured_of(parameters)
    _check_names(parameters, state)
    _check_norms(core.runtime, state)
    kept, totals, holds, merged, seen = _sorted_out(core, parameters, tensors)
    # Some may have come, or thawed, since the last task was consolidated: they are in no block yet.
    changes = _merged_anchor(core, merged)
    anchored = {name: p for name, p in measured.items() if name in changes or name in kept["anchor"]}
    restored = {
        label: _restored(core, ledger, totals[f"total/{label}"], measured if ledger.form.elementwise else anchored)
        for label, ledger in core.state.ledgers.items()
    }
    held = {name for name in kept["anchor"] if name not in core.merged.names} | changes.keys()
    check_completeness(state["tasks"], core.state.driver, core.state.ledgers, held, kept["tilt"], restored)
    strengths = PatternStrengths(dict(state["strengths"])) if "strengths" in state else None
    _check_strengths(core.state, strengths, measured, restored[core.state.driver])

    def check_own_part() -> None:
        check_numbers(kept)
        for label, ledger in core.state.ledgers.items():
            check_importance(label, ledger, restored[label])

    # Of sharded parameters each process sees its own part, and the others must not go on without one that refuses it.
    ranks = core.runtime.ranks if any(map(is_sharded, parameters.values())) else ALONE
    ranks.together(check_own_part)
    watched = ranks.together(lambda: watched_of(core, state.get(WATCHED), seen, measured))
    _load_holds(core.options.holds, holds)
    core.state.strength, core.state.decay, core.state.tasks = state["strength"], state["decay"], state["tasks"]
    core.state.is_as_given = False
    core.state.relative_strength, core.state.driving.strengths = state.get("relative_strength"), strengths
    core.task.steps = dict(state["steps"])
    core.task.watched = watched
    core.state.tolerance, core.state.control = tolerance, control
    form = core.state.driving.form
    core.state.driving.damping = form.penalty_damping if tolerance is None else tolerance.damping_in(form)
    core.state.kept.expected = {name: list(marks) for name, marks in state.get("kept", ())}
    if tolerance is not None and (missing := sorted(core.state.kept.expected.keys() - core.state.kept.keys())):
        warn(
            f"The state was saved with the kept set {missing[0]!r}, and it is not here: kept inputs are data, which no "
            "guard's file carries. Load what guard.kept.save() wrote with guard.kept.load(path), best before this."
        )
    noted = (frozenset(state.get(key, ())) for key in _noted(core))
    core.state.left_frozen, core.state.labels, task, core.state.frozen_norms = noted
    core.state.folded_norms = dict(state.get("folded_norms", {}))
    core.task.head = HeadGradients(task)
    core.state.anchor, core.task.start, core.state.linear_term = kept["anchor"], kept["start"], kept["tilt"]
    core.state.merged_anchor = changes
    core.runtime.forget_replaced()  # a state does not know of which objects it is
    take_its_pull(core, state)
    known = core.runtime.parameters.keys() | core.state.anchor.keys() | core.task.steps.keys()
    core.runtime.parameters = {name: p for name, p in parameters.items() if name in known}
    for label, ledger in core.state.ledgers.items():
        ledger.commit(restored[label])
        ledger.weights = dict(state.get("averages", {}).get(label, {}))
        ledger.running = {running: kept[kind] for running, kind in running_kinds(label, ledger).items()}
    core.runtime.version += 1


class _Tensors(NamedTuple):
    """The tensors of a state by what they are, and then by name."""

    kept: dict[str, dict[str, Tensor]]
    """Those of parameters, as they are kept."""
    totals: dict[str, dict[str, dict[str, Tensor]]]
    holds: dict[str, dict[str, Tensor]]
    merged: dict[str, dict[str, Tensor]]
    watched: dict[str, Tensor]
    """By the parameter's name and what it is of it."""


def _sorted_out(core: Core, parameters: dict[str, nn.Parameter], tensors: Mapping[str, Tensor]) -> _Tensors:
    """Return what each tensor of a state is, or refuse one that does not fit the model."""
    found = _Tensors(
        {kind: {} for kind in by_parameter(core)},
        {f"total/{label}": {} for label in core.state.ledgers},
        {f"hold/{hold.name}": {} for hold in core.options.holds},
        {},
        {},
    )
    known = parameters | core.measured_of(parameters)
    for key, tensor in tensors.items():
        kind, name, part = place_of(core, known, key, tensor.shape)
        if not kind.startswith("hold/"):
            check_dtype(key, tensor, parameters.get(name))
        if kind in found.kept:
            keep = _keeper(core.options, kind)
            found.kept[kind][name] = keep(like_parameter(tensor.detach(), parameters[name]).clone(), parameters[name])
        elif kind == WATCHED:
            found.watched[f"{name}#{part}"] = tensor
        elif kind == "merged":
            found.merged.setdefault(name, {})[part] = tensor.detach()
        elif kind in found.totals:
            found.totals[kind].setdefault(name, {})[part] = tensor.detach()
        else:
            found.holds[kind][name] = tensor.detach().clone()
    return found


def _keeper(options: Options, kind: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Return how tensors of this kind are kept."""
    if kind == "start":
        return options.storage.exact
    return options.storage.running if kind.startswith("running") else options.storage.to_storage


def _restored(
    core: Core, ledger: Ledger, tensors: Mapping[str, Mapping[str, Tensor]], parameters: Mapping[str, nn.Parameter]
) -> dict[str, Matrix]:
    """Return the importances of a measure, each of its tensors where it belongs."""
    blocks = {block.name: block for block in core.merged.blocks_of(ledger.form, parameters)}
    found, once = {}, ledger.once()
    for name, parts in tensors.items():
        if name not in blocks:
            raise StateError(
                f"The state holds an importance of {name!r}, which is no block of this model's parameters in the form "
                f"{ledger.form.name!r}. It was made for another model, or with another `protect`."
            )
        gather = (lambda tensor: tensor) if ledger.form.elementwise else whole  # a matrix is kept in parts by itself
        matrix = ledger.form.restore(blocks[name], {part: gather(t) for part, t in parts.items()}, parameters)
        found[name] = core.matrix_to_storage(matrix.map(Tensor.clone), ledger, once, parameters)
    # In the model's order, as they were measured: a file has them by name, and sums over them are rounded by order.
    return {name: found[name] for name in blocks if name in found}


def _merged_anchor(core: Core, merged: Mapping[str, dict[str, Tensor]]) -> dict[str, Change]:
    """Return what adapters added to weights at the anchor, or refuse what is none of this model's."""
    found: dict[str, Change] = {}
    for name, parts in merged.items():
        change, block = of_parts(parts), core.merged.blocks.get(name)
        if change is None or block is None or size_of(change) != block.size:
            shapes = {part: tuple(tensor.shape) for part, tensor in parts.items()}
            expected = "no adapter of that weight" if block is None else f"one of {block.size} outputs and inputs"
            raise StateError(
                f"The state has an adapter's change of {name!r} made of {shapes}; this model has {expected}. It was "
                "made for another model."
            )
        if not all(map(is_finite, parts.values())):
            raise StateError(
                f"The state is damaged: the anchor of the merged {name!r} has NaN or infinities. Use another copy."
            )
        keep = partial(core.options.storage.to_storage, parameter=core.measured[name])
        found[name] = mapped(mapped(change, Tensor.clone), keep)
    return found


def _load_holds(holds: Sequence[Hold], states: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Give each hold its state; if one refuses it, all are as they were."""
    with states_kept(holds):
        for hold in holds:
            try:
                hold.load_state(states[f"hold/{hold.name}"])
            except (KeyError, TypeError, ValueError, RuntimeError) as error:
                given = sorted(states[f"hold/{hold.name}"]) or "nothing"
                raise StateError(
                    f"The hold {hold.name!r} cannot go on from this state, which has {given} of it "
                    f"({type(error).__name__}: {error}). It was saved by another one of that name."
                ) from error


def _noted(core: Core) -> dict[str, frozenset[Any]]:
    """Return what was noted of the tasks so far, by which it can be told what is not held."""
    return {
        "left_frozen": core.state.left_frozen,
        "labels": core.state.labels,
        "labels_of_task": core.task.head.classes,
        "frozen_norms": core.state.frozen_norms,
    }


def _averages(state: GuardState) -> dict[str, dict[str, float]]:
    """Return how many tasks the totals that are averages are of."""
    return {label: dict(ledger.weights) for label, ledger in state.ledgers.items() if ledger.weights}


def _layouts(state: GuardState) -> dict[str, str]:
    """Return which blocks lie unlike a linear layer's weight, for those who read a state without the model."""
    blocks = (matrix.block for matrix in state.driving.total.values() if matrix.block.inputs_first)
    return {block.name: LOOKED_UP if block.looked_up else INPUTS_FIRST for block in blocks}


def _check_names(parameters: Mapping[str, nn.Parameter], state: Mapping[str, Any]) -> None:
    missing = sorted(set(state["parameters"]) - set(parameters))
    if missing:
        raise StateError(
            f"The state protects {missing[0]!r}{f' and {len(missing) - 1} more' if missing[1:] else ''}, which this "
            "Guard does not: it was made for another model, or with another `protect`."
        )


def _check_strengths(
    state: GuardState,
    strengths: PatternStrengths | None,
    parameters: Mapping[str, nn.Parameter],
    matrices: Mapping[str, Matrix],
) -> None:
    """Refuse strengths by pattern that are not those of the parameters and blocks that they come with."""
    if strengths is None:
        return
    try:
        for name in parameters:
            strengths.of(name)
        for matrix in matrices.values():
            if not state.driving.form.elementwise:
                strengths.check_together(matrix.block.parameters, "one matrix holds both")
    except ConfigurationError as error:
        raise StateError(f"The state was made for another model, or with another `protect`: {error}") from error


def _check_norms(runtime: Runtime, state: Mapping[str, Any]) -> None:
    present = with_statistics(runtime.model)
    missing = sorted({*state.get("frozen_norms", ()), *state.get("folded_norms", ())} - present.keys())
    if missing:
        raise StateError(
            f"The state was made for another model: it has a batch norm {missing[0]!r} with running statistics, and "
            "this model has none of that name."
        )
