"""Warnings that point to the user's own line, however deep within torch the guard was called."""

import sys
import warnings

from holdfast.errors import HoldfastWarning

_PASSED_OVER = {"holdfast", "torch", "contextlib", "functools"}


def tell(message: str) -> None:
    """Warn as if the nearest line that is neither ours nor torch's had done so."""
    frame, level = sys._getframe(1), 2  # noqa: SLF001 (warnings do the same)
    while frame.f_back is not None and _package(frame.f_globals) in _PASSED_OVER:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, HoldfastWarning, stacklevel=level)


def _package(scope: dict[str, object]) -> str:
    return str(scope.get("__name__", "")).partition(".")[0]
