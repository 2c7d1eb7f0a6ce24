"""PEFT's other adapters that add something to a weight: LoHa, LoKr, AdaLoRA and VeRA, each by its own Δ.

LoHa, Hyeon-Woo et al. 2021 (arXiv 2108.06098); LoKr, Yeh et al. 2023 (arXiv 2309.14859); AdaLoRA, Zhang et al. 2023
(arXiv 2303.10512); VeRA, Kopiczko et al. 2023 (arXiv 2310.11454). Their Δ is a whole matrix, as they merge it.
"""

from torch import nn

from anchorhold.adapters.base import PeftLayer
from anchorhold.adapters.changes import Change, added
from anchorhold.adapters.mean_change import Term

_BY_NAME = ("hada_w1_a", "lokr_w1", "lokr_w1_a", "lora_E", "vera_lambda_b")
"""What each of them has one of for every adapter, by its name: LoHa, LoKr (one of two), AdaLoRA, VeRA."""


class DeltaWeight(PeftLayer):
    """A layer to whose weight PEFT's own ``get_delta_weight`` is added."""

    @classmethod
    def describes(cls, module: nn.Module) -> bool:
        return callable(getattr(module, "get_delta_weight", None)) and any(hasattr(module, name) for name in _BY_NAME)

    def change(self) -> Change | None:
        """Return the sum over the adapters that it computes with, of outputs × inputs."""
        found = [self.module.get_delta_weight(name).flatten(1) for name in self.acting(self._names())]
        return added([delta.mT if getattr(self.module, "fan_in_fan_out", False) else delta for delta in found])

    def terms(self) -> list[Term]:
        """Return what each adapter adds: of all these kinds, it is linear in each of the parameters by itself."""
        kinds = [getattr(self.module, kind) for kind in self.module.adapter_layer_names]
        return [Term(tuple(kind[name] for kind in kinds if name in kind)) for name in self._names()]

    def _names(self) -> list[str]:
        return list(dict.fromkeys(name for kind in _BY_NAME for name in getattr(self.module, kind, ())))
