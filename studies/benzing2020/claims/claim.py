"""What a claim is: a statistic of the runs, and a bound that it has to keep."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

from anchorhold_lab.report import Answer, Verdict
from studies.benzing2020.authors_data import Theirs
from studies.benzing2020.claims.rule import Bound, Decision, Measurement, decide
from studies.benzing2020.findings import NotMeasuredError, Results


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
    statistic: Callable[[Results], Sequence[Measurement]]
    """One measurement; several if the claim is about several tasks or pairs, each of which has to keep the bound."""
    bound: Bound
    """Written down before the runs that test it, from the paper's own words."""
    words: str = ""
    """These words."""
    added_later: bool = False
    """Whether it was written down when its runs had been seen, which is then said with it."""
    own: bool = False
    """Whether it is ours and not the paper's, which is then said with it; it is counted apart."""
    remark: str = ""
    """What else a reader has to know of the threshold."""
    theirs: Theirs | None = None
    """The statistic in the authors' own data, where they have it."""


def check(claim: Claim, results: Results) -> Verdict:
    """Return whether a claim holds here, and whether the number of the authors' own data keeps its bound."""
    verdict = _check_here(claim, results)
    if claim.theirs is None:
        return verdict
    # One number without an error decides nothing by the rule: all that can be said is on which side it lies.
    within = claim.bound.inside(claim.theirs.value, claim.theirs.value) >= 0
    remark = f", {claim.theirs.remark}" * bool(claim.theirs.remark)
    said = f"{claim.theirs}{remark}: {'within' if within else 'outside'} ({claim.theirs.source})"
    disagrees = "" if within else "The paper's text disagrees with its authors' own data."
    return replace(verdict, authors=said, authors_within=within, note=_noted(verdict.note, disagrees))


def counted(verdicts: Sequence[Verdict], called: str = "claims") -> str:
    """Return how many of some claims hold, do not hold, are undecided and were not run."""
    count = Counter(verdict.answer for verdict in verdicts)
    held, failed, undecided, missing = (count[answer] for answer in get_args(Answer))
    return (
        f"Of {len(verdicts)} {called} {held} hold, {failed} do not, {undecided} {'is' if undecided == 1 else 'are'} "
        f"undecided and {missing} {'was' if missing == 1 else 'were'} not run."
    )


def in_authors_data(verdicts: Sequence[Verdict]) -> str:
    """Return for how many claims the authors' own number lies within the threshold."""
    known = [each for each in verdicts if each.authors]
    within = sum(bool(each.authors_within) for each in known)
    return (
        f"The authors' own data bear on {len(known)} of them: their number lies within the threshold of {within}, and "
        f"outside that of {len(known) - within}."
    )


def _check_here(claim: Claim, results: Results) -> Verdict:
    says = claim.says + " (Added when its runs had been seen.)" * claim.added_later
    says += " (Of our own, not the paper's.)" * claim.own
    verdict = partial(Verdict, claim.name, says, threshold=str(claim.bound), words=claim.words, own=claim.own)
    try:
        found = claim.statistic(results)
    except NotMeasuredError as error:
        command = f"python -m studies.benzing2020 {claim.items[0]} --preset {results.preset.name}"
        note = _noted(f"Not run: {error}. What makes its runs: {command}", claim.remark)
        return verdict(answer="not run", statistic="", note=note)
    decision = decide(found, claim.bound)
    statistic = f"{claim.measured_as}: {shown(decision, len(found))}"
    return verdict(answer=decision.answer, statistic=statistic, note=_noted(decision.why, claim.remark))


def shown(decision: Decision, of: int) -> str:
    """Return a mean with its interval, as many decimals as the interval has two digits for."""
    found = decision.decided_by
    seeds = f"{found.seeds} {found.unit}" + "s" * (found.seeds != 1)
    where = f"{found.where}, the worst of {of}; " if of > 1 else ""
    if math.isnan(found.error):
        return f"{found.mean:.3g} ({where}{seeds})"
    low, high = found.interval()
    reach = (high - low) / 2
    decimals = max(0, 1 - math.floor(math.log10(reach))) if reach else 4
    return f"{found.mean:.{decimals}f}, from {low:.{decimals}f} to {high:.{decimals}f} ({where}{seeds})"


def _noted(*parts: str) -> str:
    return " ".join(filter(None, parts))
