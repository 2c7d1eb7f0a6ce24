"""Which parameters of a model are protected: found at first, and again whenever the model may have changed.

Parameters come, go, are frozen and unfrozen, replaced by others and moved to other devices, and what is kept about them
follows.
"""

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from anchorhold.errors import ConfigurationError, OrderError, ProtectError
from anchorhold.forms import Matrix
from anchorhold.guard.arguments.default_space import default_space, tell_of_unmerged
from anchorhold.guard.arguments.fitting_strengths import check_blocks, check_strengths
from anchorhold.guard.distributed.sharded_matrices import refuse_unless_in_parts
from anchorhold.guard.ledger import Ledger
from anchorhold.guard.letting_go import forget
from anchorhold.guard.memory import Memory
from anchorhold.guard.merged_space import MergedSpace, Space
from anchorhold.tensors.names import named_parameters
from anchorhold.tensors.sharding import like_parameter, reshard


def first_look(memory: Memory) -> None:
    """Find the parameters that a new guard protects, or refuse those that it cannot hold."""
    found = memory.selection.find(memory.model)
    if memory.space_is_open:  # first: strengths by pattern are of the names that the space has
        memory.space = default_space(memory, found)
    memory.parameters = _taken_by_forms(memory, found)
    _hold_merged_in_the_gradient(memory)
    if memory.driving.strengths is not None:
        check_strengths(memory, memory.driving.strengths)


def refresh(memory: Memory) -> None:
    """Look at the model again: take in parameters that were added, unfrozen, replaced or moved."""
    reshard(memory.model)
    memory.find_ranks()
    present = dict(named_parameters(memory.model))
    # What is held, or has been watched in this task, stays so when it is frozen: by default, the selection is of
    # what can be trained at this moment.
    kept = memory.anchor.keys() | memory.steps.keys()
    found = memory.selection.find(memory.model, some=not kept)
    is_open = memory.space_is_open and not (memory.tasks or kept or memory.is_anchored) and memory.watched is None
    space = default_space(memory, found) if is_open else memory.space
    before = memory.parameters
    _take_in(memory, space, {n: p for n, p in present.items() if n in found or n in kept})
    if not memory.steps:
        memory.replaced |= {n for n, p in memory.parameters.items() if n in memory.anchor and before.get(n) is not p}
    if is_open:
        tell_of_unmerged(memory)
    for name in [name for name in memory.anchor if name not in present and memory.merged.covers(name)]:
        del memory.anchor[name]  # an adapter was taken away, and its layer has another, or none that acts
    for name, parameter in memory.parameters.items():
        anchor = memory.anchor.get(name)
        known = [tensors[name] for tensors in (memory.start, *memory.running()) if name in tensors]
        if anchor is None and any(tensor.shape != parameter.shape for tensor in known):
            forget(memory, name)  # another parameter, which takes its first step of this task from here
        elif anchor is not None and anchor.shape != parameter.shape and name in memory.merged.names:
            del memory.anchor[name]  # of another rank, with the same weight to be held
        elif anchor is not None:
            refuse_another_shape(name, anchor, parameter)
        _follow(memory, name, parameter)
    for ledger in memory.ledgers.values():
        for matrices in (ledger.total, ledger.held):
            _follow_matrices(memory, matrices, ledger)


def refuse_another_shape(name: str, anchor: Tensor, parameter: Tensor) -> None:
    """Refuse a parameter that cannot be held to its anchor."""
    if anchor.shape != parameter.shape:
        raise ProtectError(
            f"{name!r} was consolidated with shape {tuple(anchor.shape)} and now has {tuple(parameter.shape)}. "
            f"Restore it, or call forget({name!r}) to let go of what was learned there."
        )


def refresh_for(memory: Memory, call: str) -> None:
    """Look at the model again, and refuse a call while protected parameters have no numbers to be seen or held."""
    refresh(memory)
    lazy = [name for name, parameter in memory.parameters.items() if is_lazy(parameter)]
    if lazy:
        more = f" and {len(lazy) - 1} more" if lazy[1:] else ""
        raise OrderError(
            f"{call} of a model with lazy layers (such as nn.LazyLinear): {lazy[0]!r}{more} are not initialised "
            "yet; expected protected parameters that have a shape. Run one batch through the model first."
        )
    if empty := next((name for name, parameter in memory.parameters.items() if parameter.is_meta), None):
        raise OrderError(
            f"{call} of a model with {empty!r} on the device 'meta', where tensors have no values: it was made without "
            "its weights, or a loader has put some of them elsewhere (device_map= with offloading). Load all of them "
            "onto a device first."
        )


def go_over_to(memory: Memory, space: Space) -> None:
    """Hold adapters in another space from now on, or refuse it and stay as it was: for a state that has it."""
    _take_in(memory, space, memory.selection.find(memory.model))


def _take_in(memory: Memory, space: Space, wanted: dict[str, nn.Parameter]) -> None:
    """Protect these parameters in a space, or refuse it and stay as it was."""
    before, memory.space = memory.space, space
    try:
        memory.parameters = _taken_by_forms(memory, wanted)
    except ConfigurationError:
        memory.space = before
        raise
    _hold_merged_in_the_gradient(memory)
    memory.version += 1


def _hold_merged_in_the_gradient(memory: Memory) -> None:
    """Let nobody decide that merged weights are pulled after steps: they take none of their own."""
    if memory.space == "merged" and memory.implicit_is_open:
        memory.implicit = False


def _taken_by_forms(memory: Memory, parameters: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """Return parameters, or refuse those that a form cannot keep an importance of, long before it is measured."""
    form = memory.driving.form
    refuse_unless_in_parts(form, dict(named_parameters(memory.model)))
    if memory.space == "merged":
        space = MergedSpace.of(memory.model, parameters, memory.space)
        parameters = space.without_layers(parameters)
        space.blocks_of(form, space.coordinates(parameters))
    elif not any(map(is_lazy, parameters.values())):
        form.check_model(memory.model, parameters)
    if memory.driving.strengths is not None:
        check_blocks(memory, memory.driving.strengths, parameters)
    return parameters


def _follow(memory: Memory, name: str, parameter: Tensor) -> None:
    """Move what is kept about a parameter to where it belongs now."""
    storage = memory.storage
    resting = [memory.anchor, memory.tilt]
    kinds = ((storage.resting, resting), (storage.exact, [memory.start]), (storage.running, memory.running()))
    for keep, tensors in kinds:
        for kept in tensors:
            known = kept.get(name)
            if known is not None and not storage.is_in_place(known, parameter):
                kept[name] = keep(like_parameter(known, parameter), parameter)


def _follow_matrices(memory: Memory, matrices: dict[str, Matrix], ledger: Ledger) -> None:
    """Do the same with importances, those of the diagonal spread as the parameters are."""
    storage, once = ledger.storage, ledger.once()
    for name, matrix in list(matrices.items()):
        like = memory.measured.get(matrix.block.parameters[0])
        if like is None or all(storage.is_in_place(tensor, like) for tensor in matrix.state().values()):
            continue
        matrices[name] = memory.resting_matrix(matrix, ledger, once)
