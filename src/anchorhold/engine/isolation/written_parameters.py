"""Parameters that a forward pass writes to: put back and refused, so that measuring leaves no trace.

Weights that are clipped or normalised in place in the forward pass (``self.weight.data.clamp_(-1, 1)``) are other ones
after it. A copy of every weight would show and undo that, and take the memory of a second model; so only what a call is
about to write to is copied, and versions tell of what was written to in another way.
"""

from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from anchorhold.errors import ModelError

_HARMLESS = {"requires_grad_", "retain_grad_"}


class _Kept(NamedTuple):
    name: str
    parameter: nn.Parameter
    memory: Tensor
    values: Tensor
    call: str


class Writes:
    """Watches one forward pass for what it writes to a model's parameters."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.parameters = dict(model.named_parameters())
        self.versions = self._versions()
        self.kept: dict[str, _Kept] = {}

    def before(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Keep the parameters that a call writes to, as far as its name or its arguments tell."""
        name, in_place = _name_of(func)
        if not in_place and "out" not in kwargs and not kwargs.get("inplace"):
            return
        targets = (args[:1], kwargs) if in_place or "out" not in kwargs else kwargs["out"]
        for target in tree_leaves(targets):
            if isinstance(target, Tensor) and target.layout is torch.strided:
                for path in self._by_memory.get(_address(target), []):
                    self._keep(path, name)

    def _keep(self, path: str, call: str) -> None:
        if path not in self.kept:
            parameter = self.parameters[path]
            self.kept[path] = _Kept(path, parameter, parameter.data, parameter.data.clone(), call)

    def undo(self) -> _Kept | None:
        """Put back what was changed, and return the first of it."""
        changed = [kept for kept in self.kept.values() if not _same(kept.parameter.data, kept.values)]
        for kept in changed:
            if _address(kept.parameter) != _address(kept.memory):
                kept.parameter.data = kept.memory
            kept.memory.copy_(kept.values)
        return changed[0] if changed else None

    def check(self) -> None:
        """Raise if the forward pass changed a parameter, which then is as it was wherever that can be done."""
        first = self.undo()
        if first is not None:
            raise ModelError(
                f"The model's forward pass writes to its parameter {first.name!r} (by {first.call!r}), so its weights "
                "are not those that were trained, and change while they are measured. They were put back. Do that "
                "after the optimiser's step instead, or in the forward pass with a tensor of its own: w = "
                "self.weight.clamp(-1, 1)."
            )
        versions = zip(self.parameters, self.versions, self._versions(), strict=True)
        for name in [name for name, before, after in versions if before != after]:
            if name not in self.kept and id(self.parameters[name]) not in self._stood_in_for:
                raise ModelError(
                    f"The model's forward pass wrote to its parameter {name!r} in a way that cannot be undone, so its "
                    "weights may be other ones now: load them again. Write to parameters after the optimiser's step "
                    "instead, or compute in the forward pass with a tensor of its own."
                )

    @cached_property
    def _stood_in_for(self) -> set[int]:
        """The parameters that PEFT's adapters of parameters put something in the place of while a layer is called.

        They are parametrised for as long as that takes, for which torch sets each to itself: another version of the
        same numbers, by a call that nobody sees.
        """
        adapted: list[Any] = [module for module in self.model.modules() if hasattr(module, "parameter_name")]
        return {id(module.get_param()) for module in adapted if hasattr(module, "get_param")}

    @cached_property
    def _by_memory(self) -> dict[int, list[str]]:
        """The names of the parameters in each piece of memory, of which several may share one."""
        found: dict[int, list[str]] = {}
        for name, parameter in self.parameters.items():
            if parameter.layout is torch.strided:
                found.setdefault(_address(parameter), []).append(name)
        found.pop(0, None)
        return found

    def _versions(self) -> list[int]:
        return [0 if p.is_inference() else p._version for p in self.parameters.values()]


_WRITING = {"__i", "__s"}
"""How the names begin of Python's own methods that write: ``__iadd__``, ``__setitem__``, ``__set__``."""


@lru_cache(4096)
def _name_of(func: Callable[..., Any]) -> tuple[str, bool]:
    """Return the name of a function, and whether it is one that writes to its first argument."""
    name = str(getattr(func, "__name__", "")).partition(".")[0]  # of aten.mul_.Tensor: mul_
    return name, name.endswith("_") and name not in _HARMLESS and (name[-2:] != "__" or name[:3] in _WRITING)


def _address(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # a tensor without memory of its own, as inside torch.func
        return 0


def _same(x: Tensor, y: Tensor) -> bool:
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    return torch.equal(x, y) or bool(((x == y) | (x.isnan() & y.isnan())).all())
