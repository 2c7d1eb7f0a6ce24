"""Small observed runs in float64, a witness that copies all it sees, and gradients one sample at a time."""

import copy

import torch
import torch.nn.functional as F

from anchorhold_lab.analysis.probes.base import Probe
from anchorhold_lab.analysis.probes.registry import make_probe
from anchorhold_lab.training.protocol import Settings
from tests.lab.training import helpers

SETTINGS = Settings(epochs=2, batch_size=8, learning_rate=0.02, reinitialise=True, samples=10)
"""Of 28 samples: 6 steps a task."""


class Witness(Probe):
    """Keeps copies: the model around every step, and all that the measures found."""

    def __init__(self):
        super().__init__()
        self.models = {}
        self.found = []

    def wanted_steps(self, task, steps):
        return range(steps)

    def before_step(self, learner, task, step):
        self.models[task, step] = copy.deepcopy(learner.model)

    def after_step(self, learner, task, step):
        self.models[task, step + 1] = copy.deepcopy(learner.model)

    def task_ended(self, learner, task, found):
        self.found.append(copy.deepcopy(found))


def observed_learner(*probes, settings=SETTINGS, seed=3, own_heads=True, dropout=True, activation=None, **options):
    """A learner in float64 with a witness and probes as a spec names them; its activation is ReLU unless given."""
    scenario = helpers.make_scenario(3, own_heads, torch.float64)
    model = helpers.make_model(scenario, dropout).double()
    if activation is not None:
        model.body[1] = activation
    observers = dict(make_probe(text, seed=seed) for text in probes) | {"witness": Witness()}
    watch = options.pop("watch", ("SIU", "SIB", "SOS", "AF", "MAS"))
    return helpers.make_learner(
        settings=settings, seed=seed, scenario=scenario, model=model, watch=watch, observers=observers, **options
    )


def gradient_of_each(model, learner, task, chosen=None, names=None):
    """Return the gradients of single samples, over the protected parameters or those named: ``[samples, weights]``."""
    model.eval()
    parameters = [model.get_parameter(name) for name in names or learner.guard.parameters]
    samples, head = learner.samples(task), learner.scenario.tasks[task].head
    found = []
    for i in range(len(samples)) if chosen is None else chosen.tolist():
        loss = F.cross_entropy(model(samples.x[i : i + 1], head), samples.y[i : i + 1])
        found.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]))
    return torch.stack(found)


def weights_of(model, names):
    return torch.cat([model.get_parameter(name).detach().flatten() for name in names])


def loss_over_all(model, learner, task):
    samples, head = learner.samples(task), learner.scenario.tasks[task].head
    with torch.no_grad():
        return float(F.cross_entropy(model.eval()(samples.x, head), samples.y))
