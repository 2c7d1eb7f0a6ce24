"""Autocast without effect, also where a model enters it by itself.

A model that Accelerate has prepared for 16 bits, as the Hugging Face Trainer does, enters autocast in its forward pass,
and so do some models as they are written. Leaving the region that the caller is in does not reach those.
"""

import contextlib
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from anchorhold.errors import AnchorholdError

_lock = threading.Lock()
_without: Counter[int] = Counter()
"""In how many regions without autocast each thread is."""
_asked: set[int] = set()
"""The threads that asked for autocast in such a region, and did not get it."""

_OF_PRECISION = re.compile(r"dtype|same type|scalar type|half|float16|fp16|bf16", re.IGNORECASE)
_NOTE = (
    "Importances are measured without autocast, also where the model or a wrapper around it enters it, so that they "
    "have the digits of the parameters. A model that needs autocast to work, since it converts to 16 bits by itself or "
    "its attention takes nothing else, has to be measured with parameters in 16 bits, or in a form without that need."
)


@contextlib.contextmanager
def autocast_off(model: nn.Module) -> Iterator[None]:
    """Compute in the model's own precision, in this thread.

    A model whose parameters differ in precision may work under autocast only: what it enters by itself stays.
    """
    parameters = list(model.parameters())
    with contextlib.ExitStack() as stack:
        for device_type in filter(torch.amp.is_autocast_available, {parameter.device.type for parameter in parameters}):
            stack.enter_context(torch.autocast(device_type, enabled=False))
        if len({parameter.dtype for parameter in parameters if parameter.is_floating_point()}) == 1:
            stack.enter_context(_never_on())
        yield


@contextlib.contextmanager
def _never_on() -> Iterator[None]:
    """Let whatever switches autocast on, in this thread, leave it off."""
    thread = threading.get_ident()
    with _lock:
        if not _without:
            _switch.install()
        _without[thread] += 1
    try:
        yield
    except RuntimeError as error:
        if thread in _asked and not isinstance(error, AnchorholdError) and _OF_PRECISION.search(str(error)):
            error.add_note(_NOTE)
        raise
    finally:
        with _lock:
            _without[thread] -= 1
            if not _without[thread]:
                del _without[thread]
                _asked.discard(thread)
            if not _without:
                _switch.remove()


class _Switch:
    """Stands where ``torch.autocast`` finds the function that switches it on and off, while any thread is without."""

    def __init__(self) -> None:
        self.original: Callable[..., Any] = torch.set_autocast_enabled

    def install(self) -> None:
        self.original = torch.set_autocast_enabled
        torch.set_autocast_enabled = self  # type: ignore[assignment]

    def remove(self) -> None:
        torch.set_autocast_enabled = self.original

    def __call__(self, device_type: str | bool, enabled: bool | None = None) -> None:
        if enabled is None:  # the older form
            device_type, enabled = "cuda", bool(device_type)
        thread = threading.get_ident()
        if enabled and thread in _without:
            _asked.add(thread)
            enabled = False
        elif enabled and isinstance(threading.current_thread(), threading._DummyThread):  # noqa: SLF001
            # One of torch's own: a GPU's backward pass runs there, and with it what was checkpointed, once more.
            enabled = False
        self.original(device_type, enabled)


_switch = _Switch()
