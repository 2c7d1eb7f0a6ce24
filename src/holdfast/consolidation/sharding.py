"""Parameters that are spread over several processes: DTensors, as FSDP2 makes them.

What is kept about a parameter (anchor, importance, running state) is spread as the parameter is. Element-wise work
then happens on each process's own part, with no communication at all.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeGuard, TypeVar

import torch
from torch import Tensor, nn
from torch.amp import GradScaler

from holdfast.consolidation.amp import unscaled

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

MaybeTensor = TypeVar("MaybeTensor", Tensor, Tensor | None)


def is_sharded(tensor: object) -> "TypeGuard[DTensor]":
    """Whether a tensor is spread over several processes."""
    # As long as nobody has imported the module there is no DTensor, and importing it takes a second.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: MaybeTensor) -> MaybeTensor:
    """Return this process's part of a tensor, sharing its memory; without gradients."""
    if not is_sharded(tensor):
        return tensor
    with torch.no_grad():
        return tensor.to_local()


def whole(tensor: Tensor) -> Tensor:
    """Return all of a tensor. For a sharded one, every process has to ask for it at the same time."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def like_parameter(tensor: Tensor, parameter: Tensor) -> Tensor:
    """Return a tensor, whole or sharded in any way, spread over processes and devices as a parameter is."""
    if not is_sharded(parameter):
        return whole(tensor).to(parameter.device)
    if is_sharded(tensor) and tensor.device_mesh == parameter.device_mesh:
        return tensor.redistribute(placements=parameter.placements).to(parameter.device)
    from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415 (not in every build of torch)

    # Every process has the whole tensor and takes its own part: nothing is sent.
    return distribute_tensor(
        whole(tensor).to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None
    )


def wrap_local(part: Tensor, parameter: Tensor) -> Tensor:
    """Return this process's part of something as the tensor, spread as a parameter is, that it is a part of."""
    if not is_sharded(parameter):
        return part
    from torch.distributed.tensor import DTensor  # noqa: PLC0415

    return DTensor.from_local(
        part,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def added_up_part(tensor: Tensor, parameter: Tensor) -> Tensor:
    """Return this process's part of the sum of the tensors, whole ones, that all processes of a mesh have."""
    assert is_sharded(parameter)
    from torch.distributed.tensor import DTensor, Partial  # noqa: PLC0415

    mesh = parameter.device_mesh
    summands = DTensor.from_local(tensor, mesh, [Partial()] * mesh.ndim, run_check=False)
    return local(summands.redistribute(placements=parameter.placements))


def gradients_by_backward(
    loss: Tensor, parameters: Sequence[nn.Parameter], model: nn.Module, scaler: GradScaler | None
) -> list[Tensor | None]:
    """Return the gradients of a sharded model's loss, averaged over the ranks, and leave every ``.grad`` as it is.

    The parameters that FSDP calculates with are none of the model's own, so ``torch.autograd.grad`` would not find
    them; only ``backward()`` brings their gradients home.
    """
    reshard(model)  # backward() gathers again what it needs
    kept = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        for parameter, _ in kept:
            parameter.grad = None
        (loss if scaler is None else scaler.scale(loss)).backward()
        return [unscaled(parameter.grad, scaler) for parameter in parameters]
    finally:
        for parameter, grad in kept:
            parameter.grad = grad


def reshard(model: nn.Module) -> None:
    """Let go of whole parameters that FSDP2 still holds after a forward pass, so that the sharded ones are seen."""
    module = sys.modules.get("torch.distributed.fsdp")
    if module is not None:
        for part in model.modules():
            if isinstance(part, module.FSDPModule):
                part.reshard()
