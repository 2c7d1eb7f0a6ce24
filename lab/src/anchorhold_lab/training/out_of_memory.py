"""Telling that memory ran out from everything else that can go wrong."""

import torch


def is_out_of_memory(error: BaseException) -> bool:
    """Tell running out of memory from other errors; on a CPU, torch says so in words alone."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    words = ("can't allocate memory", "not enough memory")
    return isinstance(error, RuntimeError) and any(each in str(error) for each in words)
