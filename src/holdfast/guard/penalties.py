"""The penalty's value: what the guard's own hold and those beside it make of the weights, to be differentiated."""

from torch import Tensor

from holdfast.errors import ConfigurationError
from holdfast.guard.memory import Memory
from holdfast.guard.steps.training_calls import TrainingCalls
from holdfast.holds import Hold
from holdfast.holds.of_weights.quadratic import penalty_value
from holdfast.tensors.sharding import refuse_partitioned


def penalty_of(memory: Memory, calls: TrainingCalls, *, batches: bool) -> Tensor:
    """Return the penalty, with the losses of holds that run the model only if ``batches``."""
    refuse_partitioned(memory.parameters.items())
    coordinates = memory.folding.coordinates(memory.parameters)
    value = penalty_value(coordinates, memory.driving.held, memory.anchor, memory.strength)
    for hold in memory.beside_the_quadratic:
        if hold.runs_model and not batches:
            continue
        own = _value_of(hold, memory, calls)
        value = value if own is None else value + own.to(value.device)
    return value


def _value_of(hold: Hold, memory: Memory, calls: TrainingCalls) -> Tensor | None:
    """Return what one hold is worth now, or refuse what is no number."""
    with calls.paused():
        own = hold.value(memory.held(memory.parameters, call=calls.last))
    if own is not None and not (isinstance(own, Tensor) and own.ndim == 0):
        raise ConfigurationError(
            f"The hold {hold.name!r} has a value of type {type(own).__name__}; expected a tensor of one "
            "number, or None for a hold that is no loss."
        )
    return own
