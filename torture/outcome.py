"""What becomes of one trial, and how the outcomes of many are told."""

import argparse
import dataclasses
import itertools
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

Verdict = Literal["refused", "unchanged", "recovered", "fine", "SILENT CHANGE", "TRACEBACK", "LOST", "HUNG"]
"""The first four are right. The others are defects: a changed state taken for a whole one, an exception that is not
the library's own or the end of the process, a state that is gone though it was good, and no end within the time."""

RIGHT: tuple[Verdict, ...] = ("refused", "unchanged", "recovered", "fine")


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
    verdicts = [verdict for verdict in get_args(Verdict) if any(counts[kind, verdict] for kind in kinds)]
    width = max(map(len, [*kinds, "all"]))
    lines = [" " * width + "".join(f"{verdict:>15}" for verdict in verdicts) + f"{'trials':>9}"]
    for kind in [*kinds, "all"]:
        row = [sum(counts[each, verdict] for each in (kinds if kind == "all" else [kind])) for verdict in verdicts]
        lines.append(f"{kind:<{width}}" + "".join(f"{count or '-':>15}" for count in row) + f"{sum(row):>9}")
    return "\n".join(lines)


def main(trials: Callable[[int], Iterator[Outcome]], description: str) -> None:
    """Run trials from the command line, tell of every defect and of all in a table, and fail if there is any defect."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--trials", type=int, help="how many (default: 1000, or as many as the seconds allow)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="for how long at most")
    parser.add_argument("--seed", type=int, default=0, help="the first one's; each further trial has the next")
    parser.add_argument("--shown", type=int, default=20, help="how many defects to tell of one by one")
    parser.add_argument("--json", action="store_true", help="tell of each trial in a line")
    given = parser.parse_args()
    most = given.trials or (1000 if given.seconds == math.inf else None)
    found, ends = [], time.monotonic() + given.seconds
    for outcome in itertools.islice(trials(given.seed), most):
        found.append(outcome)
        if given.json:
            print(json.dumps(dataclasses.asdict(outcome)), flush=True)
        if time.monotonic() > ends:
            break
    defects = [outcome for outcome in found if outcome.is_defect]
    if not given.json:
        for outcome in defects[: given.shown]:
            print(f"seed {outcome.seed}: {outcome.verdict}, {outcome.kind}: {outcome.detail}")
        print(table(found))
    raise SystemExit(1 if defects else 0)
