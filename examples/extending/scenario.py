"""A scenario of one's own: the digits, turned a little further in every task.

    anchorhold-lab run examples/extending/scenario.py:turned-digits -m SI -m SOS -m fine-tune --seeds 3
    anchorhold-lab search examples/extending/scenario.py:turned-digits -m SI --no-reinit

The content of this file is part of each run's id: change anything, and the runs are others.
"""

import torch
from torch import Tensor

from anchorhold_lab.data import Dataset
from anchorhold_lab.experiments import register_scenario
from anchorhold_lab.scenarios import Samples, Scenario, scenario_of
from anchorhold_lab.training import Settings


@register_scenario(
    "turned-digits",
    tasks=4,
    datasets=("digits",),
    hidden=(100,),
    settings=Settings(epochs=4, batch_size=64, learning_rate=0.003),
    strengths={"SI": 10.0, "SOS": 5.0},  # which the search has found
)
def turned_digits(datasets: dict[str, Dataset], tasks: int, seed: int) -> Scenario:
    """Return tasks whose images are turned by an angle each; the first ones stand upright."""
    digits = datasets["digits"]
    steps = torch.rand(tasks - 1, generator=torch.Generator().manual_seed(seed))
    angles = [0.0, *(0.5 + steps).cumsum(0).tolist()]  # in radians: 30 to 85 degrees more in each task
    turned = [
        tuple(Samples(turn(part.pixels / 255, angle), part.labels) for part in (digits.train, digits.test))
        for angle in angles
    ]
    return scenario_of(turned, name="turned digits", own_heads=False)


def turn(images: Tensor, angle: float) -> Tensor:
    """Return images turned around their middle, each as one row of pixels."""
    cos, sin = torch.tensor(angle).cos(), torch.tensor(angle).sin()
    matrix = torch.tensor([[cos, -sin, 0.0], [sin, cos, 0.0]]).expand(len(images), 2, 3)
    places = torch.nn.functional.affine_grid(matrix, list(images.shape), align_corners=False)
    return torch.nn.functional.grid_sample(images, places, align_corners=False).flatten(1)
