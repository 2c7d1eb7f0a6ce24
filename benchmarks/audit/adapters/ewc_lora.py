"""EWC-LoRA: its Fisher is that of the product of an adapter's two factors, here one on each layer of the network.

The factors' product is 0, so that the network is that of the others, and its gradient that of the layer's weight. Its
own adapters sit on the keys and values of a vision transformer and tell the gradient in the same way.
"""

import contextlib
import io
import math
import warnings

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.audit.cases import Case, Found
from benchmarks.audit.checkouts import Checkout, importable
from benchmarks.audit.formulas import squared_batch_means
from benchmarks.audit.problem import Problem
from benchmarks.stubs import stubbed

CHECKOUT = Checkout(
    "yaoyz96/low-rank-cl",
    "d007ef5c13a6d8a7d7db3eedf93f5e796e2ce429",
    "methods/ewclora.py",
    "f011c97fb1df50b3475dd090064190bd14bbdba4346fb0d710befb386cd30d90",
)
with stubbed("timm"), importable(CHECKOUT.folder(), "methods", "models", "utils"), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from methods.ewclora import FisherComputer

PACKAGE = "EWC-LoRA"
VERSION = CHECKOUT.version
RANK = 4


def cases() -> list[Case]:
    return [
        Case(
            "FisherComputer",
            ("empirical Fisher", "Fisher"),
            _ewc,
            "Squares the mean gradient of each batch, of the whole weight in place of the adapter's factors, with the"
            " data's own labels, and weights it with the batch size; in eval mode, without biases. Its settings take"
            " batches of 128.",
            squared_batch_means,
        )
    ]


class _Adapted(nn.Module):
    """A linear layer, and an adapter of which ``register_hook`` keeps the gradient of the product."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.lora_new_A_k = nn.Linear(layer.in_features, RANK, bias=False)
        self.lora_new_B_k = nn.Linear(RANK, layer.out_features, bias=False)
        nn.init.kaiming_uniform_(self.lora_new_A_k.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_new_B_k.weight)
        self.delta_w_k_new_grad: Tensor | None = None

    def forward(self, inputs: Tensor, register_hook: bool) -> Tensor:
        product = self.lora_new_B_k.weight @ self.lora_new_A_k.weight
        if register_hook:
            product.register_hook(self._keep)
        return F.linear(inputs, self.layer.weight + product, self.layer.bias)

    def _keep(self, gradient: Tensor) -> None:
        self.delta_w_k_new_grad = gradient


class _Network(nn.Module):
    def __init__(self, network: nn.Sequential) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(_Adapted(one) if isinstance(one, nn.Linear) else one for one in network))

    def forward(self, inputs: Tensor, use_new: bool, register_hook: bool = False) -> dict[str, Tensor]:
        for layer in self.layers:
            inputs = layer(inputs, register_hook) if isinstance(layer, _Adapted) else layer(inputs)
        return {"logits": inputs}


def _ewc(problem: Problem, batch: int) -> Found:
    network = problem.network()
    samples = TensorDataset(torch.arange(len(problem.labels)), problem.inputs, problem.labels)
    loader = DataLoader(samples, batch_size=batch)
    with contextlib.redirect_stderr(io.StringIO()):
        computer = FisherComputer(0, _Network(network), loader, problem.classes, F.cross_entropy)
        found = computer.compute()
    names = [f"{name}.weight" for name, layer in network.named_children() if isinstance(layer, nn.Linear)]
    return Found(dict(zip(names, found, strict=True)))
