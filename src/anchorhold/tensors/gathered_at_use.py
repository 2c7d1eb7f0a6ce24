"""Parameters of which a process has a part, whole only while something is computed with them.

A model whose parameters are such tensors runs as it always does, forward and backward, and takes the memory of its
largest layer and not that of all: what autograd keeps for the backward pass is a tensor without memory of its own too.
Every use gathers, so all processes that have parts must compute the same things in the same order.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from anchorhold.errors import ModelError
from anchorhold.tensors.sharding import is_sharded, whole_together

_TO_ANOTHER_TYPE = torch.ops.aten._to_copy.default  # noqa: SLF001 (as torch names it)

Geometry = tuple[Sequence[int], Sequence[int], int]
"""A size, strides, and an offset."""


class Gatherer:
    """Makes parameters whole, and keeps the last of them: a recurrent layer asks for each at every position.

    Args:
        most: bytes of those that it keeps.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._kept: OrderedDict[tuple[int, torch.dtype], Tensor] = OrderedDict()

    @torch.no_grad()
    def whole(self, parameter: Tensor, dtype: torch.dtype) -> Tensor:
        """Return all of a parameter, one after the other as it lies in memory. Every process has to ask for it."""
        key = (id(parameter), dtype)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        size = parameter.numel() * dtype.itemsize
        while self._kept and size + sum(kept.nbytes for kept in self._kept.values()) > self.most:
            self._kept.popitem(last=False)
        assert is_sharded(parameter)
        (found,) = whole_together([parameter.detach().to(parameter.device_mesh.device_type)])
        self._kept[key] = found.to(dtype).contiguous()
        return self._kept[key]


class GatheredAtUse(Tensor):
    """A parameter in parts, or a view of one, that any computation sees whole."""

    parts: Tensor
    gatherer: Gatherer

    # Whoever looks on, such as a mode that records a model's calls, sees an ordinary tensor.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment] # noqa: SLF001

    @staticmethod
    def __new__(  # noqa: PYI034 (a view of one is made by another's)
        cls: "type[GatheredAtUse]",
        parts: Tensor,
        gatherer: Gatherer,
        dtype: torch.dtype,
        geometry: Geometry | None = None,
    ) -> "GatheredAtUse":
        """Return all of a parameter, or what lies in it with a size, strides and an offset."""
        assert is_sharded(parts)
        size, stride, offset = geometry or (parts.shape, _meta(parts, dtype).stride(), 0)
        device = parts.device
        if device.type != parts.device_mesh.device_type:  # they rest elsewhere, and are computed with there
            device = torch.empty(0, device=parts.device_mesh.device_type).device
        made = Tensor._make_wrapper_subclass(  # noqa: SLF001 (torch's own way to such tensors)
            cls, size, strides=stride, storage_offset=offset, dtype=dtype, device=device
        )
        made.parts, made.gatherer = parts, gatherer
        found: GatheredAtUse = made
        return found

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"GatheredAtUse({tuple(self.shape)})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Compute with whole tensors; a view stays one, and another precision is one of what will be gathered."""
        kwargs = kwargs or {}
        first = args[0] if args else None
        if isinstance(first, cls) and func.is_view:
            # Asked of a tensor without memory that lies as this one does.
            like = _meta(first.parts, first.dtype).as_strided(first.size(), first.stride(), first.storage_offset())
            found = func(like, *args[1:], **kwargs)
            return tree_map(lambda view: first.lying_as(view, first.dtype), found)
        if isinstance(first, cls) and func is _TO_ANOTHER_TYPE and kwargs.keys() == {"dtype"}:
            return first.lying_as(first, kwargs["dtype"])
        _refuse_to_write(func, args, kwargs)
        return func(*tree_map(_whole, args), **tree_map(_whole, kwargs))

    def lying_as(self, like: Tensor, dtype: torch.dtype) -> "GatheredAtUse":
        """Return what lies in the same parameter as another tensor does in its own."""
        geometry = (like.size(), like.stride(), int(like.storage_offset()))
        return GatheredAtUse(self.parts, self.gatherer, dtype, geometry)

    def whole(self) -> Tensor:
        """Return all of it, as a tensor that has memory."""
        every = self.gatherer.whole(self.parts, self.dtype)
        return every.as_strided(self.size(), self.stride(), int(self.storage_offset()))


def gathered_at_use(most: int) -> Callable[[Tensor], nn.Parameter]:
    """Return what makes such a tensor of a parameter; ``most`` is how many bytes of whole ones are kept."""
    gatherer = Gatherer(most)

    def made(parameter: Tensor) -> nn.Parameter:
        tensor = GatheredAtUse(parameter, gatherer, parameter.dtype)
        return nn.Parameter(tensor, requires_grad=parameter.requires_grad)

    return made


def _meta(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty(tensor.shape, dtype=dtype, device="meta")


def _whole(leaf: Any) -> Any:
    return leaf.whole() if isinstance(leaf, GatheredAtUse) else leaf


def _refuse_to_write(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse a call that writes to such a tensor: what it wrote would be lost."""
    if not func._schema.is_mutable:  # noqa: SLF001
        return
    for place, argument in enumerate(func._schema.arguments):  # noqa: SLF001
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        given = args[place] if place < len(args) else kwargs.get(argument.name)
        if any(isinstance(leaf, GatheredAtUse) for leaf in tree_leaves(given)):
            raise ModelError(
                f"The model's forward pass writes to one of its parameters (by {func}), of which a process has a part "
                "alone while layers are gathered one at a time. Write to parameters after the optimizer's step "
                "instead, or give Guard(..., options=GuardOptions(gather='model'))."
            )
