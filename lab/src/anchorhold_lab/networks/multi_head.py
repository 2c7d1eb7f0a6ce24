"""The paper's two networks, with its initialisation."""

import copy
import itertools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from anchorhold_lab.networks.dropout import Dropout


class MultiHead(nn.Module):
    """A body that all tasks share, and a head for each of them, or one for all.

    Parameters are called ``body.*`` and ``heads.*``, so that ``protect="body.*"`` leaves heads out. ``bias`` is where
    biases begin, of weights that are drawn Glorot-uniformly; with ``None``, all begin as torch draws them.
    """

    def __init__(self, body: nn.Module, features: int, classes: int, heads: int = 1, bias: float | None = 0.0) -> None:
        super().__init__()
        self.body = body
        self.heads = nn.ModuleList(nn.Linear(features, classes) for _ in range(heads))
        self.bias = bias

    def forward(self, x: Tensor, head: int | Tensor = 0) -> Tensor:
        """Return the logits of one head, or of one for each sample."""
        features = self.body(x)
        if isinstance(head, Tensor):
            every = torch.stack([each(features) for each in self.heads])
            return every[head, torch.arange(len(head), device=head.device)]
        logits: Tensor = self.heads[head](features)
        return logits

    def initialise(self, generator: torch.Generator | None = None) -> None:
        """Draw all weights anew that are trained."""
        initialise(self, self.bias, generator)


def initialise(module: nn.Module, bias: float | None = 0.0, generator: torch.Generator | None = None) -> None:
    """Draw a network's trained weights anew, as :func:`draw_weights` does."""
    take_weights(module, draw_weights(module, bias, generator))


def draw_weights(
    module: nn.Module, bias: float | None = 0.0, generator: torch.Generator | None = None
) -> dict[str, Tensor]:
    """Return new weights of a network, by name, and new buffers of layers that have them.

    Linear and convolutional layers are drawn Glorot-uniformly, the fans of a convolution counting its kernel, as in
    TensorFlow and in torch; their biases are set. Other layers are reset as they reset themselves, and so are all where
    ``bias`` is ``None``. What is frozen stays. All is drawn on the CPU, so that a seed gives the same weights on every
    device.
    """
    drawn: dict[str, Tensor] = {}
    for path, layer in module.named_modules():
        own = dict(layer.named_parameters(recurse=False))
        if bias is not None and isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d) and "weight" in own:
            weight = torch.empty_like(own["weight"], device="cpu", requires_grad=False)
            new = {"weight": nn.init.xavier_uniform_(weight, generator=generator)}
            if "bias" in own:
                new["bias"] = torch.full_like(own["bias"], bias, device="cpu", requires_grad=False)
        elif own:
            new = _reset(layer, generator)
        else:
            continue
        trained = {name for name, parameter in own.items() if parameter.requires_grad}
        keep = trained | (set(new) - set(own) if trained else set())
        drawn |= {f"{path}.{name}" if path else name: value for name, value in new.items() if name in keep}
    return drawn


@torch.no_grad()
def take_weights(module: nn.Module, drawn: Mapping[str, Tensor]) -> None:
    """Set parameters and buffers to given values, in place."""
    present = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))
    for name, value in drawn.items():
        present[name].copy_(value)


def _reset(layer: nn.Module, generator: torch.Generator | None) -> dict[str, Tensor]:
    """Return a layer's own parameters and buffers as it resets them itself, from a random stream of the generator's."""
    fresh = copy.deepcopy(layer).cpu()
    reset = getattr(fresh, "reset_parameters", None) or getattr(fresh, "_reset_parameters", None)
    if reset is None:
        return {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (1,), generator=generator)))
        reset()
    own = (*fresh.named_parameters(recurse=False), *fresh.named_buffers(recurse=False))
    return {name: value.detach() for name, value in own}


def mlp(
    inputs: int = 784,
    hidden: Sequence[int] = (2000, 2000),
    classes: int = 10,
    heads: int = 1,
    bias: float | None = 0.1,
) -> MultiHead:
    """Return the network of Permuted MNIST: fully connected, ReLU, biases that start at 0.1."""
    widths = [inputs, *hidden]
    layers = [layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU(inplace=True))]
    network = MultiHead(nn.Sequential(*layers), widths[-1], classes, heads, bias)
    network.initialise()
    return network


def cnn(classes: int = 10, heads: int = 6, channels: int = 3) -> MultiHead:
    """Return the network of Split CIFAR: Keras' default for CIFAR-10, with "same" convolutions and dropout."""

    def pair(a: int, b: int) -> list[nn.Module]:
        layers: list[nn.Module] = []
        for inner in (a, b):
            layers += [nn.Conv2d(inner, b, 3, padding=1), nn.ReLU(inplace=True)]
        return [*layers, nn.MaxPool2d(2), Dropout(0.25)]

    dense = [nn.Flatten(), nn.Linear(64 * 8 * 8, 512), nn.ReLU(inplace=True), Dropout(0.5)]
    network = MultiHead(nn.Sequential(*pair(channels, 32), *pair(32, 64), *dense), 512, classes, heads)
    network.initialise()
    return network
