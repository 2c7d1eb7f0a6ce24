"""A model as it was: what of it is kept, and how it stands in the new one's place for a while.

``distillation.py`` runs it on each batch. Kept is what training changes, trainable parameters and buffers, so an
adapter's alone where only an adapter is trained; all else is shared with the model of now.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from anchorhold.engine.isolation import to_eval_mode
from anchorhold.errors import BatchError, StateError
from anchorhold.tensors.divergence import divergence, mean_over
from anchorhold.tensors.names import named_buffers, named_modules, named_parameters
from anchorhold.tensors.sharding import is_sharded, like_parameter, reshard

Match = Literal["probabilities", "outputs"]


class _Place(NamedTuple):
    """Where a model has a tensor."""

    module: nn.Module
    name: str

    @property
    def tensor(self) -> Tensor | None:
        parameter = self.module._parameters.get(self.name)  # noqa: SLF001 (getattr would ask the module's class too)
        return self.module._buffers.get(self.name) if parameter is None else parameter  # noqa: SLF001


class OldModel:
    """The weights and buffers of a model that training has changed since, by name."""

    def __init__(self) -> None:
        self.weights: dict[str, Tensor] = {}
        self._places: tuple[list[int], dict[str, _Place]] = ([], {})

    def keep(self, model: nn.Module) -> None:
        """Keep a model as it is now."""
        reshard(model)
        kept: dict[str, Tensor] = {name: p for name, p in named_parameters(model) if p.requires_grad}
        kept |= {name: buffer for name, buffer in named_buffers(model) if buffer.is_floating_point()}
        self.weights = {name: tensor.detach().clone() for name, tensor in kept.items()}

    def keep_too(self, model: nn.Module, names: Iterable[str]) -> None:
        """Keep further weights as they are now: frozen when the model was kept, and about to take their first step."""
        thawed = [name for name in names if name not in self.weights]
        if thawed:
            here = self._found(model)
            found = {name: here[name].tensor for name in thawed if name in here}
            self.weights |= {name: tensor.detach().clone() for name, tensor in found.items() if tensor is not None}

    @contextlib.contextmanager
    def in_place(self, model: nn.Module) -> Iterator[None]:
        """Let a model have these weights for a while, in eval mode: pointers are exchanged, or shards copied."""
        reshard(model)  # what FSDP has gathered would be seen in place of the shards, and used again
        tensors = self._tensors(model)
        for name, tensor in tensors.items():
            old = self.weights[name]
            spread = is_sharded(old) == is_sharded(tensor)
            if is_sharded(old) and is_sharded(tensor):
                spread = old.device_mesh == tensor.device_mesh and old.placements == tensor.placements
            # Old weights lie as the new ones do, spread over processes as they are: a state may be read whole.
            if not spread or old.device != tensor.device:
                self.weights[name] = like_parameter(old, tensor)
        exchanged: list[tuple[Tensor, Tensor]] = []
        try:
            for name, old in self.weights.items():
                exchanged.append((tensors[name], _put(tensors[name], old)))
            torch.clear_autocast_cache()  # it has 16-bit copies by parameter, whatever values that has by now
            with evaluated(model):
                yield
        finally:
            reshard(model)
            for tensor, own in exchanged:
                _put(tensor, own)
            torch.clear_autocast_cache()

    def _tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """Return what the model has in their places, or refuse a model that is not the same any more."""
        places, found = self._found(model), {}
        for name, old in self.weights.items():
            tensor = places[name].tensor if name in places else None
            if tensor is None:
                raise StateError(
                    f"The old model has {name!r}, and the model has no such parameter or buffer any more. Restore it, "
                    "or consolidate again."
                )
            if tensor.shape != old.shape:
                raise StateError(
                    f"{name!r} has shape {tuple(tensor.shape)}, and in the old model {tuple(old.shape)}. Restore it, "
                    "or consolidate again."
                )
            found[name] = tensor
        return found

    def _found(self, model: nn.Module) -> dict[str, _Place]:
        """Return where a model has which tensor: looked for once, as long as it has the same modules."""
        modules = list(map(id, model.modules()))
        if self._places[0] != modules:
            found = {}
            for path, module in named_modules(model):
                for name in (*module._parameters, *module._buffers):  # noqa: SLF001
                    found[f"{path}.{name}".lstrip(".")] = _Place(module, name)
            self._places = modules, found
        return self._places[1]

    def __getstate__(self) -> dict[str, object]:
        return {"weights": self.weights, "_places": ([], {})}


@torch.no_grad()
def _put(tensor: Tensor, values: Tensor) -> Tensor:
    """Give a tensor other values, and return its own."""
    if is_sharded(tensor):
        own = tensor.detach().clone()
        tensor.copy_(values)
        return own
    own = tensor.data
    tensor.data = values.to(tensor.dtype)
    return own


@contextlib.contextmanager
def evaluated(model: nn.Module) -> Iterator[None]:
    """Put a model into eval mode for a while."""
    training = [module for module in model.modules() if module.training]
    try:
        if training:
            to_eval_mode(model)
        yield
    finally:
        for module in training:
            module.training = True


def output_distance(old: Tensor, new: Tensor, counted: Tensor | None, match: Match, temperature: float = 1.0) -> Tensor:
    """Return how far outputs have moved: a divergence, times T², or a mean squared difference."""
    if match == "probabilities":
        if new.shape[-1] == 1:
            raise BatchError(
                "Outputs of one number each, whose softmax is 1 whatever the weights; expected logits of several "
                "classes. Take match='outputs', which holds the outputs themselves."
            )
        return temperature**2 * divergence(old, new, counted, temperature)
    wide = torch.promote_types(new.dtype, torch.float32)
    return mean_over((new.to(wide) - old.detach().to(new.device, wide)).square().mean(-1), counted)
