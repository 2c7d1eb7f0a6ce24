"""Writing a Guard as a state and reading it back, by the tables of ``schema.py``; all is checked before any change."""

from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from torch import Tensor, nn

from anchorhold.adapters import Change, mapped, of_parts, size_of
from anchorhold.errors import StateError, warn
from anchorhold.forms import Matrix
from anchorhold.guard.core import Core
from anchorhold.guard.distributed.ranks import ALONE
from anchorhold.guard.ledger import Ledger
from anchorhold.guard.microbatches.gradient_sums import Watched
from anchorhold.guard.state.checks import (
    check_completeness,
    check_dtype,
    check_importance,
    check_model,
    check_numbers,
    check_strengths,
    check_values,
)
from anchorhold.guard.state.microbatches import WATCHED, watched_of
from anchorhold.guard.state.schema import (
    TENSOR_KINDS,
    VALUES,
    parameters_of,
    place_in_model,
    prefix_of_hold,
    prefix_of_total,
    prefixes_of_running,
    tensors_of,
)
from anchorhold.guard.state.settings import (
    check_settings,
    take_its_form,
    take_its_pull,
    take_its_space,
    warn_of_its_form,
)
from anchorhold.holds.base import Hold, states_kept
from anchorhold.tensors.sharding import is_finite, is_sharded, like_parameter, whole

Tensors = Mapping[str, Mapping[str, Tensor]]
"""Tensors by prefix, and then by the rest of their keys."""


class _Restored(NamedTuple):
    """What was read of a state and checked, ready to be put in place."""

    parameters: dict[str, nn.Parameter]
    values: dict[str, Any]
    tensors: Tensors
    importance: dict[str, dict[str, Matrix]]
    """By measure, and then by block."""
    merged_anchor: dict[str, Change]
    watched: Watched | None


def to_state(core: Core) -> dict[str, Any]:
    """Return everything needed to go on exactly, as plain values and named tensors."""
    tensors = tensors_of(core)
    counted = {"tensors": tensors, "tensor_count": len(tensors)}
    state = {}
    for value in VALUES:
        written = counted[value.key] if value.key in counted else value.value_in(core)
        if written != value.default:
            state[value.key] = written
    return state


def from_state(core: Core, state: Mapping[str, Any]) -> None:
    """Take over a state. Raise StateError, and change nothing, if it is damaged or of another model or guard."""
    check_values(state)
    before, form = (core.state.space, core.runtime.parameters, core.state.implicit), core.state.driving.form
    try:
        take_its_space(core, state)  # first: what is read depends on both
        take_its_form(core, state)
        restored = _read(core, state)
        _load_holds(core.options.holds, restored.tensors)
    except BaseException:
        (core.state.space, core.runtime.parameters, core.state.implicit), core.state.driving.form = before, form
        core.runtime.version += 1
        raise
    _put(core, restored)
    take_its_pull(core, state)
    core.state.space = core.state.space.closed()
    warn_of_its_form(core, form)


def _read(core: Core, state: Mapping[str, Any]) -> _Restored:
    """Return what a state holds, all of it checked."""
    check_settings(core, state)
    values = {value.key: value.read(core, state.get(value.key, value.default)) for value in VALUES}
    parameters = parameters_of(core, state["tensors"], state["parameters"])
    measured = core.space.measured(parameters)
    check_model(core.runtime, parameters, state)
    tensors = _read_tensors(core, parameters, state["tensors"])
    merged_anchor = _read_merged_anchor(core, tensors["merged"])
    # Some may have come, or thawed, since the last task was consolidated: they are in no block yet.
    anchored = {name: p for name, p in measured.items() if name in merged_anchor or name in tensors["anchor"]}
    importance = {
        label: _read_importance(
            core, ledger, tensors[prefix_of_total(label)], measured if ledger.form.elementwise else anchored
        )
        for label, ledger in core.state.ledgers.items()
    }
    held = {name for name in tensors["anchor"] if name not in core.space.in_parts} | merged_anchor.keys()
    check_completeness(state["tasks"], core.state.driver, core.state.ledgers, held, tensors["tilt"], importance)
    check_strengths(core.state, values["strengths"], measured, importance[core.state.driver])

    def check_own_part() -> None:
        check_numbers(tensors)
        for label, ledger in core.state.ledgers.items():
            check_importance(label, ledger, importance[label])

    # Of sharded parameters each process sees its own part, and the others must not go on without one that refuses it.
    ranks = core.runtime.ranks if any(map(is_sharded, parameters.values())) else ALONE
    ranks.together(check_own_part)
    watched = ranks.together(lambda: watched_of(core, values["watched"], tensors[WATCHED], measured))
    missing = sorted(values["kept"].keys() - core.state.kept.keys())
    if values["tolerance"] is not None and missing:
        warn(
            f"The state was saved with the kept set {missing[0]!r}, and it is not here: kept inputs are data, which no "
            "guard's file carries. Load what guard.kept.save() wrote with guard.kept.load(path), best before this."
        )
    return _Restored(parameters, values, tensors, importance, merged_anchor, watched)


