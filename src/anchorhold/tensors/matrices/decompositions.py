"""Decompositions of matrices on devices that have none of their own: there the processor makes them.

Apple's GPUs (MPS) have no eigenvectors, and AMD's (ROCm) only where PyTorch was built with a library for them. Such a
device says so when it is asked, so it is asked first; what is decomposed once a task can go the longer way.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anchorhold.tensors.storage import widest_dtype


def decomposed(decomposition: Callable[..., Any], matrix: Tensor, **options: Any) -> Any:
    """Return what ``torch.linalg`` makes of a matrix: where the matrix is, or by the processor and then brought there.

    Args:
        decomposition: such as ``torch.linalg.eigh``.
        matrix: what is decomposed.
        options: of the decomposition.
    """
    try:
        return decomposition(matrix, **options)
    except (NotImplementedError, RuntimeError) as error:
        if matrix.device.type == "cpu" or not _is_missing(error):
            raise
    return _brought_to(matrix.device, decomposition(matrix.cpu(), **options))


def in_double(decomposition: Callable[..., Any], matrix: Tensor) -> tuple[Tensor, ...]:
    """Return what a decomposition makes of a matrix in double precision, in the matrix's own precision and place."""
    wide = matrix.to(torch.float64) if widest_dtype(matrix.device) == torch.float64 else matrix.cpu().double()
    return tuple(each.to(matrix.dtype).to(matrix.device) for each in decomposed(decomposition, wide))


def _is_missing(error: Exception) -> bool:
    """Whether a device says that it has no such decomposition, and not that this one failed."""
    return isinstance(error, NotImplementedError) or "MAGMA" in str(error) or "not implemented" in str(error)


def _brought_to(device: torch.device, found: Any) -> Any:
    if isinstance(found, Tensor):
        return found.to(device)
    brought = [each.to(device) for each in found]
    return type(found)(brought) if hasattr(found, "n_fields") else tuple(brought)
