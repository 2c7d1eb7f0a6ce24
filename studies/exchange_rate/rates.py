"""What every exchange rate of the ladder would have come to, and why the best one is often larger than 1."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from studies.exchange_rate.outcomes import Setting, Tried
from studies.exchange_rate.settings import FORMS, GRID

GOALS = (1.10, 1.20)
"""Of the median setting and of the worst."""
POWERS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Of measured by predicted KL, by which an exchange rate of 1 is corrected."""
WEIGHTS = (0.1, 0.3, 1.0, 3.0, 10.0)
"""What a nat of the old text may be worth to a judge, in nats of the new one."""
Lost = Literal["lost", "kl"]


def at_each(small: Sequence[Setting], own: Sequence[Setting]) -> Iterator[str]:
    """Yield a table of each exchange rate, and which one would have been the best everywhere."""
    yield (
        f"Median / worst of the settings, where each was tried. **Bold**: both goals are met, {GOALS[0]:.2f} and "
        f"{GOALS[1]:.2f}."
    )
    yield ""
    yield f"| settings | of | rows | {' | '.join(f'{kappa:g}' for kappa in GRID)} |"
    yield f"|---|---|---|{'---|' * len(GRID)}"
    groups: list[tuple[str, Sequence[Setting]]] = [("GPTs", small)]
    groups += [(f"GPTs, {which}", [each for each in small if f"| {which} |" in each.name]) for which in _WAYS]
    groups += [(f"GPTs, {form}", [each for each in small if each.name.endswith(f"| {form}")]) for form in FORMS]
    groups += [("SmolLM2, own text lost", own)]
    for name, settings in groups:
        compared = [each for each in settings if each.compared]
        for place, what in enumerate(("objective", "cost")):
            if compared and (place == 0 or settings is small):
                cells = [_median_and_worst([_at(each, kappa, place) for each in compared]) for kappa in GRID]
                yield f"| {name} | {what} | {len(compared)} | {' | '.join(cells)} |"
    yield ""
    yield _best_everywhere(small)


_WAYS = ("LoRA", "all weights")


def _at(setting: Setting, kappa: float, place: int) -> float | None:
    found = setting.at(kappa)
    return found[place] if found else None


