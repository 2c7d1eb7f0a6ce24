"""Measuring without leaving a trace.

Importance is a property of the trained network, so it is measured in eval mode, whatever mode the model is in, and
everything that measuring could disturb is put back: modes, buffers, gradients, ``requires_grad``, random state, and
the rows that an embedding with ``max_norm`` shortens.
"""

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from anchorhold.errors import ModelError
from anchorhold.persample.isolation.autocast import autocast_off
from anchorhold.persample.isolation.process_switches import reentrant_checkpoints_opened, whole_products, without_cudnn
from anchorhold.persample.isolation.renormed_rows import renormed_rows_put_back
from anchorhold.seeding import undisturbed


@contextlib.contextmanager
def isolated(model: nn.Module, parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Put ``model`` in eval mode with gradients for ``parameters`` of single samples, and restore all afterwards."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(differentiated(model, parameters))
        # A fused attention hides its backward pass from vmap.
        stack.enter_context(reentrant_checkpoints_opened())
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if any(isinstance(module, nn.RNNBase) for module in model.modules()):
            stack.enter_context(without_cudnn())
        # Where torch has no batched form of an operation it runs it in a loop, and says so: nothing to act on here.
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="There is a performance drop")
        yield


@contextlib.contextmanager
def differentiated(model: nn.Module, parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Put ``model`` in eval mode with gradients for ``parameters``, and restore everything afterwards."""
    parameters = list(parameters)
    with evaluation_mode(model, parameters), torch.enable_grad(), contextlib.ExitStack() as stack:
        stack.callback(_restore_requirements, [(parameter, parameter.requires_grad) for parameter in parameters])
        for parameter in parameters:
            parameter.requires_grad_(True)
        yield


@contextlib.contextmanager
def evaluation_mode(model: nn.Module, parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Put ``model`` in eval mode for whoever only wants its outputs, and restore everything afterwards.

    Args:
        model: the network.
        parameters: some that say on which devices it draws random numbers.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        stack.enter_context(undisturbed())  # the random states of the CPU, Python's and numpy's too
        stack.enter_context(_random_state_kept(parameters))
        # Autocast would round to 16 bits what is measured, and a compiled model hides its layers.
        stack.enter_context(autocast_off(model))
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(renormed_rows_put_back())
        stack.enter_context(_without_caches(model))
        stack.enter_context(whole_products())
        stack.callback(_restore_modes, [(module, module.training) for module in model.modules()])
        stack.callback(_restore_buffers, [_Buffer(*place) for place in _buffers(model)])
        _to_eval_mode(model)
        yield


def _to_eval_mode(model: nn.Module) -> None:
    try:
        model.eval()
    except NotImplementedError as error:
        raise ModelError(
            f"The {type(model).__name__} has no eval mode, in which importance is measured ({error}). Of a program "
            "that torch.export has made, measure the module that it was made from: its parameters are the same."
        ) from error
    for module in model.modules():
        # On some CPUs bitsandbytes' 4-bit layers pack their weights anew in eval mode, and can be trained no more.
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.training = True


class _Buffer:
    """A buffer as it was: which tensor, with what values."""

    def __init__(self, module: nn.Module, name: str, tensor: Tensor) -> None:
        self.module = module
        self.name = name
        self.tensor = tensor
        self.version = _version(tensor)
        self.values = tensor.detach().clone()

    def restore(self) -> None:
        # A buffer that nobody wrote to is left alone: writing would upset a backward pass that is still to come.
        if _version(self.tensor) != self.version:
            self.tensor.copy_(self.values)
        setattr(self.module, self.name, self.tensor)


def _version(tensor: Tensor) -> int:
    """Return how often a tensor was written to; one made in inference mode, which nobody may write to, does not say."""
    return 0 if tensor.is_inference() else tensor._version


def _buffers(model: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    for module in model.modules():
        for name, tensor in module.named_buffers(recurse=False):
            yield module, name, tensor


@contextlib.contextmanager
def _without_caches(model: nn.Module) -> Iterator[None]:
    """Keep Hugging Face's models from filling a cache for generation, as they do in eval mode.

    Nobody reads it here, it takes memory, and some write to it in place, which autograd and vmap refuse.
    """
    changed: list[Any] = []
    for module in model.modules():
        with contextlib.suppress(Exception):  # whatever a config of another kind says to being asked, or set
            config: Any = module.config
            if config.use_cache is True:
                config.use_cache = False
                changed.append(config)
    try:
        yield
    finally:
        for config in changed:
            config.use_cache = True


def _random_state_kept(parameters: Iterable[nn.Parameter]) -> contextlib.AbstractContextManager[None]:
    devices = {parameter.device for parameter in parameters if parameter.device.type == "cuda"}
    return torch.random.fork_rng(devices=list(devices))


def _restore_modes(modes: list[tuple[nn.Module, bool]]) -> None:
    for module, training in modes:
        module.training = training


def _restore_buffers(buffers: list[_Buffer]) -> None:
    with torch.no_grad():
        for buffer in buffers:
            buffer.restore()


def _restore_requirements(required: list[tuple[nn.Parameter, bool]]) -> None:
    for parameter, requires_grad in required:
        parameter.requires_grad_(requires_grad)
