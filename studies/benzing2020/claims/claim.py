"""What a claim is: a statistic of the runs, and a bound that it has to keep."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from anchorhold_lab.analysis import Estimate
from anchorhold_lab.report import Verdict
from studies.benzing2020.authors_data import Theirs
from studies.benzing2020.claims.differences import OnTask
from studies.benzing2020.findings import NotMeasuredError, Results


@dataclass(frozen=True)
class AtLeast:
    """The statistic must reach a value; with ``errors``, also when that many standard errors are taken off it."""

    value: float
    errors: float = 0.0

    def holds(self, found: Estimate) -> bool:
        """Whether it does."""
        return found.mean >= self.value if not self.errors else found.mean - self.errors * found.error > self.value

    def __str__(self) -> str:
        return f"≥ {self.value:g}" if not self.errors else f"> {self.value:g} by {self.errors:g} standard errors"


@dataclass(frozen=True)
class AtMost:
    """The statistic must not exceed a value; with ``errors``, not even by more than that many standard errors."""

    value: float
    errors: float = 0.0

    def holds(self, found: Estimate) -> bool:
        """Whether it does."""
        return found.mean <= self.value if not self.errors else found.mean - self.errors * found.error <= self.value

    def __str__(self) -> str:
        return f"≤ {self.value:g}" if not self.errors else f"≤ {self.value:g} within {self.errors:g} standard errors"


@dataclass(frozen=True)
class Between:
    """The statistic must lie in a range."""

    low: float
    high: float
    errors: ClassVar[float] = 0.0

    def holds(self, found: Estimate) -> bool:
        """Whether it does."""
        return self.low <= found.mean <= self.high

    def __str__(self) -> str:
        return f"from {self.low:g} to {self.high:g}"


Bound = AtLeast | AtMost | Between


@dataclass(frozen=True)
class Claim:
    """Something that the paper says, or that we say ourselves, as a number that can be measured."""

    name: str
    items: tuple[str, ...]
    """The items whose runs it is checked with, each by itself."""
    says: str
    """The claim, in a sentence."""
    measured_as: str
    """What the statistic is."""
    statistic: Callable[[Results], Estimate]
    bound: Bound
    """Written down before the runs that test it, from the paper's own words."""
    added_later: bool = False
    """Whether it was written down when its runs had been seen, which is then said with it."""
    own: bool = False
    """Whether it is ours and not the paper's, which is then said with it; it is counted apart."""
    remark: str = ""
    """What else a reader has to know of the threshold."""
    theirs: Theirs | None = None
    """The statistic in the authors' own data, where they have it."""


def check(claim: Claim, results: Results) -> Verdict:
    """Return whether a claim holds, here and in the authors' own data."""
    verdict = _check_here(claim, results)
    if claim.theirs is None:
        return verdict
    # One number without an error: it has to keep the bound, and cannot be asked to do so by several errors.
    there = claim.bound.holds(Estimate(claim.theirs.value, 0.0, 1))
    remark = f", {claim.theirs.remark}" * bool(claim.theirs.remark)
    said = f"{claim.theirs}{remark}: {'holds' if there else 'does not hold'} ({claim.theirs.source})"
    disagrees = "" if there else "The paper's text disagrees with its authors' own data."
    return replace(verdict, authors=said, authors_hold=there, note=_noted(verdict.note, disagrees))


def _check_here(claim: Claim, results: Results) -> Verdict:
    limit = claim.bound
    says = claim.says + " (Added when its runs had been seen.)" * claim.added_later
    says += " (Of our own, not the paper's.)" * claim.own
    verdict = partial(Verdict, claim.name, says, threshold=str(limit), own=claim.own)
    try:
        found = claim.statistic(results)
    except NotMeasuredError as error:
        command = f"python -m studies.benzing2020 {claim.items[0]} --preset {results.preset.name}"
        note = _noted(f"Not checked: {error}. What makes its runs: {command}", claim.remark)
        return verdict(holds=None, statistic="", note=note)
    scatter = "" if math.isnan(found.error) else f" ± {found.error:.2g}"
    runs = f"{found.count} run" + "s" * (found.count != 1)
    where = f"task {found.task}, " if isinstance(found, OnTask) else ""
    statistic = f"{claim.measured_as}: {found.mean:.3g}{scatter} ({where}{runs})"
    if math.isnan(found.mean):
        return verdict(holds=None, statistic=statistic, note=_noted("Not checked: it is not a number.", claim.remark))
    if limit.errors and math.isnan(found.error):
        note = _noted("Not checked: a single run has no standard error.", claim.remark)
        return verdict(holds=None, statistic=statistic, note=note)
    return verdict(holds=limit.holds(found), statistic=statistic, note=claim.remark)


def _noted(*parts: str) -> str:
    return " ".join(filter(None, parts))
