"""What a ladder of exchange rates came to, and what one of them costs beside the best."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.language.frontier import lost_at


@dataclass(frozen=True)
class Tried:
    """One training with a guard.

    Args:
        kappa: the exchange rate.
        new: the new text's loss after, in nats a token.
        gained: by how much it fell.
        lost: the nats that are lost per old token.
        predicted: what the importance says of the KL per old token.
        kl: the KL per old token as it was measured.
    """

    kappa: float
    new: float
    gained: float
    lost: float
    predicted: float
    kl: float

    @property
    def cost(self) -> float:
        """Return the objective, to which a nat of the old text is worth a nat of the new."""
        return self.new + self.lost

    @property
    def too_little(self) -> float:
        """Return how many times the KL that was predicted was measured."""
        return self.kl / self.predicted


@dataclass(frozen=True)
class Ratios:
    """What an exchange rate of 1 costs beside the best strength of one ladder.

    Args:
        objective: the objective's ratio.
        more: how many nats more the objective is.
        excess: the ratio of what is paid for both texts: the objective less the least loss of the new text in any run.
            ``None`` where nothing is paid at the best, because the old text gains.
        same_gain: the nats lost, by those lost at the same gain between the two nearest other strengths.
        same_loss: the gain that those have at the same nats lost, by the gain.
        best: the best exchange rate.
    """

    objective: float
    more: float
    excess: float | None
    same_gain: float | None
    same_loss: float | None
    best: float


def ratios(tried: Sequence[Tried], least_new: float) -> Ratios | None:
    """Return the ratios of a ladder; ``None`` if an exchange rate of 1 was not tried, or nothing else was.

    Args:
        tried: the ladder.
        least_new: the least loss of the new text in any run of the same network.
    """
    one = next((each for each in tried if each.kappa == 1.0), None)
    others = [each for each in tried if each.kappa != 1.0]
    if one is None or not others:
        return None
    best = min(tried, key=lambda each: each.cost)
    objective, excess = _beside_best(one.cost, tried, least_new)
    there = lost_at([(0.0, 0.0), *((each.gained, each.lost) for each in others)], one.gained)
    gain = lost_at([(0.0, 0.0), *((each.lost, each.gained) for each in others)], one.lost)
    return Ratios(
        objective,
        one.cost - best.cost,
        excess,
        one.lost / there if there is not None and there > 0 else None,
        gain / one.gained if gain is not None and one.gained > 0 else None,
        best.kappa,
    )


@dataclass(frozen=True)
class Setting:
    """A row of the page: the ladders of all seeds, and what each network's runs reach at least on the new text."""

    name: str
    ladders: tuple[tuple[Tried, ...], ...]
    least_new: tuple[float, ...]

    @property
    def compared(self) -> list[tuple[tuple[Tried, ...], float]]:
        """Return the ladders that have an exchange rate of 1 and another, each with the least new loss."""
        both = zip(self.ladders, self.least_new, strict=True)
        return [(ladder, least) for ladder, least in both if ratios(ladder, least) is not None]

    @property
    def ratios(self) -> list[Ratios]:
        """Return the ratios of each seed that has them."""
        found = [ratios(ladder, least) for ladder, least in self.compared]
        return [each for each in found if each is not None]

    @property
    def objective(self) -> float | None:
        """Return the objective's ratio at an exchange rate of 1, the mean over seeds, if any seed has it."""
        found = self.at(1.0)
        return found[0] if found else None

    @property
    def excess(self) -> float | None:
        """Return the ratio of what is paid at 1, the mean over seeds, if every seed that is compared has it."""
        found = self.at(1.0)
        return found[1] if found else None

    @property
    def best(self) -> float:
        """Return the best exchange rate, the geometric mean over seeds."""
        return statistics.geometric_mean([each.best for each in self.ratios])

    @property
    def too_little(self) -> float:
        """Return how many times the predicted KL was measured at an exchange rate of 1, as a geometric mean."""
        ones = [each for ladder, _ in self.compared for each in ladder if each.kappa == 1.0]
        return statistics.geometric_mean([each.too_little for each in ones])

    def at(self, kappa: float) -> tuple[float, float | None] | None:
        """Return the ratios of objective and cost at an exchange rate, over the seeds that tried it; else ``None``."""
        found = [
            _beside_best(each.cost, ladder, least)
            for ladder, least in self.compared
            for each in ladder
            if each.kappa == kappa
        ]
        return _means(found) if found else None

    def corrected(self, power: float) -> tuple[float, float | None]:
        """Return the ratios where each seed's exchange rate is (measured KL / predicted KL at 1) to a power.

        Between two that were tried, the objective is taken on a line over the exchange rate's logarithm.
        """
        found = []
        for ladder, least in self.compared:
            one = next(each for each in ladder if each.kappa == 1.0)
            found.append(_beside_best(_between(ladder, one.too_little**power), ladder, least))
        return _means(found)


def _beside_best(cost: float, ladder: Sequence[Tried], least_new: float) -> tuple[float, float | None]:
    best = min(each.cost for each in ladder)
    least = min(least_new, *(each.new for each in ladder))
    return cost / best, (cost - least) / (best - least) if best > least else None


def _means(found: Sequence[tuple[float, float | None]]) -> tuple[float, float | None]:
    excesses = [excess for _, excess in found if excess is not None]
    whole = len(excesses) == len(found)
    return statistics.mean(objective for objective, _ in found), statistics.mean(excesses) if whole else None


def _between(ladder: Sequence[Tried], kappa: float) -> float:
    """Return the objective at an exchange rate, or at the end of the ladder that is nearest to it."""
    line = sorted((math.log(each.kappa), each.cost) for each in ladder)
    place = min(max(math.log(kappa), line[0][0]), line[-1][0])
    for (low, at_low), (high, at_high) in pairwise(line):
        if place <= high:
            return at_low + (at_high - at_low) * (place - low) / (high - low)
    raise AssertionError(f"{place} is within {line[0][0]} and {line[-1][0]}")
