"""Walking through parameters in pieces that stay in cache.

The element-wise work around a training step is bound by memory: every operation on a whole parameter is a pass over
it. Doing all operations on one piece before the next makes them cost one pass together.
"""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from anchorhold.tensors.packed import Packed, unpacked
from anchorhold.tensors.sharding import is_sharded, local

PIECE = 2**19
"""Elements of a piece on a CPU: half a dozen float32 tensors of this length fit a third-level cache, and each operation
on one is long enough to be shared among threads.
"""
LARGE_PIECE = 2**24
"""The same on an accelerator, which wants few large operations: small enough that temporary tensors cost no memory to
speak of.
"""


def is_one_piece(tensor: Tensor) -> bool:
    """Whether a tensor is too short to be worth cutting, and whole."""
    return tensor.numel() <= (PIECE if tensor.device.type == "cpu" else LARGE_PIECE) and not is_sharded(tensor)


def in_pieces(tensors: Sequence[Tensor]) -> Iterator[Sequence[Tensor]]:
    """Yield matching pieces of equally shaped tensors.

    Of sharded tensors, which all have to be spread alike, they are pieces of this process's own part. A tensor whose
    memory is laid out unlike the others' cannot be cut alike, so all are yielded whole. Packed tensors are unpacked.
    """
    tensors = [tensor if type(tensor) is Tensor else local(tensor) for tensor in tensors]
    length = PIECE if tensors[0].device.type == "cpu" else LARGE_PIECE
    if tensors[0].numel() <= length or not all(tensor.is_contiguous() for tensor in tensors):
        yield [unpacked(tensor) for tensor in tensors]
        return
    yield from zip(*(_cut(tensor, length) for tensor in tensors), strict=True)


def _cut(tensor: Tensor, length: int) -> Iterable[Tensor]:
    if isinstance(tensor, Packed):
        return tensor.in_pieces(length)  # each is unpacked when it is asked for
    return torch.split(tensor.view(-1), length)
