"""What becomes of one trial, and how the outcomes of many are told."""

import argparse
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

Verdict = Literal["refused", "unchanged", "recovered", "SILENT CHANGE", "TRACEBACK", "LOST"]
"""The first three are right. The others are defects: a changed state taken for a whole one, an exception that is not
the library's own or the end of the process, and a state that is gone though it was good."""

RIGHT: tuple[Verdict, ...] = ("refused", "unchanged", "recovered")


@dataclass(frozen=True)
class Outcome:
    """One trial."""

    kind: str
    """What was tried, such as ``"a bit of result.json"``."""
    seed: int
    """By which the trial can be made again."""
    verdict: Verdict
    detail: str = ""
    """What was changed, and what was said."""

    @property
    def is_defect(self) -> bool:
        """Whether something is wrong with the library."""
        return self.verdict not in RIGHT


def table(outcomes: Iterable[Outcome]) -> str:
    """Return how often each kind of trial had each verdict, as text."""
    found = list(outcomes)
    counts = Counter((outcome.kind, outcome.verdict) for outcome in found)
    kinds = list(dict.fromkeys(outcome.kind for outcome in found))
    width = max(map(len, [*kinds, "all"]))
    lines = [" " * width + "".join(f"{verdict:>15}" for verdict in get_args(Verdict)) + f"{'trials':>9}"]
    for kind in [*kinds, "all"]:
        row = [
            sum(counts[each, verdict] for each in (kinds if kind == "all" else [kind])) for verdict in get_args(Verdict)
        ]
        total = sum(row)
        cells = (f"{count} ({100 * count / total:.2f}%)" if count else "0" for count in row)
        lines.append(f"{kind:<{width}}" + "".join(f"{cell:>15}" for cell in cells) + f"{total:>9}")
    return "\n".join(lines)


def main(trials: Callable[[int], Iterator[Outcome]], description: str) -> None:
    """Run trials from the command line, tell of every defect and of all in a table, and fail if there is any defect."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--trials", type=int, default=1000, help="How many.")
    parser.add_argument("--seed", type=int, default=0, help="The first one's; each further trial has the next.")
    parser.add_argument("--shown", type=int, default=20, help="How many defects to tell of one by one.")
    given = parser.parse_args()
    found = list(itertools.islice(trials(given.seed), given.trials))
    defects = [outcome for outcome in found if outcome.is_defect]
    for outcome in defects[: given.shown]:
        print(f"seed {outcome.seed}: {outcome.verdict}, {outcome.kind}: {outcome.detail}")
    print(table(found))
    raise SystemExit(1 if defects else 0)