def _median_and_worst(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return ""
    said = f"{statistics.median(known):.3f} / {max(known):.3f}"
    return f"**{said}**" if meets(known) else said


def meets(values: Sequence[float]) -> bool:
    """Whether the settings' ratios meet both goals."""
    return bool(values) and statistics.median(values) <= GOALS[0] and max(values) <= GOALS[1]


def objectives_at(settings: Sequence[Setting], kappa: float) -> list[float]:
    """Return the settings' ratios of the objective at an exchange rate; nothing if one of them has not tried it."""
    compared = [each for each in settings if each.compared]
    known = [value for each in compared if (value := _at(each, kappa, 0)) is not None]
    return known if len(known) == len(compared) else []


def _best_everywhere(small: Sequence[Setting]) -> str:
    at = {kappa: found for kappa in GRID if (found := objectives_at(small, kappa))}
    median = min(at, key=lambda kappa: statistics.median(at[kappa]))
    worst = min(at, key=lambda kappa: max(at[kappa]))
    met = ", ".join(f"{kappa:g}" for kappa in at if meets(at[kappa])) or "none"
    others = left_out(small, GRID, _objective_at)
    return (
        f"Of one number for all GPTs, κ = {median:g} has the least median, and κ = {worst:g} the least worst. Both "
        f"goals are met at: {met}. {_told(others, 'κ')}"
    )


def _objective_at(setting: Setting, kappa: float) -> float | None:
    return _at(setting, kappa, 0)


def left_out(
    small: Sequence[Setting], choices: Sequence[float], ratio: Callable[[Setting, float], float | None]
) -> tuple[dict[str, float], list[float]] | None:
    """Return for each network what is least bad for the others, and what that comes to in each of its settings."""
    networks = sorted({_network(setting) for setting in small})
    if len(networks) < 2:
        return None
    chosen, found = {}, []
    for network in networks:
        others = [setting for setting in small if _network(setting) != network]
        worst = {each: max(ratio(setting, each) or math.inf for setting in others) for each in choices}
        chosen[network] = min(choices, key=worst.__getitem__)
        mine = [ratio(setting, chosen[network]) for setting in small if _network(setting) == network]
        found += [value for value in mine if value is not None]
    return chosen, found


def _told(found: tuple[dict[str, float], list[float]] | None, name: str) -> str:
    if found is None:
        return ""
    chosen, ratios = found
    said = "; ".join(f"{value:g} for {network}" for network, value in chosen.items())
    return (
        f"Chosen as the least worst for the other networks, {name} is {said}. It comes to "
        f"{statistics.median(ratios):.3f} in the median and {max(ratios):.3f} in the worst."
    )


def _network(setting: Setting) -> str:
    return setting.name.split(" | ")[0]


def why(small: Sequence[Setting]) -> Iterator[str]:
    """Yield how far the second order is from what was measured, and what a correction by it would come to."""
    compared = [setting for setting in small if setting.compared]
    excesses = [setting.too_little for setting in compared]
    if excesses:
        yield (
            f"The importance predicts a {min(excesses):.0f}th to a {max(excesses):.0f}th of the KL that was measured "
            "at κ = 1, so that κ counts for less than it says. What of that is the form, the few samples or the second "
            "order was not taken apart."
        )
        yield ""
    yield "Measured by predicted KL at κ = 1 → the best κ, geometric means over the seeds:"
    yield ""
    yield f"| setting | trained | {' | '.join(FORMS)} |"
    yield f"|---|---|{'---|' * len(FORMS)}"
    by_name = {setting.name: setting for setting in compared}
    for start in dict.fromkeys(name.rpartition(" | ")[0] for name in by_name):
        row = [by_name.get(f"{start} | {form}") for form in FORMS]
        cells = [f"{each.too_little:.1f} → {_short(each.best)}" if each else "" for each in row]
        yield f"| {start} | {' | '.join(cells)} |"
    yield ""
    if len(compared) > 1:
        logs = [[math.log(value) for value in pair] for pair in ((each.too_little, each.best) for each in compared)]
        excess, best = zip(*logs, strict=True)
        if len(set(best)) > 1 and len(set(excess)) > 1:
            yield f"The correlation of the two logarithms is {statistics.correlation(excess, best):.2f}."
            yield ""
    yield (
        "So κ' = (measured / predicted KL at κ = 1) to a power, as after a first run. Between two exchange rates that "
        "were tried, the objective is on a line over log κ."
    )
    yield ""
    yield "| power | κ' | objective: median | worst | cost: median | worst |"
    yield "|---|---|---|---|---|---|"
    for power in POWERS:
        rates = sorted(setting.too_little**power for setting in compared)
        found = [setting.corrected(power) for setting in compared]
        cells = [*_pair([objective for objective, _ in found]), *_pair([excess for _, excess in found])]
        yield f"| {power:g} | {rates[0]:.1f} to {rates[-1]:.1f} | {' | '.join(cells)} |"
    yield ""
    corrected = left_out(compared, POWERS, lambda setting, power: setting.corrected(power)[0])
    yield _told(corrected, "the power")
    if corrected:
        number = left_out(compared, GRID, _objective_at)
        better = number and all(of(corrected[1]) < of(number[1]) for of in (statistics.median, max))
        yield ""
        yield (
            f"That is {'better' if better else 'not better in both'} than one number that is chosen in the same way: "
            f"the rows {'speak for' if better else 'do not decide for'} a correction. The first run is the whole "
            "training at κ = 1; no short one was tried."
        )


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _pair(values: Sequence[float | None]) -> tuple[str, str]:
    known = [value for value in values if value is not None]
    return (f"{statistics.median(known):.3f}", f"{max(known):.3f}") if len(known) == len(values) else ("–", "–")


def judges(small: Sequence[Setting]) -> Iterator[str]:
    """Yield what other judges say: those to whom a nat of the old text is worth more or less than one of the new."""
    yield (
        "That a nat of the old text is worth one of the new is a judge's choice, and the two texts are different ones. "
        "To a judge of new loss + w × nats lost per old token, κ = w is what the unit promises. Whole ladders only:"
    )
    yield ""
    yield "| w | best κ, median of the settings | κ = w: median | worst | next κ of the grid: median | worst |"
    yield "|---|---|---|---|---|---|"
    for weight in WEIGHTS:
        best = statistics.median(judged.best for judged in _judged(small, weight, "lost"))
        cells = [f"{weight:g}", _short(best)]
        for kappa in GRID[GRID.index(weight) :][:2]:
            cells += _pair([each.at[kappa] for each in _judged(small, weight, "lost")])
        yield f"| {' | '.join(cells)} |"
    yield ""
    at_one = [each.at[1.0] for each in _judged(small, 1.0, "kl")]
    shares = [
        statistics.mean(each.lost / each.kl for ladder, _ in setting.compared for each in ladder if each.kappa == 1.0)
        for setting in small
        if setting.compared
    ]
    median, worst = _pair(at_one)
    yield (
        f"What is lost here is the rise of the old text's loss, {min(shares):.2f} to {max(shares):.2f} of KL(old‖new) "
        f"at κ = 1. By the KL in its place, κ = 1 comes to {median} in the median and {worst} in the worst."
    )


class Judged:
    """One setting, to a judge of his own: the best exchange rate, and the ratio at each."""

    def __init__(self, ladders: Sequence[Sequence[Tried]], weight: float, lost: Lost) -> None:
        found = [{each.kappa: each.new + weight * getattr(each, lost) for each in ladder} for ladder in ladders]
        self.best = statistics.geometric_mean([min(each, key=each.__getitem__) for each in found])
        self.at = {kappa: statistics.mean(each[kappa] / min(each.values()) for each in found) for kappa in GRID}


def _judged(small: Sequence[Setting], weight: float, lost: Lost) -> list[Judged]:
    whole = [
        [ladder for ladder, _ in setting.compared if {each.kappa for each in ladder} >= set(GRID)] for setting in small
    ]
    return [Judged(ladders, weight, lost) for ladders in whole if ladders]
