"""The models that users give, each as tensors by name that are read one at a time.

A module, a state dict, a safetensors file, or a folder in Hugging Face's layout; a module with adapters, or the folder
of an adapter, is taken as the weights that it stands for.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anchorhold.errors import ConfigurationError, ModelError
from anchorhold.merging import tensor_files
from anchorhold.merging.adapted_modules import adapted_weights
from anchorhold.merging.lora_files import LoraAdapter, is_adapter
from anchorhold.merging.tensor_files import Described
from anchorhold.tensors.names import bare_names
from anchorhold.tensors.sharding import is_sharded

Model = nn.Module | Mapping[str, Any] | str | os.PathLike[str]
"""A module, a state dict, or the path of a safetensors file or of a folder in Hugging Face's layout."""


class GivenModel(ABC):
    """One model's tensors by name."""

    label: str
    """What it is called in messages."""
    tensors: dict[str, Described]
    names: dict[str, str]
    """What each tensor is called where it came from: wrappers put words before the names of the bare model."""

    @abstractmethod
    def read(self, name: str) -> Tensor:
        """Return one tensor as it is: it is not to be changed."""

    def tied(self) -> dict[str, str]:
        """Return the names that stand for a tensor which has another name too, with that one."""
        return {}

    def beside(self) -> dict[str, Any]:
        """Return what is no tensor."""
        return {}


class InMemory(GivenModel):
    """A module's tensors, or a state dict's."""

    def __init__(self, label: str, tensors: Mapping[str, Any], names: Mapping[str, str] | None = None) -> None:
        self.label = label
        self._own = {name: value.detach() for name, value in tensors.items() if isinstance(value, Tensor)}
        self._beside = {name: value for name, value in tensors.items() if not isinstance(value, Tensor)}
        self.names = {name: (names or {}).get(name, name) for name in tensors}
        for name, tensor in self._own.items():
            if is_sharded(tensor):
                raise ModelError(
                    f"{name!r} of {label} is spread over processes; expected whole tensors. Gather them first: "
                    "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))."
                )
            if tensor.is_meta or tensor.layout is not torch.strided:
                kind = "on the meta device" if tensor.is_meta else f"of layout {tensor.layout}"
                raise ModelError(f"{name!r} of {label} is {kind}; expected a tensor with all of its numbers.")
        self.tensors = {name: Described(tuple(t.shape), t.dtype) for name, t in self._own.items()}

    def read(self, name: str) -> Tensor:
        return self._own[name]

    def tied(self) -> dict[str, str]:
        """Return the names of tensors that are the same memory as an earlier one."""
        first: dict[tuple[Any, ...], str] = {}
        found = {}
        for name, tensor in self._own.items():
            if tensor.numel():
                same = (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
                if first.setdefault(same, name) != name:
                    found[name] = first[same]
        return found

    def beside(self) -> dict[str, Any]:
        return self._beside


class InFiles(GivenModel):
    """A model in one safetensors file or in several."""

    def __init__(self, label: str, path: Path) -> None:
        self.label = label
        self.path = path
        if path.is_dir():
            self.files = tensor_files.files_of(path)
        elif path.is_file():
            self.files = dict.fromkeys(tensor_files.described(path), path)
        else:
            raise ConfigurationError(
                f"{label}={str(path)!r}: there is no such file or folder; expected a safetensors file, or a folder "
                "that save_pretrained wrote."
            )
        known = {file: tensor_files.described(file) for file in dict.fromkeys(self.files.values())}
        self.tensors = {name: known[file][name] for name, file in self.files.items()}
        self.names = {name: name for name in self.tensors}
        self.text = tensor_files.metadata(next(iter(known))) if known else {}

    def read(self, name: str) -> Tensor:
        return tensor_files.read(self.files[name], name)


class Adapted(GivenModel):
    """A model with an adapter from a folder, as the weights that both make."""

    def __init__(self, label: str, base: GivenModel, adapter: LoraAdapter) -> None:
        self.label = label
        self.base = base
        self.adapter = adapter
        adapter.check_base(label, {name: known.shape for name, known in base.tensors.items()})
        self.tensors, self.names = base.tensors, base.names

    def read(self, name: str) -> Tensor:
        """Return W + ΔW, as precise as W."""
        return self.adapter.adapted(name, self.base.read(name))

    def tied(self) -> dict[str, str]:
        """Return what is tied in the base: one tensor of two that is adapted is no longer the other."""
        changed = set(self.adapter.changed)
        return {name: other for name, other in self.base.tied().items() if changed.isdisjoint((name, other))}

    def beside(self) -> dict[str, Any]:
        return self.base.beside()


def given_model(label: str, given: Model, base: GivenModel | None = None) -> GivenModel:
    """Return a model's tensors, whatever it was given as; an adapter's are those of the base with it."""
    if isinstance(given, nn.Module):
        adapted = adapted_weights(given)
        if adapted is not None:
            return InMemory(label, adapted)
        bare = bare_names(given)
        state = given.state_dict()
        return InMemory(label, {bare(name): each for name, each in state.items()}, {bare(name): name for name in state})
    if isinstance(given, Mapping):
        if not any(isinstance(value, Tensor) for value in given.values()):
            raise ConfigurationError(
                f"{label} is a mapping without any tensor ({', '.join(map(repr, list(given)[:5])) or 'empty'}); "
                "expected a state dict. Of a checkpoint, give the part that holds the weights."
            )
        return InMemory(label, {str(name): value for name, value in given.items()})
    if isinstance(given, str | os.PathLike):
        path = tensor_files.as_path(given)
        if not is_adapter(path):
            return InFiles(label, path)
        if base is None:
            raise ConfigurationError(
                f"{label}={str(path)!r} is an adapter, whose weights depend on its base model; expected a whole model "
                "first. Give the base as before, or merge adapters alone with anchorhold.merging.merge_adapters."
            )
        return Adapted(label, base, LoraAdapter.read(path))
    raise ConfigurationError(
        f"{label} is of type {type(given).__name__}; expected a module, a state dict, or the path of a safetensors "
        "file or of a folder that save_pretrained wrote."
    )
