r"""Tensors in fewer bytes than floating-point numbers take: importance in one byte a weight, weights in three.

**Importance** is none below 0 and spans many decades, so it is kept by its logarithm. The bits of a positive float32,
read as an integer i, are such a logarithm already, linear between powers of 2 (Mitchell 1962, doi
10.1109/TEC.1962.5219391). A block of :data:`BLOCK` numbers is kept as codes of one byte and one origin,

.. math:: i = \text{base} + \text{code} \cdot 2^s, \qquad \text{code} = 1, \dots, 255,

with the smallest s from 16 to 20 by which both the smallest and the largest number of the block are within reach.
Rounded to the nearest, a number is off by :math:`2^{s-24}` of itself at most: by 1/256 in a block that spans a factor
of 3, by 1/16 in one that spans more than :math:`2^{15}`. What is smaller than :math:`2^{-31}` of its block's largest
counts as that. Code 0 is 0 and nothing else, so that what is free stays free, and what is held stays held. All grids
are nested: numbers that lie on one are kept exactly by each finer one, and by bfloat16.

A sum over tasks is rounded at each of them. To the nearest, additions of less than half a step would vanish, task after
task. :func:`pack_importance` rounds up or down at random instead where it is given noise, by chances that make the
expected value exact (stochastic rounding: Croci, Fasi, Higham, Mary and Mikaitis 2022, doi 10.1098/rsos.211631).

**Weights** lose the last byte of a float32, and are off by :math:`2^{-16}` of themselves at most.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

T = TypeVar("T")

BLOCK = 1024
"""Numbers that share an origin."""
LEAST = 4096
"""Numbers that a tensor has at least to be packed: below, there is nothing to save, and calls cost more than bytes."""
_FINEST, _COARSEST = 16, 20
"""The least and the largest s: steps of 1/128 and of 1/8 between powers of 2."""
_INFINITE = 0x7F800000
"""The bits of infinity, above those of all numbers."""
_AT_ONCE = 2**12 * BLOCK
"""Numbers that are packed at a time, so that what is needed for it takes no memory to speak of."""


class Packed(Tensor):
    """A tensor that is kept in fewer bytes, and that any computation sees as float32. It cannot be written to."""

    parts: tuple[Tensor, ...]
    """What is kept."""

    @staticmethod
    def __new__(cls: "type[Packed]", shape: torch.Size, *parts: Tensor) -> "Packed":  # noqa: PYI034 (as torch's own)
        """Return the tensor of a shape that is kept as these parts."""
        made: Packed = Tensor._make_wrapper_subclass(  # noqa: SLF001 (torch's own way to such tensors)
            cls, shape, dtype=torch.float32, device=parts[0].device
        )
        made.parts = parts
        return made

    @abstractmethod
    def decoded(self, start: int, stop: int) -> Tensor:
        """Return some of the numbers, one after the other; both ends in whole blocks, but for the last."""

    def unpacked(self) -> Tensor:
        """Return all numbers, in their shape."""
        return self.decoded(0, self.numel()).view(self.shape)

    def in_pieces(self, length: int) -> Iterator[Tensor]:
        """Yield the numbers one after the other, this many at a time."""
        assert length % BLOCK == 0
        return (self.decoded(start, min(start + length, self.numel())) for start in range(0, self.numel(), length))

    def with_parts(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return the same with a function applied to each part, such as one that moves it."""
        return type(self)(self.shape, *map(change, self.parts))

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        """The bytes that the parts take."""
        return sum(part.nbytes for part in self.parts)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{type(self).__name__}({self.unpacked()!r})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Copy and move the parts; compute anything else with all numbers."""
        kwargs = dict(kwargs or {})
        first = args[0] if args else None
        if isinstance(first, Packed):
            if func in _COPIES:
                return first.with_parts(func)
            if func is _MOVE and kwargs.get("dtype") in (None, first.dtype):
                placing = {key: kwargs[key] for key in ("device", "non_blocking", "pin_memory") if key in kwargs}
                return first.with_parts(lambda part: func(part, **placing))
        if func._schema.is_mutable and _is_written(func, args, kwargs):  # noqa: SLF001
            raise TypeError(f"{func} writes to a {cls.__name__}, where it would be lost. Write to its unpacked().")
        return func(*tree_map(unpacked, args), **tree_map(unpacked, kwargs))


_COPIES = {torch.ops.aten.clone.default, torch.ops.aten.detach.default}
_MOVE = torch.ops.aten._to_copy.default  # noqa: SLF001 (as torch names it)


class PackedImportance(Packed):
    """Numbers of at least 0 in one byte each: codes, and the origin of each block."""

    def decoded(self, start: int, stop: int) -> Tensor:
        codes, origins = self.parts[0][start:stop], self.parts[1][start // BLOCK : -(-stop // BLOCK)]
        bits = codes.to(torch.int32)
        for own, origin in zip(_in_blocks(bits), _beside_blocks(origins, codes), strict=True):
            step = origin & 0xFF
            is_held = own.neg().bitwise_right_shift_(31)  # all bits set where a code is above 0: faster than a mask
            own.bitwise_left_shift_(step).add_(origin - step).bitwise_and_(is_held)
        return bits.view(torch.float32)


class PackedWeights(Packed):
    """Numbers of three bytes each: the first two of a float32, and the third."""

    def decoded(self, start: int, stop: int) -> Tensor:
        high, low = (part[start:stop] for part in self.parts)
        bits = high.to(torch.int32).bitwise_left_shift_(8)
        return bits.add_(low).bitwise_left_shift_(8).view(torch.float32)


def unpacked(tensor: T) -> T | Tensor:
    """Return a tensor, or anything else, as it is; all numbers of one that is packed."""
    return tensor.unpacked() if isinstance(tensor, Packed) else tensor


def plain_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor as it is, and one that is packed in a dtype that loses nothing: bfloat16 for an importance."""
    found = unpacked(tensor)
    return found.to(torch.bfloat16) if isinstance(tensor, PackedImportance) else found