def _put(core: Core, restored: _Restored) -> None:
    """Put what was read in its place."""
    for value in VALUES:
        if value.home:
            _set(core, value.home, restored.values[value.key])
    for kind in TENSOR_KINDS:
        if kind.home:
            (prefix,) = kind.prefixes(core)
            _set(core, kind.home, restored.tensors[prefix])
    core.state.merged_anchor, core.task.watched = restored.merged_anchor, restored.watched
    core.state.is_as_given = False
    form, tolerance = core.state.driving.form, core.state.tolerance
    core.state.driving.damping = form.penalty_damping if tolerance is None else tolerance.damping_in(form)
    for label, ledger in core.state.ledgers.items():
        ledger.commit(restored.importance[label])
        ledger.weights = dict(restored.values["averages"].get(label, {}))
        prefixes = prefixes_of_running(label, ledger)
        ledger.running = {state: dict(restored.tensors[prefix]) for prefix, state in prefixes.items()}
    known = core.runtime.parameters.keys() | core.state.anchor.keys() | core.task.steps.keys()
    core.runtime.parameters = {name: p for name, p in restored.parameters.items() if name in known}
    core.runtime.forget_replaced()  # a state does not know of which objects it is
    core.runtime.version += 1


def _set(core: Core, home: str, value: Any) -> None:
    owner, _, name = home.rpartition(".")
    setattr(attrgetter(owner)(core), name, value)


def _read_tensors(core: Core, parameters: Mapping[str, nn.Parameter], given: Mapping[str, Tensor]) -> Tensors:
    """Return a state's tensors, those of parameters as they are kept. Raise StateError if one does not fit."""
    found: dict[str, dict[str, Tensor]] = {prefix: {} for kind in TENSOR_KINDS for prefix in kind.prefixes(core)}
    known = {**parameters, **core.space.measured(dict(parameters))}
    for key, tensor in given.items():
        kind, prefix, name, _ = place_in_model(core, known, key, tensor.shape)
        kept = tensor.detach()
        if kind.precision is None:
            kept = kept.clone()
        else:
            check_dtype(key, tensor, parameters.get(name))
            if kind.is_by_parameter:
                keep = kind.precision.keep(core.options.storage)
                kept = keep(like_parameter(kept, parameters[name]).clone(), parameters[name])
        found[prefix][key[len(prefix) + 1 :]] = kept
    return found


def _by_block(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Return tensors called ``BLOCK#PART`` by block, and then by part."""
    found: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        block, mark, part = name.rpartition("#")
        found.setdefault(block if mark else name, {})[part if mark else ""] = tensor
    return found


def _read_importance(
    core: Core, ledger: Ledger, tensors: Mapping[str, Tensor], parameters: Mapping[str, nn.Parameter]
) -> dict[str, Matrix]:
    """Return the importance of a measure, by block. Raise StateError if the model lacks one of its blocks."""
    blocks = {block.name: block for block in core.space.blocks(ledger.form, parameters)}
    found, once, elementwise = {}, ledger.once(), ledger.form.elementwise
    of_blocks = {name: {"": tensor} for name, tensor in tensors.items()} if elementwise else _by_block(tensors)
    for name, parts in of_blocks.items():
        if name not in blocks:
            raise StateError(
                f"The state holds an importance of {name!r}, which is no block of this model's parameters in the form "
                f"{ledger.form.name!r}. It was made for another model, or with another `protect`."
            )
        gathered = parts if elementwise else {part: whole(tensor) for part, tensor in parts.items()}
        matrix = ledger.form.restore(blocks[name], gathered, parameters)
        found[name] = core.matrix_to_storage(matrix.map(Tensor.clone), ledger, once, parameters)
    # In the model's order, as they were measured: a file has them by name, and sums over them are rounded by order.
    return {name: found[name] for name in blocks if name in found}


def _read_merged_anchor(core: Core, tensors: Mapping[str, Tensor]) -> dict[str, Change]:
    """Return what adapters had added to weights at the anchor. Raise StateError if the model has other adapters."""
    found: dict[str, Change] = {}
    sizes = {name: size_of(change) for name, change in (core.space.changes() if tensors else {}).items()}
    for name, parts in _by_block(tensors).items():
        change, size = of_parts(parts), sizes.get(name)
        if change is None or size_of(change) != size:
            shapes = {part: tuple(tensor.shape) for part, tensor in parts.items()}
            expected = "no adapter of that weight" if size is None else f"one of {size} outputs and inputs"
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


def _load_holds(holds: Sequence[Hold], tensors: Tensors) -> None:
    """Give each hold its state. Raise StateError, with all holds as they were, if one refuses it."""
    with states_kept(holds):
        for hold in holds:
            own = dict(tensors[prefix_of_hold(hold.name)])
            try:
                hold.load_state(own)
            except (KeyError, TypeError, ValueError, RuntimeError) as error:
                raise StateError(
                    f"The hold {hold.name!r} cannot go on from this state, which has {sorted(own) or 'nothing'} of it "
                    f"({type(error).__name__}: {error}). It was saved by another one of that name."
                ) from error
