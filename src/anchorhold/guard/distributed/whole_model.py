"""Twins of a sharded model that the per-sample engine can run: whole for a while, or whole one layer at a time."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from anchorhold.tensors.gathered_at_use import gathered_at_use
from anchorhold.tensors.sharding import is_sharded, sharded_among, whole

_HOOKS = ("_forward_pre_hooks", "_forward_hooks")

_SHARDING = ("torch.distributed.fsdp", "torch.distributed.tensor")
"""Modules of torch whose hooks gather parameters, or cut up what goes into a layer and put together what comes out."""

Filled = Callable[[Tensor], nn.Parameter]
"""What makes a parameter, all of whose values are there when they are wanted, of one in parts."""


def whole_model(
    model: nn.Module, parameters: Mapping[str, nn.Parameter], *, by_layer: bool
) -> tuple[nn.Module, dict[str, nn.Parameter]]:
    """Return a model of whole parameters, and those that are asked for by name; a model that is whole is itself.

    For a sharded one it is a twin that shares buffers and everything else but the parameters. Every process has to call
    this together. Either each needs the memory for all of the model's parameters, and the twin does not communicate:
    processes may give it different numbers of batches. Or, by layer, every use of a parameter gathers it, and all
    processes have to give their twins the same batches in the same order.
    """
    if not sharded_among(model.parameters()):
        return model, dict(parameters)
    fill = gathered_at_use(largest_layer(model)) if by_layer else _gathered
    filled: dict[int, nn.Parameter] = {}
    twins = {id(module): _twin(module, fill, filled) for module in model.modules()}
    for twin in twins.values():
        children = vars(twin)["_modules"]
        children.update({name: twins.get(id(child)) for name, child in children.items()})
    return twins[id(model)], {name: filled[id(parameter)] for name, parameter in parameters.items()}


def largest_layer(model: nn.Module) -> int:
    """Return the bytes of the module that has most of its own."""
    return max(
        sum(p.numel() * p.element_size() for p in module.parameters(recurse=False)) for module in model.modules()
    )


def _twin(module: nn.Module, fill: Filled, filled: dict[int, nn.Parameter]) -> nn.Module:
    """Return a module with whole parameters, which is otherwise the same and has the same children."""
    kind = type(module)
    in_front = getattr(kind, "_orig_cls_mro_index", None)  # FSDP2 puts a class of its own in front of a module's
    if in_front is not None:
        kind = kind.__mro__[in_front]
    # Without __init__(), which would make parameters of its own.
    twin = kind.__new__(kind)
    # The way in which torch's DataParallel makes its replicas.
    own = vars(twin)
    own.update(vars(module))
    for slots in ("_parameters", "_buffers", "_modules", *_HOOKS):
        own[slots] = own[slots].copy()
    slots = own["_parameters"]
    for name, parameter in slots.items():
        if parameter is not None and id(parameter) not in filled:  # a tied one is made once
            filled[id(parameter)] = fill(parameter) if is_sharded(parameter) else parameter
        slots[name] = None if parameter is None else filled[id(parameter)]
    if isinstance(twin, nn.RNNBase):  # which lists its weights a second time
        own["_flat_weights"] = [slots.get(name) for name in own["_flat_weights_names"]]
    for hooks in _HOOKS:
        for key in [key for key, hook in own[hooks].items() if _shards(hook)]:
            del own[hooks][key]
    return twin


def _gathered(parameter: Tensor) -> nn.Parameter:
    """Return a parameter with all of its values, for as long as it is there."""
    assert is_sharded(parameter)
    with torch.no_grad():
        values = whole(parameter.to(parameter.device_mesh.device_type))
    return nn.Parameter(values, requires_grad=parameter.requires_grad)


def _shards(hook: object) -> bool:
    """Whether a hook is one by which torch shards a model, of FSDP's or of tensor parallelism's.

    It is a method of FSDP's state, or, for layers that were sharded as one group and for those that are cut up, a
    function.
    """
    owner = type(getattr(hook, "__self__", None)).__module__
    return any(place.startswith(_SHARDING) for place in (owner, getattr(hook, "__module__", None) or ""))
