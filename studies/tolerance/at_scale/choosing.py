"""Damping and start of a diagonal's tolerance: which of some pairs learns most, over all settings and permuted digits.

Called by ``__main__`` for what is tried on digits, and by ``report`` for what all tries come to.
"""

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from studies.tolerance import digits
from studies.tolerance.at_scale.trials import CANDIDATES, Trial

DIGITS = "digits"
SEEDS = range(10, 15)
"""Others than those that results/tolerance.md is of."""
WAYS = {"Adam": digits.Way("diagonal", "Adam"), "SGD": digits.Way("diagonal", "SGD, momentum", implicit=True)}
POINTS_A_BIT = 50
"""Half a point counts for as much as a hundredth of a bit."""
MOST = 5.0
"""Points that a pair may fall short by in one cell, at most: on digits accuracies are tens of points apart."""
Pair = tuple[float, float]
Row = dict[str, Any]


def digit_trials() -> Iterator[Trial]:
    """Yield what is tried on permuted digits."""
    for optimiser, nats, pair, seed in itertools.product(WAYS, digits.TOLERANCES, CANDIDATES, SEEDS):
        yield Trial(DIGITS, seed, "diagonal", optimiser, "tolerance", nats, *pair)


def run_on_digits(trial: Trial) -> dict[str, Any]:
    """Return what came of a trial on permuted digits, as those of other settings are written."""
    first = digits.first_task(trial.seed)
    found = digits.followed(
        trial.seed, WAYS[trial.optimiser], first, trial.value, damping=trial.damping, start=trial.start
    )
    ends = {name: {"kl": found[name]["fresh"], "new": 100 * found[name]["accuracy"]} for name in ("end", "back")}
    return {"seconds": found["seconds"], **ends}


def shortfalls(rows: Sequence[Row]) -> dict[Pair, dict[str, float]]:
    """Return by how many points each pair learns less than the best one, over the cells of each setting.

    A cell is an optimiser and a tolerance, its seeds those that all pairs have been tried on.
    """
    learned: dict[tuple[str, str, float], dict[Pair, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        trial = Trial(**row["trial"])
        if trial.damping is not None and trial.start is not None and "back" in row:
            points = -POINTS_A_BIT * row["back"]["new"] if trial.setting == "english-python" else row["back"]["new"]
            cell = trial.setting, trial.optimiser, trial.value
            learned[cell][trial.damping, trial.start][trial.seed] = points
    short: dict[Pair, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (setting, _, _), by_pair in learned.items():
        seeds = set.intersection(*map(set, by_pair.values()))
        if seeds and len(by_pair) == len(CANDIDATES):
            means = {pair: statistics.mean(by_seed[seed] for seed in seeds) for pair, by_seed in by_pair.items()}
            for pair, mean in means.items():
                short[pair][setting].append(min(MOST, max(means.values()) - mean))
    return {
        pair: {setting: statistics.mean(cells) for setting, cells in by_setting.items()}
        for pair, by_setting in short.items()
    }


def section(rows: Sequence[Row]) -> list[str]:
    """Return the comparison of all pairs, and which is chosen; nothing where none was tried."""
    found = shortfalls(rows)
    if not found:
        return []
    settings = list(next(iter(found.values())))
    overall = {pair: statistics.mean(by_setting.values()) for pair, by_setting in found.items()}
    damping, start = min(overall, key=lambda pair: overall[pair])
    lines = [
        "",
        "## How damping and start were chosen",
        "",
        (
            "A diagonal's tolerance, six pairs of damping and start, on networks that nothing else here is of. By how "
            "many points each learns less of the second task than the best of them, the mean over the optimisers and "
            f"tolerances of a setting (a bit a byte counts for {POINTS_A_BIT} points; at most {MOST:g} in each "
            "cell). The least mean over settings is taken, a rule that was written before the "
            f"runs: damping {damping:g}, start {start:g}."
        ),
        "",
        f"| damping | start | {' | '.join(settings)} | mean |",
        "|---" * (3 + len(settings)) + "|",
    ]
    for pair in sorted(found):
        cells = [f"{found[pair][setting]:.2f}" for setting in settings]
        lines.append(f"| {pair[0]:g} | {pair[1]:g} | {' | '.join(cells)} | {overall[pair]:.2f} |")
    return lines
