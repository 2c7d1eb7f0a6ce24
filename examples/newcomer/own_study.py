"""A study of your own data on the command line: which method, how strong, and a picture of what was kept.

    anchorhold-lab run examples/newcomer/own_study.py:flowers -m fine-tune -m SOS -m EWC --seeds 2
    anchorhold-lab run examples/newcomer/own_study.py:flowers -m EWC --form rotated -c 20 --seeds 2
    anchorhold-lab runs compare --scenario flowers
    anchorhold-lab runs plot --out flowers.png --scenario flowers

Put what reads your own files in the place of `season`; a task is training samples and test samples, each a tensor of
inputs and one of labels. Here are three seasons of measured flowers, whose kinds stay the same while all that is
measured drifts.
"""

import torch

from anchorhold_lab.experiments import register_scenario
from anchorhold_lab.scenarios import Samples, Scenario, scenario_of
from anchorhold_lab.training import Settings

KINDS, MEASURED = 4, 12


def season(number: int, count: int, seed: int) -> Samples:
    """Return flowers of one season: what is measured of each, and its kind."""
    generator = torch.Generator().manual_seed(1000 * number + seed)
    typical = torch.randn(KINDS, MEASURED, generator=torch.Generator().manual_seed(number))
    kinds = torch.randint(0, KINDS, (count,), generator=generator)
    return Samples(typical[kinds] + 0.5 * torch.randn(count, MEASURED, generator=generator), kinds)


@register_scenario(
    "flowers",
    tasks=3,
    hidden=(64,),
    settings=Settings(epochs=5, batch_size=32, learning_rate=0.005),
    strengths={"SOS": 10.0, "EWC": 50.0},
)
def flowers(tasks: int, seed: int) -> Scenario:
    """Return one task for each season; all share a head, as the kinds are the same."""
    seasons = [(season(number, 600, 2 * seed), season(number, 300, 2 * seed + 1)) for number in range(tasks)]
    return scenario_of(seasons, name="flowers", own_heads=False)
