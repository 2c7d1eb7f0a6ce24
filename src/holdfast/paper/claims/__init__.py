"""The paper's claims, each with the statistic that decides it and a threshold that was set before the runs.

A claim that does not hold in our runs is reported as such, one whose runs are missing as not checked.
"""

from collections.abc import Collection
from dataclasses import replace

from holdfast.paper.claims import bias, fisher, performance
from holdfast.paper.claims.claim import Bound, Claim, check
from holdfast.paper.claims.digits import EXPECTED_ON_DIGITS, SAID_OF_DIGITS
from holdfast.paper.results import Results
from holdfast.report import Verdict

CLAIMS: dict[str, Claim] = {claim.name: claim for claim in (*bias.CLAIMS, *fisher.CLAIMS, *performance.CLAIMS)}

__all__ = ["CLAIMS", "Bound", "Claim", "check", "check_all"]


def check_all(results: Results, items: Collection[str]) -> list[Verdict]:
    """Return a verdict for every claim about some items that this preset is expected to show."""
    chosen = [claim for claim in CLAIMS.values() if claim.item in items]
    if results.preset.name != "digits":
        return [check(claim, results) for claim in chosen]
    return [
        check(
            replace(claim, says=SAID_OF_DIGITS.get(claim.name, claim.says), bound=EXPECTED_ON_DIGITS[claim.name]),
            results,
        )
        for claim in chosen
        if claim.name in EXPECTED_ON_DIGITS
    ]
