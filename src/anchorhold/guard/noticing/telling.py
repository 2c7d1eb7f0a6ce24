"""Warnings that point to the user's own line, however deep within torch or a trainer the guard was called."""

import sys
import warnings

import torch

from anchorhold.errors import AnchorholdWarning

_PASSED_OVER = {
    *("anchorhold", "torch", "contextlib", "functools"),
    *("accelerate", "lightning", "pytorch_lightning", "transformers", "trl"),
}


def tell(message: str) -> None:
    """Warn as if the nearest line that is none of ours, of torch or of a trainer had done so."""
    frame, level = sys._getframe(1), 2  # noqa: SLF001 (warnings do the same)
    while frame.f_back is not None and _package(frame.f_globals) in _PASSED_OVER:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, AnchorholdWarning, stacklevel=level)


def is_capturing() -> bool:
    """Whether work is being captured into a CUDA graph, so that no number can be looked at."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _package(scope: dict[str, object]) -> str:
    return str(scope.get("__name__", "")).partition(".")[0]
