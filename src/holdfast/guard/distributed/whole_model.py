"""A sharded model made whole for a while, so that each process can measure its own samples by itself."""

from collections.abc import Mapping

import torch
from torch import nn

from holdfast.errors import ModelError
from holdfast.tensors.sharding import is_sharded, whole

_HOOKS = ("_forward_pre_hooks", "_forward_hooks")


def whole_model(
    model: nn.Module, parameters: Mapping[str, nn.Parameter], processes: int
) -> tuple[nn.Module, dict[str, nn.Parameter]]:
    """Return a model of whole parameters, and those that are asked for by name; a model that is whole is itself.

    For a sharded one it is a twin that shares buffers and everything else but the parameters, and that does not
    communicate: processes may give it different numbers of batches. Every process has to call this together, and each
    needs the memory for all of the model's parameters.
    """
    if not any(is_sharded(parameter) for parameter in model.parameters()):
        return model, dict(parameters)
    for name, parameter in model.named_parameters():
        if is_sharded(parameter) and parameter.device_mesh.size() != processes:
            raise ModelError(
                f"{name!r} is spread over a mesh of {parameter.device_mesh.size()} processes, of which {processes} see "
                "different batches: its layers are cut up (tensor parallelism), and per-sample gradients of such a "
                "model cannot be measured. Use a measure along the path, such as SOS() or SI()."
            )
    filled: dict[int, nn.Parameter] = {}
    twins = {id(module): _twin(module, filled) for module in model.modules()}
    for twin in twins.values():
        children = vars(twin)["_modules"]
        children.update({name: twins.get(id(child)) for name, child in children.items()})
    return twins[id(model)], {name: filled[id(parameter)] for name, parameter in parameters.items()}


def _twin(module: nn.Module, filled: dict[int, nn.Parameter]) -> nn.Module:
    """Return a module with whole parameters, which is otherwise the same and has the same children."""
    kind = type(module)
    in_front = getattr(kind, "_orig_cls_mro_index", None)  # FSDP2 puts a class of its own in front of a module's
    if in_front is not None:
        kind = kind.__mro__[in_front]
    twin = kind.__new__(kind)
    # The way in which torch's DataParallel makes its replicas.
    own = vars(twin)
    own.update(vars(module))
    for slots in ("_parameters", "_buffers", "_modules", *_HOOKS):
        own[slots] = own[slots].copy()
    own["_parameters"].update({name: _filled(parameter, filled) for name, parameter in own["_parameters"].items()})
    for hooks in _HOOKS:
        for key in [key for key, hook in own[hooks].items() if _gathers(hook)]:
            del own[hooks][key]
    return twin


def _filled(parameter: nn.Parameter | None, filled: dict[int, nn.Parameter]) -> nn.Parameter | None:
    """Return a parameter with all of its values; a tied one is gathered once."""
    if parameter is None:
        return None
    if id(parameter) not in filled:
        if is_sharded(parameter):
            with torch.no_grad():
                values = whole(parameter.to(parameter.device_mesh.device_type))
            filled[id(parameter)] = nn.Parameter(values, requires_grad=parameter.requires_grad)
        else:
            filled[id(parameter)] = parameter
    return filled[id(parameter)]


def _gathers(hook: object) -> bool:
    """Whether a hook is FSDP's own, which gathers parameters and lets go of them again.

    It is a method of FSDP's state, or, for layers that were sharded as one group, a function.
    """
    owner = type(getattr(hook, "__self__", None)).__module__
    return any(place.startswith("torch.distributed.fsdp") for place in (owner, getattr(hook, "__module__", None) or ""))
