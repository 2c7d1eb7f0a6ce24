"""What a state has to be before anything of it is taken: types, ranges, and that nothing is missing.

Whatever is refused here, no version has ever written. Running states are not checked: training may have made them NaN,
which the next consolidation reports with what to do.
"""

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor, nn

from anchorhold.errors import ConfigurationError, StateError, warn
from anchorhold.forms import Matrix
from anchorhold.guard.arguments.strengths import PatternStrengths
from anchorhold.guard.batch_norm.frozen_statistics import with_statistics
from anchorhold.guard.core import GuardState, Runtime
from anchorhold.guard.ledger import Ledger
from anchorhold.guard.state.schema import ALWAYS, READABLE, VALUES
from anchorhold.guard.state.value_types import is_number, shown
from anchorhold.tensors.sharding import is_finite, local

_ROUNDING = 1e-3
"""How far below 0 rounding may take a diagonal of a matrix, against its largest element."""


def check_values(state: Mapping[str, Any]) -> None:
    """Raise StateError if values of a state are not of the types and ranges that a Guard writes."""
    if not isinstance(state, Mapping) or "version" not in state:
        some = f" with {next(iter(state))!r} in it" if isinstance(state, Mapping) and state else ""
        raise StateError(
            f"A {type(state).__name__}{some} is no state of a Guard; expected what state_dict() gave. A model's own "
            "weights are for model.load_state_dict()."
        )
    version = state["version"]
    if type(version) is not int or version not in READABLE:
        raise StateError(
            f"The state has version {version!r}; this anchorhold reads version {' and '.join(map(str, READABLE))}. Use "
            "the anchorhold that wrote it."
        )
    required = {value.key for value in VALUES if value.default is ALWAYS and version >= value.since}
    if absent := sorted(required - set(state)):
        raise StateError(f"The state lacks {absent}: it is not whole. Use another copy.")
    for value in VALUES:
        try:
            if value.key in state:
                value.type.check(value.key, state[value.key])
        except ConfigurationError as error:
            raise StateError(f"The state is damaged: {error} Use another copy.") from error
    for label, weights in state.get("averages", {}).items():
        if not all(is_number(weight) and 1 <= weight <= state["tasks"] for weight in weights.values()):
            raise StateError(
                f"The state is damaged: the averages of {label!r} are {shown(weights)}; expected numbers of tasks, "
                f"from 1 to {state['tasks']}. Use another copy."
            )
    if len(state.get("tokens", ())) > state["tasks"]:
        raise StateError(
            f"The state is damaged: its tokens are {shown(state['tokens'])} for {state['tasks']} tasks; expected one "
            "number for each at most. Use another copy."
        )
    if state.get("exchange_rate") is not None and len(state.get("tokens", ())) < state["tasks"]:
        raise StateError(
            f"The state is damaged: it has an exchange rate, and its tokens are {shown(state.get('tokens', []))} for "
            f"{state['tasks']} tasks; expected one number for each. Use another copy."
        )
    count = state.get("tensor_count", len(state["tensors"]))
    if count != len(state["tensors"]):
        raise StateError(
            f"The state has {len(state['tensors'])} tensors and was written with {count}: it is not whole. Use another "
            "copy."
        )


def check_dtype(key: str, tensor: Tensor, parameter: nn.Parameter | None) -> None:
    """Raise StateError if a tensor of weights or importances is of integers or the like."""
    if not tensor.is_floating_point() and not (parameter is not None and parameter.is_complex()):
        raise StateError(
            f"The state is damaged: {key!r} is of {tensor.dtype}; expected floating-point numbers. Use another copy."
        )


def check_numbers(tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Raise StateError if an anchor or a linear term has NaN or infinities: none is ever consolidated."""
    for prefix, what in {"anchor": "anchor", "tilt": "linear term"}.items():
        for name, tensor in tensors[prefix].items():
            if not is_finite(tensor):
                raise StateError(
                    f"The state is damaged: the {what} of {name!r} has NaN or infinities. Use another copy."
                )


def check_importance(label: str, ledger: Ledger, matrices: Mapping[str, Matrix]) -> None:
    """Raise StateError if an importance is not finite, or below 0 though the measure gives none below."""
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
    linear_term: Collection[str],
    importance: Mapping[str, Mapping[str, Matrix]],
) -> None:
    """Raise StateError if what is anchored has no importance, or the reverse: both come from one task.

    Args:
        tasks: how many were consolidated, by the state.
        driver: the measure that drives the penalty.
        ledgers: the ledgers of all measures.
        held: the names of what has an anchor.
        linear_term: the names of what has a linear term.
        importance: by measure, and then by block.
    """
    anchored = set(held)
    for label, ledger in ledgers.items():
        found = {name for matrix in importance[label].values() for name in matrix.block.parameters}
        # A matrix of several parameters is forgotten with any one of them; a measure that only watches may have
        # nothing to say of a task.
        lacking = anchored - found if label == driver and ledger.form.elementwise else set()
        if found - anchored or lacking:
            what, name = ("anchor", min(found - anchored)) if found - anchored else ("importance", min(lacking))
            raise StateError(
                f"The state has no {what} of {name!r}, though it has the other: it is not whole. Use another copy."
            )
    if extra := set(linear_term) - anchored:
        raise StateError(f"The state has no anchor of {min(extra)!r}, though it has a linear term. Use another copy.")
    if anchored and not tasks:
        raise StateError(f"The state holds {min(anchored)!r} after 0 tasks: it is damaged. Use another copy.")
    if tasks and not anchored:
        warn(
            f"The state was saved after {tasks} task{'s' if tasks > 1 else ''} and holds nothing: everything was "
            "forgotten before, or it is not whole."
        )


def check_model(runtime: Runtime, parameters: Mapping[str, nn.Parameter], state: Mapping[str, Any]) -> None:
    """Raise StateError if the guard lacks parameters of the state, or the model a batch norm."""
    if missing := sorted(set(state["parameters"]) - set(parameters)):
        raise StateError(
            f"The state protects {missing[0]!r}{f' and {len(missing) - 1} more' if missing[1:] else ''}, which this "
            "Guard does not: it was made for another model, or with another `protect`."
        )
    norms = {*state.get("frozen_norms", ()), *state.get("folded_norms", ())}
    if missing := sorted(norms - with_statistics(runtime.model).keys()):
        raise StateError(
            f"The state was made for another model: it has a batch norm {missing[0]!r} with running statistics, and "
            "this model has none of that name."
        )


def check_strengths(
    state: GuardState,
    strengths: PatternStrengths | None,
    parameters: Mapping[str, nn.Parameter],
    matrices: Mapping[str, Matrix],
) -> None:
    """Raise StateError if patterns leave out a parameter, or give the parameters of one matrix several strengths."""
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
