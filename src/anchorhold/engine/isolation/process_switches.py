"""Switches of torch's that hold for the whole process, and are set for as long as any thread measures."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.checkpoint


class ProcessSwitch:
    """Sets something when the first user enters, and puts it back when the last one leaves.

    Args:
        set: sets it, and returns how to put it back.
    """

    def __init__(self, set: Callable[[], Callable[[], None]]) -> None:
        self._set = set
        self._lock = threading.Lock()
        self._users = 0
        self._put_back: Callable[[], None] | None = None

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Have it set for a while."""
        with self._lock:
            if not self._users:
                self._put_back = self._set()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users and self._put_back is not None:
                    self._put_back()


def _set_whole_products() -> Callable[[], None]:
    """Compute products and convolutions in float32 proper, not in TF32, which cuDNN takes unless told otherwise.

    Its ten bits would reach every importance, and let a sample's outputs depend on how many others are in the batch.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = False

    def put_back() -> None:
        matmul.allow_tf32, cudnn.allow_tf32 = before

    return put_back


def _set_cudnn_off() -> Callable[[], None]:
    """Leave recurrent layers to torch's own kernels: those of cuDNN have no backward pass in eval mode."""
    before = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False

    def put_back() -> None:
        torch.backends.cudnn.enabled = before

    return put_back


class _Opened:
    @staticmethod
    def apply(function: Callable[..., Any], _preserve_random_state: bool, *inputs: Any) -> Any:
        return function(*inputs)


def _open_reentrant_checkpoints() -> Callable[[], None]:
    """Run what is checkpointed with ``use_reentrant=True`` as if it were not.

    That form runs under ``no_grad`` and builds its graph in ``backward()`` only: the parameters inside would look as if
    no output depended on them, and get importance 0. Chunks of samples keep the memory in bounds without it.
    """
    kept = torch.utils.checkpoint.CheckpointFunction
    torch.utils.checkpoint.CheckpointFunction = _Opened  # type: ignore[assignment, misc]

    def put_back() -> None:
        torch.utils.checkpoint.CheckpointFunction = kept  # type: ignore[misc]

    return put_back


whole_products = ProcessSwitch(_set_whole_products)
without_cudnn = ProcessSwitch(_set_cudnn_off)
reentrant_checkpoints_opened = ProcessSwitch(_open_reentrant_checkpoints)
