"""Calling a model with other tensors in the place of its own, for one call."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from anchorhold.engine.batches import Forward


class Replaceable(nn.Module):
    """A model together with how it is called."""

    def __init__(self, model: nn.Module, forward: Forward) -> None:
        super().__init__()
        self.model = model
        self.call = forward

    def forward(self, inputs: Any) -> Tensor:
        """Call the model."""
        return self.call(self.model, inputs)

    def slots(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every place that holds a parameter or buffer, once, with what it holds.

        A tied parameter has a place in each of its modules; a module that is used twice has its places only once.
        """
        for prefix, module in self.named_modules():
            yield from module.named_parameters(prefix, recurse=False, remove_duplicate=False)
            yield from module.named_buffers(prefix, recurse=False, remove_duplicate=False)

    def call_with(self, tensors: Mapping[str, Tensor], inputs: Any) -> Tensor:
        """Call the model with other tensors in some of its slots."""
        # Every slot is named, so nothing is left for torch to tie: where a module is used twice, that would swap its
        # parameters twice and leave the wrong ones behind.
        try:
            outputs: Tensor = functional_call(self, dict(tensors), (inputs,), tie_weights=False)
        finally:
            self._renew_flat_weights()
        return outputs

    def _renew_flat_weights(self) -> None:
        """Let recurrent layers list their own weights again, as they do by themselves when they are next called."""
        for module in self.modules():
            if isinstance(module, nn.RNNBase):
                module._flat_weights = [getattr(module, name, None) for name in module._flat_weights_names]  # noqa: SLF001
