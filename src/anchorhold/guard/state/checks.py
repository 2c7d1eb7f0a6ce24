"""What a state has to be before anything in it is believed: types, ranges, and that nothing is missing.

``state.py`` asks for all of it before it changes anything. What is refused here, no version has ever written; a running
state is not looked into, since training may have made it NaN, which the next consolidation says with what to do.
"""

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import Tensor, nn

from anchorhold.errors import ConfigurationError, StateError, warn
from anchorhold.forms import Matrix
from anchorhold.guard.arguments.checked_arguments import checked_decay
from anchorhold.guard.arguments.strengths import LARGEST, PatternStrengths, checked_relative_strength, checked_strength
from anchorhold.guard.ledger import Ledger
from anchorhold.guard.state.files import READABLE
from anchorhold.settings import number
from anchorhold.tensors.finite import is_finite
from anchorhold.tensors.sharding import local

_ALWAYS = ("strength", "decay", "driver", "measures", "tasks", "steps", "parameters", "tensors")
_COUNTED = 2
"""The version from which a state says how many tensors it has."""
_ROUNDING = 1e-3
"""How far below 0 rounding may take a diagonal of a matrix, against its largest element."""


def _no_state(given: object) -> StateError:
    """Return what to say of something else than a state."""
    some = f" with {next(iter(given))!r} in it" if isinstance(given, Mapping) and given else ""
    return StateError(
        f"A {type(given).__name__}{some} is no state of a Guard; expected what state_dict() gave. A model's own "
        "weights are for model.load_state_dict()."
    )


def check_values(state: Mapping[str, Any]) -> None:
    """Refuse a state whose values are not of the types and ranges that a Guard writes."""
    if not isinstance(state, Mapping) or "version" not in state:
        raise _no_state(state)
    version = state["version"]
    if type(version) is not int or version not in READABLE:
        raise StateError(
            f"The state has version {version!r}; this anchorhold reads version {' and '.join(map(str, READABLE))}. Use "
            "the anchorhold that wrote it."
        )
    if absent := sorted({*_ALWAYS, *(["tensor_count"] if version >= _COUNTED else [])} - set(state)):
        raise StateError(f"The state lacks {absent}: it is not whole. Use another copy.")
    checks = {
        "strength": _checked_number,
        "decay": checked_decay,
        "strengths": lambda given: PatternStrengths(_checked_patterns(given)),
        "relative_strength": checked_relative_strength,
    }
    for name, check in checks.items():
        try:
            if name in state:
                check(state[name])
        except ConfigurationError as error:
            raise StateError(f"The state is damaged: {error} Use another copy.") from error
    for name, (fits, expected) in _FIT.items():
        if name in state and not fits(state[name]):
            raise StateError(
                f"The state is damaged: its {name} are {_shown(state[name])}; expected {expected}. Use another copy."
            )
    for label, weights in state.get("averages", {}).items():
        if not all(_is_number(weight) and 1 <= weight <= state["tasks"] for weight in weights.values()):
            raise StateError(
                f"The state is damaged: the averages of {label!r} are {_shown(weights)}; expected numbers of tasks, "
                f"from 1 to {state['tasks']}. Use another copy."
            )
    count = state.get("tensor_count", len(state["tensors"]))
    if count != len(state["tensors"]):
        raise StateError(
            f"The state has {len(state['tensors'])} tensors and was written with {count}: it is not whole. Use another "
            "copy."
        )


def check_dtype(key: str, tensor: Tensor, parameter: nn.Parameter | None) -> None:
    """Refuse whole numbers and the like where a weight's or an importance's value has to be."""
    if not tensor.is_floating_point() and not (parameter is not None and parameter.is_complex()):
        raise StateError(
            f"The state is damaged: {key!r} is of {tensor.dtype}; expected floating-point numbers. Use another copy."
        )


