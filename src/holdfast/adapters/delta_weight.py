"""PEFT's other adapters that add something to a weight: LoHa, LoKr, AdaLoRA and VeRA, each by its own Δ.

LoHa, Hyeon-Woo et al. 2021 (arXiv 2108.06098); LoKr, Yeh et al. 2023 (arXiv 2309.14859); AdaLoRA, Zhang et al. 2023
(arXiv 2303.10512); VeRA, Kopiczko et al. 2023 (arXiv 2310.11454). Their Δ is a whole matrix, as they merge it.
"""

from typing import Any

from torch import nn

from holdfast.adapters.base import Adapter, Change, added

_KINDS = {"LoHa": "hada_w1_a", "LoKr": "lokr_w1", "AdaLoRA": "lora_E", "VeRA": "vera_lambda_b"}
"""What tells each of them."""


class DeltaWeight(Adapter):
    """A layer to whose weight PEFT's own ``get_delta_weight`` is added."""

    module: Any

    @classmethod
    def describes(cls, module: nn.Module) -> bool:
        """Whether it is one of those."""
        return callable(getattr(module, "get_delta_weight", None)) and any(hasattr(module, k) for k in _KINDS.values())

    @property
    def layer(self) -> nn.Module:
        """The base layer."""
        found: nn.Module = self.module.get_base_layer()
        return found

    def change(self) -> Change | None:
        """Return the sum over the active adapters, or those that are merged; nothing while they are disabled."""
        module = self.module
        if module.disable_adapters:
            return None
        own = [name for kind in _KINDS.values() for name in getattr(module, kind, ())]
        own += list(getattr(module, "lokr_w1_a", ()))
        acting = module.merged_adapters if module.merged else module.active_adapters
        found = [module.get_delta_weight(name).flatten(1) for name in acting if name in own]
        return added([delta.mT if getattr(module, "fan_in_fan_out", False) else delta for delta in found])

    def refusal(self) -> str | None:
        """Refuse layers that are no single matrix."""
        if getattr(self.layer, "groups", 1) != 1:
            return "its convolution has groups, each with inputs of its own"
        return None
