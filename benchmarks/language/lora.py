"""A LoRA adapter: what a layer learns is a product BA of low rank, added to weights that stay as they are."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

import anchorhold
from anchorhold.adapters import Product, Term
from benchmarks.language.gpt import GPT
from benchmarks.language.pretrained import Pretrained

SCALE = 2.0


class Adapted(nn.Module):
    """A linear layer with an adapter. B starts at 0, so that nothing changes at first."""

    def __init__(self, layer: nn.Linear, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        self.layer = layer
        a = torch.empty(rank, layer.in_features).normal_(std=layer.in_features**-0.5, generator=generator)
        self.lora_a = nn.Parameter(a)
        self.lora_b = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layer(x) + SCALE * linear(linear(x, self.lora_a), self.lora_b)
        return outputs


@anchorhold.adapters.register_adapter("benchmark-lora")
class AdaptedLayer(anchorhold.adapters.Adapter):
    """What such an adapter adds to its layer's weight."""

    @classmethod
    def describes(cls, module: nn.Module) -> bool:
        return isinstance(module, Adapted)

    module: Adapted

    @property
    def layer(self) -> nn.Linear:
        return self.module.layer

    def change(self) -> Product:
        return Product(SCALE * self.module.lora_b, self.module.lora_a)

    def terms(self) -> list[Term]:
        return [Term((self.module.lora_b, self.module.lora_a), is_product=True)]


def adapt(model: GPT | Pretrained, rank: int, generator: torch.Generator) -> None:
    """Freeze a network and give every linear layer of its blocks an adapter."""
    model.requires_grad_(False)
    for block in model.blocks:
        for name, layer in [each for each in block.named_modules() if isinstance(each[1], nn.Linear)]:
            block.set_submodule(name, Adapted(layer, rank, generator))
