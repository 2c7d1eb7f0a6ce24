"""How a network differs between training and evaluation, found by trying it on a few samples."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from anchorhold.variational import mean_field_layers
from anchorhold_lab.networks import Dropout, MultiHead

FEW = 8
"""Samples that a network is tried on: more than one, which batch norm could not do with."""


@dataclass(frozen=True)
class Modes:
    """What a network does in training that it does not do in evaluation."""

    drops: bool
    """Whether it has dropout layers, or others that draw from the run's own stream."""
    differs: bool
    """Whether it differs apart from those: batch norm, or random numbers drawn in the network's own code."""
    draws: bool
    """Whether it draws random numbers apart from those, which no seed of ours decides."""
    drops_twice: bool
    """Whether some dropout layer is used more than once in a forward pass."""

    @property
    def matter(self) -> bool:
        """Whether a gradient in training is not that of evaluation."""
        return self.drops or self.differs


@torch.no_grad()
def modes_of(model: MultiHead, x: Tensor) -> Modes:
    """Try a copy of a network on a few samples."""
    tried = copy.deepcopy(model)
    own = [module for module in tried.modules() if isinstance(module, Dropout)]
    drops = any(module.p > 0 for module in own)
    for layer in mean_field_layers(tried).values():
        layer.register_forward_pre_hook(_without_noise)  # which comes from the run's stream too
        drops = True
    calls: list[nn.Module] = []
    for module in own:
        module.p = 0.0  # so that only what else differs is seen
        module.register_forward_pre_hook(lambda module, _: calls.append(module))
    devices = [x.device] if x.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        still = tried.eval()(x)
        drops_twice = len(calls) > len(set(calls))
        torch.manual_seed(0)
        trained = copy.deepcopy(tried).train()(x)
        torch.manual_seed(1)
        again = copy.deepcopy(tried).train()(x)
    return Modes(drops, not _same(still, trained), not _same(trained, again), drops_twice)


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether all bits are, of what is no number too: samples that are none are no network's doing."""
    return torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)


def _without_noise(layer: nn.Module, _: object) -> None:
    layer.training = False
