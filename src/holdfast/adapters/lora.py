"""LoRA as PEFT has it: Δ = s·BA of all active adapters, for linear layers, embeddings and convolutions.

Hu et al. 2021 (arXiv 2106.09685); rsLoRA, Kalajdzievski 2023 (arXiv 2312.03732), has another s. Layers are known by
what they have, so that PEFT itself is not asked for; so 4-bit and 8-bit ones are, whose weight is not looked at.
"""

from typing import Any

from torch import Tensor, nn

from holdfast.adapters.base import Adapter, Change, Product, added


class Lora(Adapter):
    """A layer with PEFT's LoRA adapters."""

    module: Any

    @classmethod
    def describes(cls, module: nn.Module) -> bool:
        """Whether it has LoRA's factors beside a layer; AdaLoRA has a third."""
        has = ("lora_A", "lora_B", "lora_embedding_A", "scaling", "active_adapters", "get_base_layer")
        return all(hasattr(module, name) for name in has) and not hasattr(module, "lora_E")

    @property
    def layer(self) -> nn.Module:
        """The base layer."""
        found: nn.Module = self.module.get_base_layer()
        return found

    def change(self) -> Change | None:
        """Return the sum of s·BA over the active adapters, or those that are merged; nothing while disabled."""
        module = self.module
        if module.disable_adapters:
            return None
        acting = module.merged_adapters if module.merged else module.active_adapters
        return added([self._product(name) for name in acting if name in self._names()])

    def _names(self) -> list[str]:
        return [*self.module.lora_A, *self.module.lora_embedding_A]

    def _product(self, name: str) -> Product:
        module = self.module
        scaling = module.scaling[name]
        if name in module.lora_embedding_A:
            # Gemma's embeddings multiply their rows, and so the adapter's, by a number.
            scale = getattr(module, "_get_embed_scale", lambda: None)()
            scaling = scaling if scale is None else scaling * float(scale)
            return Product(scaling * module.lora_embedding_B[name], module.lora_embedding_A[name])
        return Product(scaling * _matrix(module.lora_B[name].weight), _matrix(module.lora_A[name].weight))

    def parameters(self) -> list[nn.Parameter]:
        """Return the factors of all adapters, active or not; a bias beside B is held as any other parameter."""
        module = self.module
        factors = [layer.weight for layers in (module.lora_A, module.lora_B) for layer in layers.values()]
        return [*factors, *module.lora_embedding_A.values(), *module.lora_embedding_B.values()]

    def refusal(self) -> str | None:
        """Refuse DoRA and other variants, and layers that are no single matrix."""
        variants = getattr(self.module, "lora_variant", {})
        if variants:
            return f"its adapter is LoRA's variant {type(next(iter(variants.values()))).__name__}, not s·BA"
        if getattr(self.layer, "groups", 1) != 1:
            return "its convolution has groups, each with inputs of its own"
        if not self._names():
            return "it has no factors of a layer's weight"
        return None


def _matrix(factor: Tensor) -> Tensor:
    """Return a factor as a matrix: a convolution's has a kernel, which belongs to its inputs."""
    return factor.flatten(1)
