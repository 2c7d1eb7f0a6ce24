"""Walking through parameters in pieces that stay in cache.

The element-wise work around a training step is bound by memory: every operation on a whole parameter is a pass over
it. Doing all operations on one piece before the next makes them cost one pass together.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

PIECE = 2**19
"""Elements of a piece: half a dozen float32 tensors of this length fit a third-level cache, and each operation on one
is long enough to be shared among threads.
"""


def in_pieces(tensors: Sequence[Tensor | None]) -> Iterator[Sequence[Tensor | None]]:
    """Yield matching pieces of equally shaped tensors; ``None`` stays ``None``.

    An accelerator wants few large operations instead, and a tensor whose memory is laid out unlike the others' cannot
    be cut alike: both are yielded whole.
    """
    given = [tensor for tensor in tensors if tensor is not None]
    whole = given[0].device.type != "cpu" or given[0].numel() <= PIECE
    if whole or not all(tensor.is_contiguous() for tensor in given):
        yield tensors
        return
    cut = [None if tensor is None else torch.split(tensor.view(-1), PIECE) for tensor in tensors]
    for i in range(-(-given[0].numel() // PIECE)):
        yield [None if pieces is None else pieces[i] for pieces in cut]
