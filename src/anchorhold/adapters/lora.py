"""LoRA as PEFT has it: Δ = s·BA of all active adapters, for linear layers, embeddings and convolutions.

Hu et al. 2021 (arXiv 2106.09685); rsLoRA, Kalajdzievski 2023 (arXiv 2312.03732), has another s. A base layer of 4 or 8
bits is as any other: its weight is not looked at.
"""

from torch import nn

from anchorhold.adapters.base import PeftLayer
from anchorhold.adapters.changes import Change, Product, added
from anchorhold.adapters.mean_change import Term


class Lora(PeftLayer):
    """A layer with PEFT's LoRA adapters."""

    @classmethod
    def describes(cls, module: nn.Module) -> bool:
        """Whether it has LoRA's factors beside a layer; AdaLoRA has a third."""
        has = ("lora_A", "lora_B", "lora_embedding_A", "scaling", "active_adapters", "get_base_layer")
        return all(hasattr(module, name) for name in has) and not hasattr(module, "lora_E")

    def change(self) -> Change | None:
        """Return the sum of s·BA over the adapters that it computes with."""
        return added([self._product(name) for name in self.acting(self._names())])

    def terms(self) -> list[Term]:
        """Return BA of each adapter, active or not: s is the same before and after."""
        return [Term(self._factors(name), is_product=True) for name in self._names()]

    def _names(self) -> list[str]:
        return [*self.module.lora_A, *self.module.lora_embedding_A]

    def _product(self, name: str) -> Product:
        module = self.module
        scaling = module.scaling[name]
        if name in module.lora_embedding_A:
            # Gemma's embeddings multiply their rows, and so the adapter's, by a number.
            scale = getattr(module, "_get_embed_scale", lambda: None)()
            scaling = scaling if scale is None else scaling * float(scale)
        # A convolution's A has a kernel, which belongs to its inputs.
        b, a = (factor.flatten(1) for factor in self._factors(name))
        return Product(scaling * b, a)

    def _factors(self, name: str) -> tuple[nn.Parameter, nn.Parameter]:
        """Return B and A of one adapter."""
        module = self.module
        if name in module.lora_embedding_A:
            return module.lora_embedding_B[name], module.lora_embedding_A[name]
        return module.lora_B[name].weight, module.lora_A[name].weight

    def parameters(self) -> list[nn.Parameter]:
        """Return the factors of all adapters, active or not; a bias beside B is held as any other parameter."""
        module = self.module
        factors = [layer.weight for layers in (module.lora_A, module.lora_B) for layer in layers.values()]
        return [*factors, *module.lora_embedding_A.values(), *module.lora_embedding_B.values()]

    def refusal(self) -> str | None:
        """Refuse DoRA and other variants, and what is no layer's weight."""
        variants = getattr(self.module, "lora_variant", {})
        if variants:
            return f"its adapter is LoRA's variant {type(next(iter(variants.values()))).__name__}, not s·BA"
        if hasattr(self.module, "parameter_name") or not self._names():
            return "its adapter is of a parameter, not of a layer's weight"
        return super().refusal()
