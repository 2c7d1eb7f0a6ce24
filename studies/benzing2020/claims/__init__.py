"""The paper's claims and our own, each with the statistic that decides it and a threshold that was set before the runs.

A claim that does not hold in our runs is reported as such, one that they leave undecided as that, and one without runs
as not run. The rule for all of them is in :mod:`~studies.benzing2020.claims.rule`.
"""

from collections.abc import Collection
from dataclasses import replace

from anchorhold_lab.report import Verdict
from studies.benzing2020.authors_data import BY_CLAIM
from studies.benzing2020.claims.claim import Claim, check, counted, in_authors_data
from studies.benzing2020.claims.left_open import predictions, undecided, window
from studies.benzing2020.claims.of_the_paper import bias, fisher, performance
from studies.benzing2020.claims.on_digits import EXPECTED_ON_DIGITS
from studies.benzing2020.claims.our_own import forms, keeping, relatives
from studies.benzing2020.claims.rule import RULE
from studies.benzing2020.findings import Results

CLAIMS: dict[str, Claim] = {
    claim.name: replace(claim, theirs=BY_CLAIM.get(claim.name))
    for claim in (*bias.CLAIMS, *fisher.CLAIMS, *performance.CLAIMS)
}
"""What the paper says."""
_OWN = (forms, keeping, window, predictions, undecided, relatives)
OWN_CLAIMS: dict[str, Claim] = {claim.name: claim for module in _OWN for claim in module.CLAIMS}
"""What we say."""

__all__ = ["CLAIMS", "OWN_CLAIMS", "RULE", "Claim", "check", "check_all", "counted", "in_authors_data"]


def check_all(results: Results, items: Collection[str]) -> list[Verdict]:
    """Return a verdict for every claim about some items that this preset can decide, the paper's first.

    The quick preset decides none: it does not follow the paper's protocol, and has no thresholds.
    """
    if results.preset.thresholds is None:
        return []
    claims = (*CLAIMS.values(), *OWN_CLAIMS.values())
    chosen = [claim for claim in claims if not set(claim.items).isdisjoint(items)]
    if results.preset.thresholds == "digits":
        chosen = [_on_digits(claim) for claim in chosen if claim.name in EXPECTED_ON_DIGITS]
    return [check(claim, results) for claim in chosen]


def _on_digits(claim: Claim) -> Claim:
    says, bound = EXPECTED_ON_DIGITS[claim.name]
    return replace(claim, says=says, bound=bound, words="", added_later=False, remark="", theirs=None)
