"""What a process gathers of a sharded model to measure it from data: all of it, or a layer at a time.

Where layers are gathered at each use (:mod:`anchorhold.tensors.gathered_at_use`), all processes that have parts of them
must use the same layers in the same order. So each of them is given the samples of all, computes what the others do,
and adds up its own part of the parameters alone: what is kept needs no sum over processes in the end.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from anchorhold.engine.accumulator import SampleAccumulator
from anchorhold.engine.batches import Forward, call_model
from anchorhold.engine.isolation import evaluation_mode
from anchorhold.engine.phi import Phi
from anchorhold.engine.reductions import Arrival, Reduction, at_least_single
from anchorhold.engine.tracing.samples import same_values
from anchorhold.errors import ConfigurationError, ModelError
from anchorhold.guard.distributed.ranks import Ranks
from anchorhold.tensors.sharding import is_sharded, like_parameter, local, reshard, sharded_among, whole
from anchorhold.tensors.storage import free_bytes
from anchorhold.tensors.summaries import checksum

Gather = Literal["model", "layers"]
"""What each process gathers of a sharded model to measure it from data: all of it at once, or a layer at a time."""

ROOM = 3
"""How many times the model's own bytes have to be free for it to be gathered at once: itself, its sums, and samples."""


def checked_gather(gather: str | None) -> Gather | None:
    """Return what is gathered at once, or refuse what is neither."""
    for known in get_args(Gather):
        if gather == known:
            found: Gather = known
            return found
    if gather is not None:
        raise ConfigurationError(
            f"gather={gather!r}; expected 'model', 'layers', or None, by which it is the whole model where that fits."
        )
    return None


def gathers_layers(model: nn.Module, ranks: Ranks, asked: Gather | None) -> bool:
    """Return whether layers are to be gathered one at a time, which all processes have to ask together."""
    sharded = sharded_among(model.parameters())
    if not sharded:
        return False
    if is_cut_up(model, ranks):
        if asked == "model":
            raise ModelError(
                "gather='model' with layers that are cut up (tensor parallelism), so that several processes see the "
                "same batches: each would count them once more. Leave gather= out, or give "
                "options=GuardOptions(gather='layers')."
            )
        return True
    if asked is not None:
        return asked == "layers"
    wanted = ROOM * sum(parameter.numel() * parameter.element_size() for parameter in sharded)
    device = torch.device(sharded[0].device_mesh.device_type)
    # All of them gather layers if one has to, since they gather together.
    return not all(ranks.each(lambda: (free := free_bytes(device)) is None or wanted <= free))


def is_cut_up(model: nn.Module, ranks: Ranks) -> bool:
    """Whether more processes have parts of a model than see different batches: tensor parallelism."""
    return any(p.device_mesh.size() != ranks.size for p in sharded_among(model.parameters()))


def those_with_parts(model: nn.Module, ranks: Ranks) -> Ranks:
    """Return all processes that have parts of a model, which are more than see different batches where it is cut up."""
    from torch import distributed  # noqa: PLC0415 (not in every build of torch)

    if not is_cut_up(model, ranks):
        return ranks
    meshes = [parameter.device_mesh for parameter in sharded_among(model.parameters())]
    mesh = max(meshes, key=lambda mesh: mesh.size())
    # A mesh of several dimensions has a group for each of them, and none of all its processes.
    if mesh.size() == distributed.get_world_size():
        return Ranks(distributed.group.WORLD)
    if mesh.ndim == 1:
        return Ranks(mesh.get_group())
    raise ModelError(
        f"The model's layers are cut up over a mesh of {tuple(mesh.shape)} processes, and more are running: which of "
        "them go through the samples together is not plain. Use a measure along the path, such as SOS() or SI(), or "
        "gradients.microbatches()."
    )


def refuse_unless_copies_agree(model: nn.Module, measuring_ranks: Ranks) -> None:
    """Refuse what processes have whole and different, such as statistics of batch norms: each would measure another.

    FSDP2 lets every process have buffers of its own.
    """
    kept = [*model.named_parameters(), *model.named_buffers()]
    measuring_ranks.refuse_unless_equal(
        # Parts of a sharded tensor differ, as they should.
        {f"{name!r} (by checksum)": checksum([tensor]) for name, tensor in kept if not is_sharded(tensor)},
        "layers cannot be measured together. Send those of one process to all: for buffer in model.buffers(): "
        "torch.distributed.broadcast(buffer, 0); nothing was consolidated",
    )


