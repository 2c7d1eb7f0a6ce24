"""The diagonal of an importance in parts: each process adds up its own, where all of them see every sample."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from anchorhold.engine.phi import Phi
from anchorhold.engine.reductions import Arrival, Reduction, at_least_single
from anchorhold.tensors.sharding import is_sharded, like_parameter, local


class OwnParts(Reduction):
    """Adds up φ of every element of the gradients, of this process's parts of the parameters alone.

    Args:
        phi: φ.
        parameters: the sharded ones, by name.
    """

    one_sample_at_a_time: ClassVar[bool] = True

    def __init__(self, phi: Phi, parameters: Mapping[str, Tensor]) -> None:
        self.phi = phi
        self.parameters = dict(parameters)
        with torch.inference_mode(False):
            self.sums = {
                name: torch.zeros_like(local(p.detach()), dtype=at_least_single(p.dtype), device=_device(p))
                for name, p in parameters.items()
            }
        self._rows = {name: _own_rows(p) for name, p in parameters.items()}

    def add(self, arrival: Arrival) -> None:
        """Let the rule add up φ; of a weight that is cut into rows, of those of them that are this process's."""
        rule, a, delta = arrival.rule, arrival.input, arrival.delta
        for role, part in arrival.parts.items():
            rows = self._rows[part.name]
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
        """Add φ of the gradients."""
        for name, own in gradients.items():
            found = own.to(self.sums[name].dtype)
            self._add(name, self.phi.sum(found, tuple(range(lead))) if lead else self.phi(found))

    def _add(self, name: str, found: Tensor) -> None:
        parameter = self.parameters[name]
        self.sums[name].add_(local(like_parameter(found, parameter)).to(self.sums[name].device))


def _device(parameter: Tensor) -> torch.device | str:
    """Return where a process computes with a parameter, which may rest elsewhere."""
    return parameter.device_mesh.device_type if is_sharded(parameter) else parameter.device


def _own_rows(parameter: Tensor) -> Tensor | None:
    """Return which rows of a parameter are this process's, where it is cut into rows and in no other way."""
    if not is_sharded(parameter) or parameter.ndim < 2:
        return None
    from torch.distributed.tensor import Shard, distribute_tensor  # noqa: PLC0415 (not in every build of torch)

    if not all(each.is_replicate() or (type(each) is Shard and each.dim == 0) for each in parameter.placements):
        return None
    mesh, rows = parameter.device_mesh, torch.arange(len(parameter))
    own = distribute_tensor(rows.to(mesh.device_type), mesh, parameter.placements, src_data_rank=None)
    return local(own)
