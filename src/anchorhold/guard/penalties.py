"""The penalty's value: what the guard's own hold and those beside it make of the weights, to be differentiated."""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from anchorhold.adapters import has_adapters
from anchorhold.errors import ConfigurationError
from anchorhold.guard.memory import Memory
from anchorhold.guard.noticing.other_weights import warn_of_replaced_in_the_penalty
from anchorhold.guard.noticing.protection import (
    warn_of_fresh_adapters,
    warn_of_gone_in_the_penalty,
    warn_of_unloaded_adapters,
)
from anchorhold.guard.refreshing import refresh, refuse_another_shape
from anchorhold.guard.steps.training_calls import TrainingCalls
from anchorhold.holds import Hold
from anchorhold.holds.of_weights.quadratic import penalty_value
from anchorhold.tensors.names import named_parameters
from anchorhold.tensors.sharding import is_sharded, refuse_partitioned


def penalty_of(memory: Memory, calls: TrainingCalls, *, batches: bool) -> Tensor:
    """Return the penalty, with the losses of holds that run the model only if ``batches``."""
    refuse_partitioned(memory.parameters.items())
    here = dict(named_parameters(memory.model, remove_duplicate=False))
    holds, parameters = _beside_the_quadratic(memory, here), _in_the_model(memory, here)
    warn_of_replaced_in_the_penalty(memory, parameters)
    warn_of_gone_in_the_penalty(memory, parameters)
    coordinates = memory.folding.coordinates(parameters)
    value = penalty_value(coordinates, memory.driving.held, memory.anchor, memory.strength)
    for hold in holds:
        if hold.runs_model and not batches:
            continue
        own = _value_of(hold, memory, parameters, calls)
        value = value if own is None else value + own.to(value.device)
    return value


def _in_the_model(memory: Memory, here: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """Return the protected parameters as the model has them now, of all that it has here.

    It is looked at again at a task's first step only, and layers may have been replaced, or adapters unloaded, since.
    """
    held = memory.driving.held_names
    found: dict[str, nn.Parameter] = {}
    for name, known in memory.parameters.items():
        now = here.get(name)
        if now is None:
            continue
        if is_sharded(known) or is_sharded(now):  # what is gathered for a forward pass may be in its place
            found[name] = known
            continue
        if name in held and name in memory.anchor:
            refuse_another_shape(name, memory.anchor[name], now)
        found[name] = now
    return found


def _beside_the_quadratic(memory: Memory, here: Mapping[str, nn.Parameter]) -> Sequence[Hold]:
    """Return what pulls beside the quadratic hold; of merged weights, by the adapters that the model has now.

    Others may have come in their place since, of whose steps the guard may see none: what it would do at the first of
    them is done here.
    """
    if memory.merged_anchor and not _has_its_adapters(memory, here):
        if not has_adapters(memory.model, {id(parameter) for parameter in here.values()}):
            warn_of_unloaded_adapters(memory)
            return memory.holds
        refresh(memory)
        warn_of_fresh_adapters(memory)
    return memory.beside_the_quadratic


def _has_its_adapters(memory: Memory, here: Mapping[str, nn.Parameter]) -> bool:
    """Whether protected parameters are those of the model, or what it is called with in their place for a while."""
    now = ((here.get(name), known) for name, known in memory.parameters.items())
    return all(p is known or (p is not None and not isinstance(p, nn.Parameter)) for p, known in now)


def _value_of(
    hold: Hold, memory: Memory, parameters: Mapping[str, nn.Parameter], calls: TrainingCalls
) -> Tensor | None:
    """Return what one hold is worth now, or refuse what is no number."""
    with calls.paused():
        own = hold.value(memory.held(parameters, call=calls.last))
    if own is not None and not (isinstance(own, Tensor) and own.ndim == 0):
        raise ConfigurationError(
            f"The hold {hold.name!r} has a value of type {type(own).__name__}; expected a tensor of one "
            "number, or None for a hold that is no loss."
        )
    return own
