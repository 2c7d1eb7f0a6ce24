"""A source file that registers one thing of each kind, as small as can be."""

STUDY = '''"""Point clouds that move."""

import dataclasses

import torch
from torch import nn

import anchorhold
from anchorhold_lab.experiments import register_scenario
from anchorhold_lab.networks import MultiHead, register_network
from anchorhold_lab.scenarios import scenario_of
from anchorhold_lab.training import Settings

SPREAD = 1.0


@register_network("narrow")
def narrow(scenario, hidden):
    body = nn.Sequential(nn.Linear(scenario.input_shape[0], hidden[0]), nn.Tanh())
    return MultiHead(body, hidden[0], scenario.classes, scenario.heads)


@anchorhold.register_measure("walk")
@dataclasses.dataclass(frozen=True)
class Walk(anchorhold.measures.WeightMeasure):
    """How far a weight is from zero."""

    power: float = 1.0

    def importance(self, parameter):
        return parameter.detach().abs() ** self.power


@register_scenario(
    "blobs",
    tasks=3,
    hidden=(16,),
    settings=Settings(epochs=2, batch_size=50, learning_rate=0.01),
    strengths={"SI": 2.0, "walk": 0.1},
)
def clouds(tasks, seed):
    generator = torch.Generator().manual_seed(seed)

    def points(shift, count):
        x = SPREAD * torch.randn(count, 2, generator=generator) + shift
        return x, (x[:, 0] > shift).long()

    return scenario_of([(points(shift, 200), points(shift, 100)) for shift in range(tasks)])
'''

OTHER = STUDY.replace("SPREAD = 1.0", "SPREAD = 2.0")


def write_study(folder, text=STUDY, name="study.py"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path