def check_numbers(kept: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Refuse an anchor or a tilt with NaN or an infinity, of which none is ever consolidated."""
    for kind in ("anchor", "tilt"):
        for name, tensor in kept[kind].items():
            if not is_finite(tensor):
                raise StateError(
                    f"The state is damaged: the {kind} of {name!r} has NaN or infinities. Use another copy."
                )


def check_importance(label: str, ledger: Ledger, matrices: Mapping[str, Matrix]) -> None:
    """Refuse importances that no task can have had: not finite, or below 0 though the measure gives none below."""
    for name, matrix in matrices.items():
        if not matrix.is_finite:
            raise StateError(
                f"The state is damaged: the importance of {name!r} by {label} has NaN or infinities. Use another copy."
            )
        if ledger.measure.clamps_total:
            continue
        for inner, omega in matrix.diagonal().items():
            own = local(omega)
            if not own.numel():
                continue
            least = float(own.min())
            if least < (0 if ledger.form.elementwise else -_ROUNDING * float(own.abs().max())):
                raise StateError(
                    f"The state is damaged: {label} has an importance of {least:g} for a weight of {inner!r}; expected "
                    "none below 0, by which weights would be pushed away from the anchor. Use another copy."
                )


def check_completeness(
    tasks: int,
    driver: str,
    ledgers: Mapping[str, Ledger],
    held: Collection[str],
    tilt: Mapping[str, Tensor],
    totals: Any,
) -> None:
    """Refuse a state that knows of an anchor and not of an importance, or the reverse: both come from one task.

    Args:
        tasks: how many the state says were consolidated.
        driver: the measure that holds the weights.
        ledgers: every measure's.
        held: the names of what has an anchor.
        tilt: how the hold leans there, by name.
        totals: every measure's importances, by name and then by block.
    """
    anchored = set(held)
    for label, ledger in ledgers.items():
        found = {name for matrix in totals[label].values() for name in matrix.block.parameters}
        # A matrix of several parameters is forgotten with any one of them; a measure that only watches may have
        # nothing to say of a task.
        lacking = anchored - found if label == driver and ledger.form.elementwise else set()
        if found - anchored or lacking:
            what, name = ("anchor", min(found - anchored)) if found - anchored else ("importance", min(lacking))
            raise StateError(
                f"The state has no {what} of {name!r}, though it has the other: it is not whole. Use another copy."
            )
    if extra := set(tilt) - anchored:
        raise StateError(f"The state has no anchor of {min(extra)!r}, though it has a tilt. Use another copy.")
    if anchored and not tasks:
        raise StateError(f"The state holds {min(anchored)!r} after 0 tasks: it is damaged. Use another copy.")
    if tasks and not anchored:
        warn(
            f"The state was saved after {tasks} task{'s' if tasks > 1 else ''} and holds nothing: everything was "
            "forgotten before, or it is not whole."
        )


def _checked_number(value: object) -> float:
    return number("strength", value, "a number from 0 to 1e38", lambda c: 0 <= c <= LARGEST)


def _checked_patterns(given: object) -> dict[str, float]:
    """Return strengths by pattern from the pairs that a state has, in which their order is kept."""
    pairs: list[Any] = list(given) if isinstance(given, list | tuple) else [given]
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs):
        raise ConfigurationError(f"its strengths are {_shown(given)}; expected pairs of a pattern and a number.")
    found = checked_strength(dict(pairs))
    assert isinstance(found, dict)  # of a mapping it always is
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _are_names(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)


def _are_distinct(value: object) -> bool:
    return isinstance(value, list | tuple) and _are_names(value) and len(set(value)) == len(value)


def _are_labels(value: object) -> bool:
    return isinstance(value, list | tuple) and all(type(label) is int for label in value)


def _maps(inner: Callable[[object], bool]) -> Callable[[object], bool]:
    """Return whether something maps names to what fits."""

    def fits(value: object) -> bool:
        return isinstance(value, Mapping) and all(isinstance(k, str) and inner(v) for k, v in value.items())

    return fits


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


_NAMES = _are_names, "a list of names"
_LABELS = _are_labels, "a list of whole numbers"


def _is_tolerance(value: Any) -> bool:
    return isinstance(value, Mapping) and _is_number(value.get("nats")) and value["nats"] > 0


def _are_marked(value: Any) -> bool:
    """Whether these are pairs of a name, each once, and numbers."""
    if not isinstance(value, list | tuple) or not all(isinstance(p, list | tuple) and len(p) == 2 for p in value):
        return False
    names = [name for name, _ in value]
    marked = all(isinstance(marks, list | tuple) and all(map(_is_number, marks)) for _, marks in value)
    return marked and all(isinstance(name, str) for name in names) and len(set(names)) == len(names)


_FIT: dict[str, tuple[Callable[[object], bool], str]] = {
    "tasks": (_is_count, "a whole number, 0 or more"),
    "tensor_count": (_is_count, "a whole number, 0 or more"),
    "driver": (lambda value: isinstance(value, str), "a measure's name"),
    "measures": (_maps(lambda settings: isinstance(settings, Mapping)), "measures by name, with their settings"),
    "steps": (_maps(_is_count), "whole numbers by parameter, 0 or more"),
    "parameters": (_are_distinct, "each name once"),
    "tensors": (_maps(lambda value: isinstance(value, Tensor)), "tensors by name"),
    "averages": (_maps(_maps(_is_number)), "numbers of tasks by measure and block"),
    "left_frozen": _NAMES,
    "frozen_norms": _NAMES,
    "labels": _LABELS,
    "labels_of_task": _LABELS,
    "tolerance": (_is_tolerance, "its nats, a number above 0, and how it is followed"),
    "made_with": (lambda value: isinstance(value, str), "a strength in words"),
    "kept": (_are_marked, "each name once, with numbers"),
    "control": (_maps(lambda value: value is None or isinstance(value, int | float | list)), "plain values by name"),
    "implicit": (lambda value: isinstance(value, bool), "true or false"),
    "implicit_is_open": (lambda value: isinstance(value, bool), "true or false"),
    "folded_norms": (_maps(lambda value: isinstance(value, str)), "layers by batch norm"),
}
