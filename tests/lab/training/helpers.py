"""Small runs to train."""

import torch

import anchorhold
from anchorhold_lab.networks import Dropout, MultiHead
from anchorhold_lab.scenarios import Samples, scenario_of
from anchorhold_lab.training.learner import Learner
from anchorhold_lab.training.protocol import Settings

SETTINGS = Settings(epochs=2, batch_size=8, learning_rate=0.01, reinitialise=True, samples=10)


def make_scenario(tasks=3, own_heads=True, dtype=torch.float32, train=28, shape=(6,), seed=0):
    generator = torch.Generator().manual_seed(seed)

    def samples(count):
        x = torch.randn(count, *shape, generator=generator, dtype=dtype)
        return Samples(x, torch.randint(0, 3, (count,), generator=generator))

    return scenario_of([(samples(train), samples(12)) for _ in range(tasks)], classes=3, own_heads=own_heads)


def make_model(scenario, dropout=True):
    body = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.ReLU(), *([Dropout(0.3)] if dropout else []))
    return MultiHead(body, 10, 3, scenario.heads, bias=0.1)


def make_learner(
    measure="SI",
    own_heads=True,
    dropout=True,
    settings=SETTINGS,
    seed=3,
    watch=("SIU", "SOS", "EWC"),
    strength=0.5,
    scenario=None,
    model=None,
    **options,
):
    scenario = scenario or make_scenario(own_heads=own_heads)
    measure = anchorhold.measures.measure(measure) if isinstance(measure, str) else measure
    watching = [anchorhold.measures.measure(name) for name in watch if name != measure.name]
    model = model or make_model(scenario, dropout)
    return Learner(scenario, model, measure, strength, settings, seed=seed, watch=watching, **options)


def finish(engine):
    for _ in engine.learn():
        pass
    return engine
