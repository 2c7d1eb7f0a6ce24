"""Which parameters of a model are protected: found at first, and again whenever the model may have changed.

Parameters come, go, are frozen and unfrozen, replaced by others and moved to other devices, and what is kept about them
follows.
"""

from functools import partial

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from anchorhold.errors import ConfigurationError, OrderError, ProtectError
from anchorhold.guard.arguments.default_space import default_space, warn_of_unmerged
from anchorhold.guard.arguments.fitting_strengths import check_blocks, check_strengths
from anchorhold.guard.core import Core
from anchorhold.guard.distributed.sharded_matrices import refuse_unless_in_parts
from anchorhold.guard.forget import forget
from anchorhold.spaces import Space, SpaceName
from anchorhold.tensors.names import named_parameters
from anchorhold.tensors.sharding import like_parameter, reshard


def first_look(core: Core) -> None:
    """Find the parameters that a new guard protects, or refuse those that it cannot hold."""
    found = core.options.selection.find(core.runtime.model)
    if core.state.space.is_open:  # first: strengths by pattern are of the names that the space has
        core.state.space = core.state.space.having(default_space(core, found))
    core.protect(*_taken_by_forms(core, found))
    _hold_in_the_gradient(core)
    if core.state.driving.strengths is not None:
        check_strengths(core, core.state.driving.strengths)


def refresh(core: Core) -> None:
    """Look at the model again: take in parameters that were added, unfrozen, replaced or moved."""
    reshard(core.runtime.model)
    core.runtime.find_ranks()
    present = dict(named_parameters(core.runtime.model))
    # What is held, or has been watched in this task, stays so when it is frozen: by default, the selection is of
    # what can be trained at this moment.
    kept = core.state.anchor.keys() | core.task.steps.keys()
    found = core.options.selection.find(core.runtime.model, some=not kept)
    is_open = (
        core.state.space.is_open
        and not (core.state.tasks or kept or core.state.is_anchored)
        and core.task.watched is None
    )
    space = default_space(core, found) if is_open else core.state.space.value
    before = core.runtime.parameters
    _take_in(core, space, {n: p for n, p in present.items() if n in found or n in kept})
    if not core.task.steps:
        core.runtime.replaced |= {
            n for n, p in core.runtime.parameters.items() if n in core.state.anchor and before.get(n) is not p
        }
    if is_open:
        warn_of_unmerged(core)
    for name in [name for name in core.state.anchor if name not in present and core.space.covers(name)]:
        del core.state.anchor[name]  # an adapter was taken away, and its layer has another, or none that acts
    seen = (core.task.start, *core.state.running())
    for name, parameter in core.runtime.parameters.items():
        anchor = core.state.anchor.get(name)
        if anchor is None:
            if any(tensors[name].shape != parameter.shape for tensors in seen if name in tensors):
                forget(core, name)  # another parameter, which takes its first step of this task from here
        elif anchor.shape != parameter.shape:
            if name in core.space.in_parts:
                del core.state.anchor[name]  # of another rank, with the same weight to be held
            else:
                refuse_another_shape(name, anchor, parameter)
    _follow_parameters(core)
    _follow_measured(core)


def refuse_another_shape(name: str, anchor: Tensor, parameter: Tensor) -> None:
    """Refuse a parameter that cannot be held to its anchor."""
    if anchor.shape != parameter.shape:
        raise ProtectError(
            f"{name!r} was consolidated with shape {tuple(anchor.shape)} and now has {tuple(parameter.shape)}. "
            f"Restore it, or call forget({name!r}) to delete its importance."
        )


def refresh_for(core: Core, call: str) -> None:
    """Look at the model again, and refuse a call while protected parameters have no numbers to be seen or held."""
    refresh(core)
    lazy = [name for name, parameter in core.runtime.parameters.items() if is_lazy(parameter)]
    if lazy:
        more = f" and {len(lazy) - 1} more" if lazy[1:] else ""
        raise OrderError(
            f"{call} of a model with lazy layers (such as nn.LazyLinear): {lazy[0]!r}{more} are not initialised "
            "yet; expected protected parameters that have a shape. Run one batch through the model first."
        )
    if empty := next((name for name, parameter in core.runtime.parameters.items() if parameter.is_meta), None):
        raise OrderError(
            f"{call} of a model with {empty!r} on the device 'meta', where tensors have no values: it was made without "
            "its weights, or a loader has put some of them elsewhere (device_map= with offloading). Load all of them "
            "onto a device first."
        )


def go_over_to(core: Core, space: SpaceName) -> None:
    """Hold adapters in another space from now on, or refuse it and stay as it was: for a state that has it."""
    _take_in(core, space, core.options.selection.find(core.runtime.model))


def _take_in(core: Core, space: SpaceName, wanted: dict[str, nn.Parameter]) -> None:
    """Protect these parameters in a space, or refuse it and stay as it was."""
    before, core.state.space = core.state.space, core.state.space.having(space)
    try:
        core.protect(*_taken_by_forms(core, wanted))
    except ConfigurationError:
        core.state.space = before
        raise
    _hold_in_the_gradient(core)


def _hold_in_the_gradient(core: Core) -> None:
    """Let nobody decide that coordinates are pulled after steps that take none of their own."""
    if core.space_kind.why_explicit and core.state.implicit.is_open:
        core.state.implicit = core.state.implicit.having(False)


def _taken_by_forms(core: Core, parameters: dict[str, nn.Parameter]) -> tuple[dict[str, nn.Parameter], Space]:
    """Return parameters and their space, or refuse those that a form cannot keep an importance of."""
    form = core.state.driving.form
    core.options.storage.check(parameters)
    refuse_unless_in_parts(form, core.runtime.model)
    space = core.space_of(parameters)
    parameters = space.without_layers(parameters)
    space.check_form(form, parameters)
    if core.state.driving.strengths is not None:
        check_blocks(core, core.state.driving.strengths, space, parameters)
    return parameters, space


def _follow_parameters(core: Core) -> None:
    """Move what is kept about parameters to where it belongs now."""
    storage, state = core.options.storage, core.state
    running = [(storage.running, tensors) for tensors in state.running()]
    resting = [(storage.to_storage, state.anchor), (storage.to_storage, state.linear_term)]
    for keep, tensors in (*resting, (storage.exact, core.task.start), *running):
        for name, kept in tensors.items():
            parameter = core.runtime.parameters.get(name)
            if parameter is not None and not storage.is_in_place(kept, parameter):
                tensors[name] = keep(like_parameter(kept, parameter), parameter)


def _follow_measured(core: Core) -> None:
    """Do the same with importances, those of the diagonal spread as the parameters are."""
    measured = core.measured
    for ledger in core.state.ledgers.values():
        # What is held mostly is the total itself.
        for matrices in (ledger.total,) if ledger.held is ledger.total else (ledger.total, ledger.held):
            once = ledger.once()
            for name, matrix in matrices.items():
                like = measured.get(matrix.block.parameters[0])
                if like is None:
                    continue
                is_in_place = partial(ledger.storage.is_in_place, parameter=like)
                if not all(map(is_in_place, matrix.state().values())):
                    matrices[name] = core.matrix_to_storage(matrix, ledger, once, measured)