def refuse_another_model(model: nn.Module, collector: SampleAccumulator, forward: Forward | None, batch: Any) -> None:
    """Refuse a model that computes something else when its layers are whole: one that counts on being cut up."""
    call, parameters = forward or call_model, list(model.parameters())
    inputs = collector.read(batch).inputs
    with evaluation_mode(model, parameters), evaluation_mode(collector.model, parameters):
        expected = whole(call(model, inputs))
        # FSDP2 may leave layers whole after a forward pass without a backward pass.
        reshard(model)
        try:
            found = call(collector.model, inputs)
        # Such as a reshape to fewer heads of attention than whole weights have.
        except (RuntimeError, ValueError, TypeError) as error:
            raise _another(f"cannot be run ({type(error).__name__}: {error})") from error
    if found.shape != expected.shape or not same_values(found, expected):
        raise _another("gives other outputs")


def _another(what: str) -> ModelError:
    return ModelError(
        f"With its layers whole, the model {what}: it counts on being cut up, as one does that has fewer heads of "
        "attention on each process. Use a measure along the path, such as SOS() or SI(), or gradients.microbatches()."
    )


class OwnParts(Reduction):
    """Adds up φ of every element of the gradients, of this process's parts of the parameters alone.

    It is for where all processes see every sample.

    Args:
        phi: φ.
        parameters: the sharded ones, by name.
    """

    one_sample_at_a_time: ClassVar[bool] = True

    def __init__(self, phi: Phi, parameters: Mapping[str, Tensor]) -> None:
        self.phi = phi
        self.parameters = dict(parameters)
        # What is made in inference mode cannot be written to outside of it.
        with torch.inference_mode(False):
            self.sums: dict[str, Tensor] = {}
            for name, p in parameters.items():
                # A process computes with a parameter there, which may rest elsewhere.
                device = p.device_mesh.device_type if is_sharded(p) else p.device
                self.sums[name] = torch.zeros_like(local(p.detach()), dtype=at_least_single(p.dtype), device=device)
        self._rows = {name: _own_rows(p) for name, p in parameters.items()}

    def add(self, arrival: Arrival) -> None:
        """Let the rule add up φ; of a weight that is cut into rows, of those of them that are this process's."""
        rule, a, delta = arrival.rule, arrival.input, arrival.delta
        for role, part in arrival.parts.items():
            rows = self._rows[part.name]
            # Of a slice of a parameter the rows are not those that processes share out.
            own = rule.delta_of_rows(role, delta, rows) if rows is not None and part.geometry is None else None
            if own is not None:
                self.sums[part.name].add_(rule.importance(role, a, own, self.phi))
                continue
            found = rule.importance(role, a, delta, self.phi)
            if part.geometry is not None:
                whole = found.new_zeros(self.parameters[part.name].shape)
                part.within(whole).add_(found)
                found = whole
            self._add(part.name, found)

    def add_gradients(self, gradients: Mapping[str, Tensor], lead: int) -> None:
        for name, own in gradients.items():
            found = own.to(self.sums[name].dtype)
            self._add(name, self.phi.sum(found, tuple(range(lead))) if lead else self.phi(found))

    def _add(self, name: str, found: Tensor) -> None:
        parameter = self.parameters[name]
        # Every process has all of it and keeps its part: nothing is sent.
        self.sums[name].add_(local(like_parameter(found, parameter)).to(self.sums[name].device))


def _own_rows(parameter: Tensor) -> Tensor | None:
    """Return which rows of a parameter are this process's, where it is cut into rows and in no other way."""
    if not is_sharded(parameter) or parameter.ndim < 2:
        return None
    from torch.distributed.tensor import Shard, distribute_tensor  # noqa: PLC0415 (not in every build of torch)

    # By type: in some versions of torch a _StridedShard, whose rows lie otherwise, is a Shard too.
    if not all(each.is_replicate() or (type(each) is Shard and each.dim == 0) for each in parameter.placements):
        return None
    mesh, rows = parameter.device_mesh, torch.arange(len(parameter))
    # Numbers of rows, cut as parameters are: so torch itself says which rows those are.
    own = distribute_tensor(rows.to(mesh.device_type), mesh, parameter.placements, src_data_rank=None)
    return local(own)
