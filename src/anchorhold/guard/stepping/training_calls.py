"""How the model is called in training: its inputs and its precision, for holds that run it once more before a step.

Autocast is on around a model's forward pass and off again when the optimizer steps, and the batch is nowhere to be seen
by then; so the last call is remembered from when it was made.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from anchorhold.holds.base import TrainingCall

F = TypeVar("F", bound=Callable[..., Any])


def out_of_graphs(function: F) -> F:
    """Return the function as ``torch.compiler.disable`` makes it: called as it is by what is compiled.

    That loads the compiler at once, which takes longer than to load torch, also where no optimizer is ever made: with
    the laboratory's fast engine, or to look at a saved state. torch's own way for its optimizers waits for a call.
    """
    kept: F = getattr(torch, "_disable_dynamo", torch.compiler.disable)(function)
    return kept


class TrainingCalls:
    """Remember the last call of a model that could be differentiated: of a step's micro-batches, the last one."""

    def __init__(self) -> None:
        self.last: TrainingCall | None = None
        self._model: weakref.ref[nn.Module] | None = None
        self._handle: RemovableHandle | None = None
        self._paused = False

    def watch(self, model: nn.Module) -> None:
        """Remember the calls of this model from now on."""
        if self._model is None or self._model() is not model:
            self.release()
            self._model = weakref.ref(model)
            self._handle = model.register_forward_pre_hook(_Recorder(self), with_kwargs=True)

    def release(self) -> None:
        """Remember no more calls."""
        if self._handle is not None:
            self._handle.remove()
        self._handle = self._model = self.last = None

    def record(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Take note of a call, unless it is one of a copy, of a hold, or without gradients."""
        if self._paused or not torch.is_grad_enabled() or self._model is None or self._model() is not model:
            return
        kinds = {parameter.device.type for parameter in model.parameters()}
        # Autocast is switched for each kind of device by itself.
        on = {kind for kind in kinds if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)}
        self.last = TrainingCall(args, kwargs, {kind: torch.get_autocast_dtype(kind) for kind in on})

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let a hold call the model."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False


class _Recorder:
    """The hook itself; a copy of the model, or one that is read from a file, has one that records nothing."""

    def __init__(self, calls: TrainingCalls | None = None) -> None:
        # Weakly: the hook lies in the model, which must not keep the guard alive, nor take it along in a copy.
        self._calls = None if calls is None else weakref.ref(calls)

    @out_of_graphs
    def __call__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls = None if self._calls is None else self._calls()
        if calls is not None:
            calls.record(model, args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Recorder":
        return _Recorder()

    def __reduce__(self) -> tuple[type["_Recorder"], tuple[()]]:
        return _Recorder, ()
