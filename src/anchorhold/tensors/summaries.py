"""Many tensors as one number, which tells them apart by their bits, or in a few words, where numbers fill a screen."""

from collections.abc import Iterable
from functools import lru_cache

import torch
from torch import Tensor

from anchorhold.tensors.storage import widest_dtype

_ROW = 2**16
_ROWS = 64  # at a time, which take 32 MiB
_OF_A_ROW = 2**12


def checksum(tensors: Iterable[Tensor]) -> int:
    """Return a number that differs, most likely, where any bit does, or lies in another place."""
    total = 0
    for place, tensor in enumerate(tensors):
        flat = tensor.detach().contiguous().flatten()
        # Of 64 bits in one number, two that change their sign together would cancel out as it wraps around.
        bits = flat.view({1: torch.int8, 2: torch.int16}.get(flat.element_size(), torch.int32))
        # The sum of a tensor's bits, each few of them times a number of their place's own.
        full = bits.numel() // _ROW
        within = _odd_numbers(_ROW).to(bits.device)
        sums = [(rows * within).sum(1) for rows in bits[: full * _ROW].view(full, _ROW).split(_ROWS)]
        rest = bits[full * _ROW :]
        every = torch.cat([*sums, (rest * within[: len(rest)]).sum().view(1)])
        total += (place + 1) * int((every * _odd_numbers(len(every)).to(every.device)).sum())
    return total


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


@lru_cache(8)
def _odd_numbers(count: int) -> Tensor:
    """Return numbers of 64 bits, the same in every process; by an odd one no two products are equal."""
    drawn = torch.randint(-(2**62), 2**62, (count,), generator=torch.Generator().manual_seed(count))
    return 2 * drawn + 1


def amount(tensors: Iterable[Tensor]) -> str:
    """Return how many parameters, of how many weights."""
    sizes = [tensor.numel() for tensor in tensors]
    return f"{len(sizes)} parameter{'' if len(sizes) == 1 else 's'} ({sum(sizes):,} weights)"


def spread(tensors: Iterable[Tensor]) -> str:
    """Return the mean and the largest of some importances, and how many are 0."""
    total, count, most, none = 0.0, 0, 0.0, 0
    for tensor in tensors:
        if tensor.numel():
            total += float(tensor.sum(dtype=widest_dtype(tensor.device)))
            count += tensor.numel()
            most = max(most, float(tensor.max()))
            none += int((tensor == 0).sum())
    if not count:
        return "of no weight"
    share = "all" if none == count else f"{100 * none / count:.2g} %"
    zero = f"; {share} are 0" if none else ""
    return f"{total / count:.3g} on average, {most:.3g} at most{zero}"


def in_bytes(count: float) -> str:
    """Return a number of bytes in the unit that suits it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    raise AssertionError
