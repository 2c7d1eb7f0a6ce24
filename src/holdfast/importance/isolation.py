"""Measuring without leaving a trace.

Importance is a property of the trained network, so it is measured in eval mode, whatever mode the model is in, and
everything that measuring could disturb is put back: modes, buffers, gradients, ``requires_grad`` and random state.
"""

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel


@contextlib.contextmanager
def isolated(model: nn.Module, parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Put ``model`` in eval mode with gradients for ``parameters``, and restore everything afterwards."""
    parameters = list(parameters)
    modes = [(module, module.training) for module in model.modules()]
    required = [(parameter, parameter.requires_grad) for parameter in parameters]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    devices = {p.device for p in parameters if p.device.type == "cuda"}
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.random.fork_rng(devices=list(devices)))
        # A compiled model would hide its layers, and a fused attention its backward pass from vmap.
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        try:
            model.eval()
            for parameter in parameters:
                parameter.requires_grad_(True)
            yield
        finally:
            for module, training in modes:
                module.training = training
            for parameter, requires_grad in required:
                parameter.requires_grad_(requires_grad)
            with torch.no_grad():
                for buffer, saved in buffers:
                    buffer.copy_(saved)
