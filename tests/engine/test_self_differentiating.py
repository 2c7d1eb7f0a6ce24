"""Models that differentiate themselves, as forces from an energy: weights are used in that backward pass, too."""

import pytest
import torch
from torch import nn

from tests.engine.agreement import MEASURES, assert_agrees


class Forces(nn.Module):
    """Outputs are the first three derivatives of an energy by the inputs."""

    def __init__(self, energy, **modules):
        super().__init__()
        self.energy, self.parts = energy, nn.ModuleDict(modules)
        self.scale = nn.Parameter(torch.randn(4))

    def forward(self, x):
        at = x.detach().requires_grad_()
        (forces,) = torch.autograd.grad(self.energy(self, at).sum(), at, create_graph=True)
        return forces.flatten(1)[:, :3]


class ByTransform(Forces):
    """The same by torch.func."""

    def forward(self, x):
        return torch.func.vmap(torch.func.grad(lambda row: self.energy(self, row.unsqueeze(0)).sum()))(x)[:, :3]


def _through(*names):
    def energy(model, x):
        for name in names:
            x = model.parts[name](x).tanh()
        return x

    return energy


MODELS = {
    "linear": lambda: Forces(_through("a", "b"), a=nn.Linear(4, 5), b=nn.Linear(5, 1)),
    "linear, by a transform": lambda: ByTransform(_through("a", "b"), a=nn.Linear(4, 5), b=nn.Linear(5, 1)),
    "layer norm": lambda: Forces(_through("a", "n", "b"), a=nn.Linear(4, 5), n=nn.LayerNorm(5), b=nn.Linear(5, 1)),
    "RMS norm": lambda: Forces(_through("a", "n", "b"), a=nn.Linear(4, 5), n=nn.RMSNorm(5), b=nn.Linear(5, 1)),
    "scale": lambda: Forces(lambda model, x: (x * model.scale).tanh()),
    "convolution": lambda: Forces(lambda model, x: model.parts["c"](x.unsqueeze(1)).tanh(), c=nn.Conv1d(1, 2, 2)),
}


@pytest.mark.daily
@pytest.mark.parametrize("samples", [1, 5])
@pytest.mark.parametrize("measure", ["Fisher", "AF", "MAS"])
@pytest.mark.parametrize("model", MODELS)
def test_forces(model, measure, samples):
    model, x = MODELS[model]().double(), torch.randn(samples, 4).double()
    used = {name for name, _ in model.named_parameters() if name != "scale" or not len(model.parts)}
    assert_agrees(model, x, None, MEASURES[measure], fallback=used)
