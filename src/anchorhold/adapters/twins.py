r"""A layer beside an adapted one, with a weight of 0: what the gradient with respect to the merged weight is taken of.

With :math:`y = (W + \Delta)x + Zx` and Z = 0 the outputs are what they were, and the gradient with respect to Z is that
with respect to the merged weight. W itself is neither read nor differentiated: it may be quantised, or merged with the
adapter already.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from anchorhold.errors import ConfigurationError

TWIN = "anchorhold_twin"
"""What a twin is called in the module that it stands beside."""


def twin_of(layer: nn.Module, like: Tensor) -> nn.Module:
    """Return a layer of the same kind without a bias, whose weight is 0 and takes no memory.

    Args:
        layer: the adapted layer: linear, an embedding, or a convolution.
        like: a parameter of the adapter, whose device and type it has.
    """
    twin: nn.Module = _blank(layer)
    weight: Any = twin.weight
    zero = torch.zeros((), dtype=like.dtype, device=like.device).expand(weight.shape)
    twin.weight = nn.Parameter(zero, requires_grad=False)
    return twin


def _blank(layer: Any) -> Any:
    """Return a layer of the same kind, with shapes alone."""
    if isinstance(layer, nn.Embedding):
        return nn.Embedding(layer.num_embeddings, layer.embedding_dim, padding_idx=layer.padding_idx, device="meta")
    if isinstance(layer, _ConvNd) and not isinstance(layer, _ConvTransposeNd):
        kind = next(kind for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d) if isinstance(layer, kind))
        settings = {key: getattr(layer, key) for key in ("stride", "padding", "dilation", "groups", "padding_mode")}
        sides = layer.in_channels, layer.out_channels, layer.kernel_size
        return kind(*sides, bias=False, device="meta", **settings)  # type: ignore[arg-type]
    if hasattr(layer, "in_features") and hasattr(layer, "out_features"):
        return nn.Linear(layer.in_features, layer.out_features, bias=False, device="meta")
    if hasattr(layer, "nx") and hasattr(layer, "nf"):  # Hugging Face's Conv1D
        return nn.Linear(layer.nx, layer.nf, bias=False, device="meta")
    raise ConfigurationError(
        f"space='merged' with an adapter of a {type(layer).__name__}; expected adapters of linear layers, embeddings "
        "or convolutions. Give options=GuardOptions(space='weights'), which holds the adapter's own parameters."
    )


@contextlib.contextmanager
def beside(module: nn.Module, twin: nn.Module, called: Callable[[], None]) -> Iterator[None]:
    """Let a module's outputs be the twin's too, for a while, and the twin a part of the module.

    Args:
        module: the adapted layer.
        twin: what stands beside it.
        called: is called whenever the module is.
    """

    def add(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Tensor:
        called()
        x = args[0] if args else next(iter(kwargs.values()))
        weight: Any = twin.weight
        x = x.to(weight.dtype) if x.is_floating_point() else x
        more: Tensor = twin(x)
        return output + more.to(output.dtype)

    module.add_module(TWIN, twin)
    handle = module.register_forward_hook(add, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
        delattr(module, TWIN)