@torch.no_grad()
def pack_importance(tensor: Tensor, noise: torch.Generator | None = None) -> Tensor:
    """Return importances in one byte each; as they are where there are few, or some are no finite numbers from 0 on.

    Args:
        tensor: Ω.
        noise: what decides between rounding up and down, each as likely as makes the mean exact, on the tensor's
            device; without, to the nearest.
    """
    if not _is_worth_it(tensor):
        return tensor
    numbers = tensor.detach().to(torch.float32).reshape(-1) + 0.0  # -0 becomes 0, whose bits are 0
    least, most = numbers.aminmax()
    if not (least >= 0 and most < torch.inf):
        return tensor
    found = [_codes(part, noise) for part in numbers.split(_AT_ONCE)]
    return PackedImportance(tensor.shape, *map(torch.cat, zip(*found, strict=True)))


@torch.no_grad()
def pack_weights(tensor: Tensor) -> Tensor:
    """Return weights in three bytes each, rounded to the nearest; as they are where there are few."""
    if not _is_worth_it(tensor):
        return tensor
    bits = tensor.detach().to(torch.float32).reshape(-1).clone().view(torch.int32)
    # Half of what is dropped; but for the largest numbers, which it would make infinite.
    bits += torch.where((bits & 0x7FFFFFFF) < _INFINITE - 0x80, 0x80, 0)
    high, low = (bits >> 16).to(torch.int16), (bits >> 8 & 0xFF).to(torch.uint8)
    return PackedWeights(tensor.shape, high, low)


def packed_bytes(numel: int, *, importance: bool) -> int | None:
    """Return the bytes of so many importances or weights once they are packed; ``None`` for too few."""
    if numel < LEAST:
        return None
    return numel + 4 * -(-numel // BLOCK) if importance else 3 * numel


def _is_worth_it(tensor: Tensor) -> bool:
    return not isinstance(tensor, Packed) and tensor.is_floating_point() and tensor.numel() >= LEAST


def _codes(numbers: Tensor, noise: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Return the codes of numbers, and the origins of their blocks."""
    bits = numbers.view(torch.int32)
    codes = torch.empty_like(bits, dtype=torch.uint8)
    origins = torch.empty(-(-len(bits) // BLOCK), dtype=torch.int32, device=bits.device)
    for own, code, origin in zip(_in_blocks(bits), _in_blocks(codes), _beside_blocks(origins, codes), strict=True):
        most = own.amax(1, keepdim=True)
        least = torch.where(own > 0, own, _INFINITE).amin(1, keepdim=True)
        step = torch.full_like(most, _COARSEST)
        for finer in range(_COARSEST - 1, _FINEST - 1, -1):
            step = torch.where(_rounded_up(most, finer) - (least >> finer) < 255, finer, step)
        highest = torch.minimum(_rounded_up(most, step), (_INFINITE - 1) >> step)
        # No lower than what 255 codes reach down to, and above 0, which has a code of its own.
        lowest = torch.maximum(torch.minimum(least >> step, highest), highest - 254).clamp_(min=1)
        up = torch.bitwise_left_shift(torch.ones_like(step), step - 1)  # half a step
        if noise is not None:
            drawn = torch.randint(2**_COARSEST, own.shape, generator=noise, dtype=torch.int32, device=own.device)
            up = drawn & (2 * up - 1)
        place = torch.clamp((own + up) >> step, lowest, highest)
        code.copy_(torch.where(own > 0, place - lowest + 1, 0))
        origin.copy_(((lowest - 1) << step) + step)
    return codes, origins


def _rounded_up(bits: Tensor, step: int | Tensor) -> Tensor:
    """Return how many steps make up these bits at least."""
    return -(-bits >> step)


def _in_blocks(flat: Tensor) -> tuple[Tensor, Tensor]:
    """Return numbers as rows of whole blocks, and what is left as a row of its own."""
    whole = flat.numel() // BLOCK * BLOCK
    return flat[:whole].view(-1, BLOCK), flat[whole:].view(-1, max(1, flat.numel() - whole))


def _beside_blocks(origins: Tensor, flat: Tensor) -> tuple[Tensor, Tensor]:
    """Return the origins of both, in columns."""
    whole = flat.numel() // BLOCK
    return origins[:whole].view(-1, 1), origins[whole:].view(-1, 1)


def _is_written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return whether an operation would write to a packed tensor."""
    for place, argument in enumerate(func._schema.arguments):  # noqa: SLF001
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[place] if place < len(args) else kwargs.get(argument.name)
            if any(isinstance(leaf, Packed) for leaf in tree_leaves(given)):
                return True
    return False
