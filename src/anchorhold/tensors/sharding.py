"""Parameters that are spread over several processes: DTensors, as FSDP2 makes them.

What is kept about a parameter (anchor, importance, running state) is spread as the parameter is. Element-wise work
then happens on each process's own part, with no communication at all.
"""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeGuard, TypeVar

import torch
from torch import Tensor, nn

from anchorhold.errors import ModelError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

MaybeTensor = TypeVar("MaybeTensor", Tensor, Tensor | None)


def is_sharded(tensor: object) -> "TypeGuard[DTensor]":
    """Whether a tensor is spread over several processes."""
    if type(tensor) is Tensor:  # as most are, and this is asked a dozen times a step
        return False
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


def whole_together(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return all of some tensors, those that are cut into rows alike in one go: every process has to ask for it."""
    found: dict[int, Tensor] = {}
    alike: dict[object, list[int]] = {}
    for place, tensor in enumerate(tensors):
        if _is_cut_into_rows(tensor):
            alike.setdefault((tensor.device_mesh, tensor.dtype), []).append(place)
        else:
            found[place] = whole(tensor)
    for places in alike.values():
        found |= dict(zip(places, _rows_together([tensors[place] for place in places]), strict=True))
    return [found[place] for place in range(len(tensors))]


def _is_cut_into_rows(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Whether the processes along the last dimension of a mesh have some rows each, and all others copies."""
    if not is_sharded(tensor):
        return False
    from torch.distributed.tensor import Shard  # noqa: PLC0415 (not in every build of torch)

    *copies, last = tensor.placements
    return type(last) is Shard and last.dim == 0 and all(each.is_replicate() for each in copies)


@torch.no_grad()
def _rows_together(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors that are cut into rows, whole, by one gathering of all processes' rows side by side."""
    from torch import distributed  # noqa: PLC0415

    first = tensors[0]
    assert is_sharded(first)
    mesh = first.device_mesh
    processes = mesh.size(mesh.ndim - 1)
    rows = [-(-len(tensor) // processes) for tensor in tensors]  # the last ones may have fewer, or none
    own = torch.cat([_filled_up(local(tensor), most).reshape(-1) for tensor, most in zip(tensors, rows, strict=True)])
    every = own.new_empty(processes * own.numel())
    gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor  # its earlier name
    gather(every, own, group=mesh.get_group(mesh.ndim - 1))
    sizes = [most * tensor.shape[1:].numel() for tensor, most in zip(tensors, rows, strict=True)]
    parts = every.view(processes, -1).split(sizes, dim=1)
    return [part.reshape(-1, *t.shape[1:])[: len(t)] for part, t in zip(parts, tensors, strict=True)]


def _filled_up(rows: Tensor, most: int) -> Tensor:
    """Return rows with others below them, of whatever values, up to a number."""
    missing = most - len(rows)
    return torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])]) if missing else rows


def whole_sums(sums: Sequence[Tensor]) -> list[Tensor]:
    """Return sums over tensors with those of sharded ones added up over the processes, in one go for each mesh."""
    plain = [own for own in sums if not is_sharded(own)]
    meshes: dict[object, Tensor] = {}
    for own in sums:
        if is_sharded(own):
            mesh = own.device_mesh
            meshes[mesh] = meshes[mesh] + own if mesh in meshes else own
    return plain + [whole(own) for own in meshes.values()]


def whole_maxima(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the largest elements of tensors, of sharded ones that over all processes, one for each mesh."""
    plain = [tensor.max() for tensor in tensors if not is_sharded(tensor)]
    meshes: dict[DeviceMesh, list[Tensor]] = {}
    for tensor in tensors:
        if is_sharded(tensor):
            own = local(tensor)  # nothing, where there are fewer rows than processes
            most = own.max() if own.numel() else own.new_full((), -torch.inf)
            meshes.setdefault(tensor.device_mesh, []).append(most)
    meshes = {mesh: _as_precise_as_any(parts) for mesh, parts in meshes.items()}
    return plain + [whole(_largest_of_all(torch.stack(parts).max(), mesh)) for mesh, parts in meshes.items()]


def _as_precise_as_any(parts: list[Tensor]) -> list[Tensor]:
    """Return numbers in one precision, the highest that one of them has, single at least."""
    dtype = torch.float32
    for part in parts:
        dtype = torch.promote_types(dtype, part.dtype)
    return [part.to(dtype) for part in parts]


def _largest_of_all(own: Tensor, mesh: "DeviceMesh") -> Tensor:
    from torch.distributed.tensor import DTensor, Partial  # noqa: PLC0415 (not in every build of torch)

    return DTensor.from_local(own, mesh, [Partial("max")] * mesh.ndim, run_check=False)


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

    # run_check would have all processes compare their parts, or send them.
    return DTensor.from_local(
        part,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def added_up_part(tensor: Tensor, parameter: Tensor | None) -> Tensor:
    """Return this process's part of the sum of the tensors, whole ones, that all processes of a mesh have."""
    assert is_sharded(parameter)
    from torch.distributed.tensor import DTensor, Partial  # noqa: PLC0415

    mesh = parameter.device_mesh
    summands = DTensor.from_local(tensor, mesh, [Partial()] * mesh.ndim, run_check=False)
    return local(summands.redistribute(placements=parameter.placements))


def refuse_flattened(model: nn.Module) -> None:
    """Refuse a model of the first FSDP, each of whose processes sees pieces of parameters as if they were whole."""
    for name, parameter in model.named_parameters():
        if getattr(parameter, "_fsdp_flattened", False):  # torch's own mark
            raise ModelError(
                f"{name!r} was flattened by FullyShardedDataParallel, and each process has some piece of it under its "
                "name, which can be neither measured nor saved. Use FSDP2, which is fully_shard (fsdp_version=2 in "
                "Accelerate, ModelParallelStrategy in Lightning), or DDP."
            )


def refuse_partitioned(parameters: Iterable[tuple[str, Tensor]]) -> None:
    """Refuse parameters of DeepSpeed's ZeRO 3, which are there while a layer runs and empty at any other time."""
    for name, parameter in parameters:
        if hasattr(parameter, "ds_id"):  # DeepSpeed's own mark
            raise ModelError(
                f"{name!r} is partitioned by DeepSpeed's ZeRO 3: each process has a piece of it, and what has its name "
                "is empty while no layer runs, so that it can be neither measured nor held. Use ZeRO 1 or 2, with a "
                "measure from data, and the penalty in the loss: engine.backward(loss + guard.penalty()). Where the "
                "model has to be sharded, use FSDP2, which is fully_shard."
            )


def is_trained_in_pieces(parameter: Tensor) -> bool:
    """Whether DeepSpeed's ZeRO trains a parameter as a part of flat tensors, of which it is a copy."""
    return hasattr(parameter, "_hp_mapping") or hasattr(parameter, "ds_id")  # its marks, of ZeRO 1 and 2, and of 3


def reshard(model: nn.Module) -> None:
    """Let go of whole parameters that FSDP2 still holds after a forward pass, so that the sharded ones are seen."""
    module = sys.modules.get("torch.distributed.fsdp")
    if module is not None:
        for part in model.modules():
            if isinstance(part, module.FSDPModule):
                part.reshard()
