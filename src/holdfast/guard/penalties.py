"""The penalty's value: what the guard's own hold and those beside it make of the weights, to be differentiated."""

from collections.abc import Mapping

from torch import Tensor, nn

from holdfast.errors import ConfigurationError
from holdfast.guard.memory import Memory
from holdfast.guard.steps.training_calls import TrainingCalls
from holdfast.holds import Hold
from holdfast.holds.of_weights.merged_weights import MergedWeights
from holdfast.holds.of_weights.quadratic import penalty_value
from holdfast.tensors.names import named_parameters
from holdfast.tensors.sharding import is_sharded, refuse_partitioned


def penalty_of(memory: Memory, calls: TrainingCalls, *, batches: bool) -> Tensor:
    """Return the penalty, with the losses of holds that run the model only if ``batches``."""
    refuse_partitioned(memory.parameters.items())
    parameters = _in_the_model(memory)
    coordinates = memory.folding.coordinates(parameters)
    value = penalty_value(coordinates, memory.driving.held, memory.anchor, memory.strength)
    for hold in memory.beside_the_quadratic:
        if hold.runs_model and not batches:
            continue
        acting = _without_unloaded(memory, parameters) if isinstance(hold, MergedWeights) else hold
        own = _value_of(acting, memory, parameters, calls)
        value = value if own is None else value + own.to(value.device)
    return value


def _in_the_model(memory: Memory) -> dict[str, nn.Parameter]:
    """Return the protected parameters as the model has them now.

    It is looked at again at a task's first step only, and layers may have been replaced, or adapters unloaded, since.
    """
    here = dict(named_parameters(memory.model, remove_duplicate=False))
    found: dict[str, nn.Parameter] = {}
    for name, known in memory.parameters.items():
        now = here.get(name)
        if now is not None:  # of a shard, what is gathered for a forward pass may be in its place
            same = now.shape == known.shape and not (is_sharded(known) or is_sharded(now))
            found[name] = now if same else known
    return found


def _without_unloaded(memory: Memory, parameters: Mapping[str, nn.Parameter]) -> MergedWeights:
    """Return the hold of merged weights, of the adapters alone that are still there."""
    there = {
        weight
        for weight, parts in memory.merged.parts.items()
        if all(parameters.get(name) is memory.parameters[name] for name in parts)
    }
    return memory.merged.hold({weight: change for weight, change in memory.merged_anchor.items() if weight in there})


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
