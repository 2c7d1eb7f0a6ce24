"""Both controllers on plants whose answer is known: a distance D that follows a pull c, and a KL of D².

All of them come to KL = 1, the target, at a strength of about 1. Looks are noisy, as those at a hundred samples are.
"""

import itertools
import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence

from anchorhold.retention.controller import Control
from studies.tolerance_dual.controllers import DualAscent

EVERY, NOISE = 8, 0.3
STARTS = (1 / 30, 0.3, 1.0, 3.0, 30.0)
STEPS = (200, 600, 2500)
SEEDS = range(3)
MOST = 5.0
"""The largest error of a run that counts, in log."""
PAIRS = [(a, b) for a, b in itertools.product((0.02, 0.05, 0.1, 0.2, 0.4), (0.05, 0.1, 0.2, 0.4)) if b <= 2 * a]
Plant = Callable[[], Iterator[None]]


class Lagging:
    """D goes a share of the way to the distance at which c would keep it, KL ∝ c^-power at rest."""

    def __init__(self, power: float, steps: float) -> None:
        self.power, self.steps, self.distance = power, steps, 0.0

    def step(self, c: float) -> float:
        """Return the KL after a step."""
        self.distance += (c ** (-self.power / 2) - self.distance) / self.steps
        return self.distance**2


class Travelling:
    """D is driven by the new task and pulled by c: D' = (g − cD)/T, where g falls as the task is learned."""

    def __init__(self, steps: float, learned: float = math.inf) -> None:
        self.steps, self.learned, self.distance, self.taken = steps, learned, 0.0, 0

    def step(self, c: float) -> float:
        """Return the KL after a step."""
        self.taken += 1
        drive = 1.0 if math.isinf(self.learned) else 0.2 + 1 / (1 + self.taken / self.learned)
        self.distance += (drive - min(c, 0.9 * self.steps) * self.distance) / self.steps
        return self.distance**2


PLANTS: tuple[Callable[[], Lagging | Travelling], ...] = (
    lambda: Lagging(2, 10),
    lambda: Lagging(2, 50),
    lambda: Lagging(2, 200),
    lambda: Lagging(1, 50),
    lambda: Travelling(50),
    lambda: Travelling(300),
    lambda: Travelling(100, learned=100),
    lambda: Travelling(300, learned=300),
)


def simulated(
    plant: Lagging | Travelling, control: Control, steps: int, start: float, seed: int
) -> tuple[float, float]:
    """Return by how much the last KL is off, in log, and the largest on the way."""
    draws, peak, kl = random.Random(seed), 0.0, 0.0  # noqa: S311 (noise)
    control.every, c = EVERY, start
    control.begin(start)
    for step in range(1, steps + 1):
        kl = plant.step(c)
        peak = max(peak, kl)
        if step % EVERY == 0:
            control.latest = {"old": kl * math.exp(draws.gauss(0, NOISE) - NOISE**2 / 2)}
            control.looks += 1
            c = control.follow(1.0)
    return min(abs(math.log(kl)), MOST), peak


def tried(made: Callable[[], Control], steps: int) -> tuple[float, float, float]:
    """Return the mean and the worst error over all plants, starts and seeds, and the median peak."""
    every = list(itertools.product(PLANTS, STARTS, SEEDS))
    found = [simulated(plant(), made(), steps, start, seed) for plant, start, seed in every]
    errors, peaks = zip(*found, strict=True)
    return statistics.mean(errors), max(errors), statistics.median(peaks)


def table(pairs: Sequence[tuple[float, float]] = tuple(PAIRS)) -> list[str]:
    """Return how far from the target each controller ends."""
    lines = ["| controller | multiple | clip | " + " | ".join(f"{steps} steps" for steps in STEPS) + " |"]
    lines.append("|---|---|---" + "|---" * len(STEPS) + "|")
    rows: list[tuple[str, Callable[[], Control]]] = [("slowing | – | –", Control)]
    rows += [(f"dual | {a:g} | {b:g}", lambda a=a, b=b: DualAscent(multiple=a, clip=b)) for a, b in pairs]  # type: ignore[misc]
    for name, made in rows:
        cells = [tried(made, steps) for steps in STEPS]
        lines.append(f"| {name} | " + " | ".join(f"{a:.2f} ({b:.2f}, {c:.1f})" for a, b, c in cells) + " |")
    return lines
