"""What came of runs beside the library's, by a rule that was written before, and the answer to the study's question."""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from studies.tolerance_dual.controllers import AIM, STARTS, Follower
from studies.tolerance_dual.trials import CHOOSING, DIGITS

Row = dict[str, Any]
TODAY = Follower("slowing", "mean importance")
"""What the library has."""
DUAL = replace(TODAY, controller="dual")
"""Dual ascent, from where the library's begins."""
ALLOWED = {"english-python": 0.01}
"""How much worse the new task may be and still count as equal, in bits a byte; half a point of accuracy elsewhere."""
HALF_A_POINT = 0.5
CALLED = {
    DIGITS: "permuted digits",
    "permuted-mnist": "Permuted MNIST",
    "split-cifar": "Split CIFAR",
    "english-python": "English with Python after it",
}
"""What settings are called in a sentence, in the order of the page."""


def follower_of(row: Row) -> Follower:
    """Return what a row is of."""
    return Follower(**row["trial"]["follower"])


def error(row: Row) -> float:
    """Return log(KL/target) where training ended, before going back, on all kept inputs."""
    return math.log(max(row["end"]["kept"], 1e-12) / (AIM * row["trial"]["nats"]))


def better_by(setting: str, rows: Sequence[Row], others: Sequence[Row]) -> list[float]:
    """Return by how much the new task was learned better than by others, after going back, each cell's mean."""
    sign = -1 if setting == "english-python" else 1
    theirs = {cell_of(row): row["back"]["new"] for row in others}
    cells: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for row in rows:
        if cell_of(row) in theirs:
            cells[cell_of(row)[1:]].append(sign * (row["back"]["new"] - theirs[cell_of(row)]))
    return [statistics.mean(cell) for cell in cells.values()]


def cell_of(row: Row) -> tuple[Any, ...]:
    """Return what a row shares with those that it is compared with, the seed first."""
    return tuple(row["trial"][name] for name in ("seed", "form", "optimiser", "nats"))


def told(each: Follower) -> str:
    """Name a follower."""
    return f"{each.controller}, from {each.start}"


class Verdict(NamedTuple):
    """What the rule says of a follower in a setting."""

    setting: str
    follower: Follower
    errors: list[float]
    """|log(KL/target)| of each run."""
    theirs: list[float]
    """Those of the library's runs."""
    gain: float
    """By how much the new task is learned better."""

    @classmethod
    def of(cls, setting: str, rows: Sequence[Row], follower: Follower) -> "Verdict | None":
        """Return what it says of the rows of a setting; None where there are none to compare."""
        today = [row for row in rows if follower_of(row) == TODAY and "end" in row]
        own = [row for row in rows if follower_of(row) == follower and "end" in row]
        gains = better_by(setting, own, today)
        if not gains:
            return None
        errors, theirs = ([abs(error(row)) for row in some] for some in (own, today))
        return cls(setting, follower, errors, theirs, statistics.mean(gains))

    @property
    def is_nearer(self) -> bool:
        """Whether runs end as near to their targets."""
        own, theirs = self.errors, self.theirs
        return statistics.median(own) <= statistics.median(theirs) and max(own) <= max(theirs)

    @property
    def has_learned(self) -> bool:
        """Whether the new task is learned as well."""
        return self.gain >= -ALLOWED.get(self.setting, HALF_A_POINT)

    def __str__(self) -> str:
        own, theirs = self.errors, self.theirs
        return (
            f"- {self.setting}: {told(self.follower)}: {'nearer' if self.is_nearer else 'not nearer'} "
            f"(median {statistics.median(own):.2f} against {statistics.median(theirs):.2f}, "
            f"worst {max(own):.2f} against {max(theirs):.2f}), "
            f"{'no worse' if self.has_learned else 'worse'} in the new task ({self.gain:+.3f})."
        )


def by_setting(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """Return the rows of each size and setting, without those that multiple and clip were chosen by."""
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row["trial"]["seed"] not in CHOOSING or row["trial"]["setting"] != DIGITS:
            groups[row["size"], row["trial"]["setting"]].append(row)
    return dict(sorted(groups.items(), key=lambda group: list(CALLED).index(group[0][1])))


def answer(rows: Sequence[Row]) -> str:
    """Return the answer: what the rule decides of dual ascent, and what it goes by."""
    passed, beside = 0, {}
    for (_, setting), own in by_setting(rows).items():
        if each := Verdict.of(setting, own, DUAL):
            passed += each.is_nearer and each.has_learned
            dual, slowing = (math.exp(statistics.median(errors)) for errors in (each.errors, each.theirs))
            other = Verdict.of(setting, own, replace(DUAL, start=STARTS[1]))
            also = f"; from the {STARTS[1]}, {_amount(other)}" if other else ""
            beside[CALLED[setting]] = f"{dual:.2f} against {slowing:.2f} (new task {_amount(each)}{also})"
    missing = [name for name in CALLED.values() if name not in beside]
    decided = "it may take the place of" if passed == len(CALLED) else "the library keeps"
    said = [
        f"By a rule that was written before, dual ascent does as well on {passed} of {len(beside)} settings,",
        f"so {decided} the controller that slows down.",
        "From the same start, the median factor between the KL and its target, with dual ascent against slowing",
        f"control: {', '.join(f'on {name} {figures}' for name, figures in beside.items())}.",
        f"Not reached: {', '.join(missing)}." if missing else "",
    ]
    return " ".join(filter(None, said))


def _amount(verdict: Verdict) -> str:
    """Say by how much the new task is learned better or worse."""
    digits, unit = (3, "bits a byte") if verdict.setting in ALLOWED else (2, "points")
    gain = round(verdict.gain, digits)
    if gain == 0:
        return "as good"
    return f"{abs(gain):.{digits}f} {unit} {'better' if gain > 0 else 'worse'}"


def cost(rows: Sequence[Row]) -> str:
    """Return how many runs there are, and for how long they trained."""
    minutes: dict[str, float] = defaultdict(float)
    for row in rows:
        minutes[row["machine"].partition(",")[0]] += row.get("seconds", 0.0) / 60
    taken = " and ".join(f"{minutes[name]:.0f} on {name}" for name in sorted(minutes, reverse=True))
    return f"{len(rows)} runs side by side, whose training took together so many minutes by their own clocks: {taken}."
