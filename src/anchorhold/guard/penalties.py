"""The penalty's value: what the guard's own hold and those beside it make of the weights, to be differentiated."""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from anchorhold.adapters import has_adapters
from anchorhold.errors import ConfigurationError
from anchorhold.guard.core import Core
from anchorhold.guard.monitor import AdapterState, Monitor
from anchorhold.guard.refreshing import refresh, refuse_another_shape
from anchorhold.guard.stepping.training_calls import TrainingCalls
from anchorhold.holds.of_weights.quadratic import penalty_value
from anchorhold.tensors.names import named_parameters
from anchorhold.tensors.sharding import is_sharded, refuse_partitioned


def penalty_of(core: Core, monitors: Sequence[Monitor], calls: TrainingCalls, *, batches: bool) -> Tensor:
    """Return the penalty, with the losses of holds that run the model only if ``batches``."""
    refuse_partitioned(core.runtime.parameters.items())
    here = dict(named_parameters(core.runtime.model, remove_duplicate=False))
    adapters = _adapter_state(core, here)
    # The first step that a guard sees would do this, and it may see none.
    if adapters == "replaced" or any(n in here and n not in core.runtime.parameters for n in core.state.anchor):
        refresh(core)
    parameters = _in_the_model(core, here)
    for monitor in monitors:
        monitor.before_penalty(parameters, adapters)
    # Without the adapters there are no coordinates of theirs, and only further holds are left.
    unloaded = adapters == "unloaded"
    holds = core.options.holds if unloaded else core.beside_the_quadratic
    coordinates = parameters if unloaded else core.space.coordinates(parameters)
    value = penalty_value(coordinates, core.state.driving.held, core.state.anchor, core.state.strength)
    for hold in holds:
        if hold.runs_model and not batches:
            continue
        with calls.paused():
            own = hold.value(core.held(parameters, call=calls.last))
        if own is not None and not (isinstance(own, Tensor) and own.ndim == 0):
            raise ConfigurationError(
                f"The hold {hold.name!r} has a value of type {type(own).__name__}; expected a tensor of one "
                "number, or None for a hold that is no loss."
            )
        value = value if own is None else value + own.to(value.device)
    return value


def _in_the_model(core: Core, here: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """Return the protected parameters as the model has them now, of all that it has here.

    It is looked at again at a task's first step only, and layers may have been replaced, or adapters unloaded, since.
    """
    held = core.state.driving.held_names
    found: dict[str, nn.Parameter] = {}
    for name, known in core.runtime.parameters.items():
        now = here.get(name)
        if now is None:
            continue
        if is_sharded(known) or is_sharded(now):  # what is gathered for a forward pass may be in its place
            found[name] = known
            continue
        if name in held and name in core.state.anchor:
            refuse_another_shape(name, core.state.anchor[name], now)
        found[name] = now
    return found


def _adapter_state(core: Core, here: Mapping[str, nn.Parameter]) -> AdapterState:
    """Return whether the model has the adapters that hold merged weights, others in their place, or none any more."""
    # Those of the guard, or what the model is called with in their place for a while.
    now = ((here.get(name), known) for name, known in core.runtime.parameters.items())
    if not core.state.merged_anchor or all(
        p is known or (p is not None and not isinstance(p, nn.Parameter)) for p, known in now
    ):
        return "same"
    has_some = has_adapters(core.runtime.model, {id(parameter) for parameter in here.values()})
    return "replaced" if has_some else "unloaded"
