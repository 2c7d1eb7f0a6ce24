"""Small networks with batch norm whose statistics and scales are none that a formula could do without."""

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def stirred(model, seed=0):
    """Give every batch norm statistics, scales and shifts as after some training, and the model double precision."""
    generator = torch.Generator().manual_seed(seed)
    model = model.double()
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            nn.init.uniform_(module.running_mean, -0.5, 0.5, generator=generator)
            nn.init.uniform_(module.running_var, 0.5, 2.0, generator=generator)
            if module.affine:
                nn.init.uniform_(module.weight, -1.5, 1.5, generator=generator)
                nn.init.uniform_(module.bias, -0.5, 0.5, generator=generator)
    return model


def dense(bias=True, affine=True, seed=0):
    torch.manual_seed(seed)
    layers = [nn.Linear(4, 5, bias=bias), nn.BatchNorm1d(5, affine=affine), nn.Tanh(), nn.Linear(5, 3)]
    return stirred(nn.Sequential(*layers), seed)


class Images(nn.Module):
    """Takes the four numbers of a sample as an image of two by two."""

    def __init__(self, bias=False, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.conv = nn.Conv2d(1, 3, 2, padding=1, bias=bias)
        self.norm = nn.BatchNorm2d(3, eps=0.1)
        self.head = nn.Linear(27, 3)
        stirred(self, seed)

    def forward(self, x):
        return self.head(self.norm(self.conv(x.view(-1, 1, 2, 2))).tanh().flatten(1))


def statistics(model):
    return {name: buffer.clone() for name, buffer in model.named_buffers() if "running" in name}
