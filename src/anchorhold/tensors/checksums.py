"""Numbers that tell tensors apart by their bits: those of several processes, or of then and now."""

from collections.abc import Iterable
from functools import lru_cache

import torch
from torch import Tensor

_ROW = 2**16
_ROWS = 64  # at a time, which take 32 MiB
_OF_A_ROW = 2**12


def checksum(tensors: Iterable[Tensor]) -> int:
    """Return a number that differs, most likely, where any bit does, or lies in another place."""
    return sum((place + 1) * _by_place(tensor) for place, tensor in enumerate(tensors))


def row_checksums(tensors: Iterable[Tensor]) -> Tensor:
    """Return a number for each row, on the CPU, of tensors that have as many rows as each other.

    Of long rows some thousand elements tell, evenly taken, so that the cost is bounded.
    """
    total: Tensor | int = 0
    for place, tensor in enumerate(tensors):
        rows = tensor.detach().reshape(len(tensor), -1)
        rows = rows[:, :: max(1, -(-rows.shape[1] // _OF_A_ROW))].contiguous()
        bits = rows.view({1: torch.int8, 2: torch.int16}.get(rows.element_size(), torch.int32))
        within = _odd_numbers(bits.shape[1]).to(bits.device)
        total = total + (2 * place + 1) * torch.cat([(some * within).sum(1) for some in bits.split(_ROWS)]).cpu()
    assert isinstance(total, Tensor)
    return total


def earlier_checksum(tensors: Iterable[Tensor]) -> int:
    """Return the number that files of earlier versions have, which bits in other places of one tensor do not change."""
    total = 0
    for place, tensor in enumerate(tensors):
        bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
        # int64 sums wrap around the same way in any order, on any device.
        total += (place + 1) * int(tensor.detach().contiguous().view(bits).sum(dtype=torch.int64))
    return total


def _by_place(tensor: Tensor) -> int:
    """Return the sum of a tensor's bits, each few of them times a number of their place's own."""
    flat = tensor.detach().contiguous().flatten()
    # Of 64 bits in one number, two that change their sign together would cancel out as it wraps around.
    bits = flat.view({1: torch.int8, 2: torch.int16}.get(flat.element_size(), torch.int32))
    full = bits.numel() // _ROW
    within = _odd_numbers(_ROW).to(bits.device)
    sums = [(rows * within).sum(1) for rows in bits[: full * _ROW].view(full, _ROW).split(_ROWS)]
    rest = bits[full * _ROW :]
    every = torch.cat([*sums, (rest * within[: len(rest)]).sum().view(1)])
    return int((every * _odd_numbers(len(every)).to(every.device)).sum())


@lru_cache(8)
def _odd_numbers(count: int) -> Tensor:
    """Return numbers of 64 bits, the same in every process; by an odd one no two products are equal."""
    drawn = torch.randint(-(2**62), 2**62, (count,), generator=torch.Generator().manual_seed(count))
    return 2 * drawn + 1
