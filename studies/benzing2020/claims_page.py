"""The page of claims: the rule, how many claims hold, every verdict, and what would settle those that are undecided.

From results that are there: nothing is trained.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from anchorhold.whole_files import write_whole
from anchorhold_lab.experiments import Store
from anchorhold_lab.report import Verdict
from studies.benzing2020 import ITEMS, PRESETS, run_nothing
from studies.benzing2020.algorithms import ALGORITHMS
from studies.benzing2020.claims import CLAIMS, OWN_CLAIMS, RULE, check_all, counted, in_authors_data
from studies.benzing2020.claims.settling import MOST_SEEDS, Consulted, Settling, minutes_together, settling
from studies.benzing2020.relatives.making import make_studies
from studies.benzing2020.searched_strengths import find_strengths

PAGE = Path("results/paper/claims.md")
STORE = Path("results/paper/store")
_FEW = 20
"""Seeds that can be asked for: rows that need no more are summed up."""
_SAMPLES = "or 10,000 samples in place of 1,000 for the same cost: which samples are drawn is what scatters"
_AT_THE_LIMIT = "nothing: the limit is 0, and a difference of nothing is never told from it"
_INSTEAD: Mapping[str, str] = {
    "b1-p-mnist": _SAMPLES,
    "b2-p-mnist": _SAMPLES,
    "b3-p-mnist": _SAMPLES,
    "alpha-needed-cifar": _AT_THE_LIMIT,
}
"""What else would settle a claim, where more seeds are not the best that can be done."""

_HEAD = """# The claims, one by one

`python -m studies.benzing2020.claims_page` writes this page from the runs in `store/`.

**The rule.** {rule}

- Intervals are Student's. A difference is taken seed by seed, over the seeds that both sides have: their networks,
  tasks and batches are the same. Where fewer than three are shared, the interval is Welch's.
- A claim about several tasks or pairs holds if it holds on each. It does not hold if one of k fails by its interval at
  the level 1 − 0.05/k, so that the choice of the worst refutes nothing by chance.
- Limits come from the paper's words, which stand beside them. They were written down before the runs, but where a claim
  says that it was added. "Alike", "similar" and "stable" mean within 0.5 points on P-MNIST and 1 on Split CIFAR.

**The paper's claims.** {papers}

**Claims of our own.** {own}

**The authors' data.** {theirs} One number, most of them of one run, decides nothing.
"""
_SETTLING = """## What would settle the undecided

So many seeds in each row of runs decide a claim if mean and scatter stay as they are. Minutes are what these take, by
the seconds of the runs that there are. Claims share runs: all of the paper's that {few} seeds or fewer decide take
{minutes} minutes together. {hopeless} claims need more than {most} seeds. All new runs of a claim are made before
anybody looks: to add seeds until a verdict comes is no test.
"""


def known_results(store: Path) -> Consulted:
    """Return the results of the paper's preset, with every strength and setting that the store has runs for."""
    runs = Store(store)
    preset, damaged = find_strengths(PRESETS["paper"], list(ALGORITHMS.values()), runs, run_nothing)
    studies, damaged_studies = make_studies(preset.relatives, runs, run_nothing)
    return Consulted(runs, preset.with_relatives(studies), {**damaged, **damaged_studies})


def page(results: Consulted) -> str:
    """Return the page as Markdown."""
    verdicts = check_all(results, set(ITEMS))
    papers, own = ([each for each in verdicts if each.own is ours] for ours in (False, True))
    claims = {**CLAIMS, **OWN_CLAIMS}
    settled = [settling(claims[each.name], results) for each in verdicts if each.answer == "undecided"]
    soon = [each for each in settled if each.claim.name in CLAIMS and each.seeds is not None and each.seeds <= _FEW]
    few = {
        "few": _FEW,
        "minutes": f"{minutes_together(soon):.0f}",
        "hopeless": sum(each.seeds is None for each in settled),
        "most": MOST_SEEDS,
    }
    parts = [
        _HEAD.format(rule=RULE, papers=counted(papers), own=counted(own), theirs=in_authors_data(papers)),
        _SETTLING.format(**few),
        _settling_table(settled, verdicts),
        "## The paper's claims",
        _table(papers),
        "## Claims of our own",
        _table(own),
    ]
    return "\n".join(parts) + "\n"


def _settling_table(settled: Sequence[Settling], verdicts: Sequence[Verdict]) -> str:
    measured = {each.name: (_measured(each), each.threshold) for each in verdicts}
    rows = []
    for each in settled:
        name, item = each.claim.name, each.claim.items[0]
        seeds = f"{each.seeds}" if each.seeds else f"more than {MOST_SEEDS}"
        minutes = f"{each.minutes:.1f} ({', '.join(each.devices)})" if each.seeds else ""
        rows.append((name, *measured[name], seeds, minutes, f"`{item}`", _INSTEAD.get(name, "")))
    return markdown(("claim", "measured", "limit", "seeds", "minutes", "item", "beside that"), rows)


def _table(verdicts: Sequence[Verdict]) -> str:
    rows = [
        (
            f"`{each.name}`: {each.claim}",
            f"**{each.answer}**",
            _measured(each),
            each.threshold + f" (“{each.words}”)" * bool(each.words),
            each.authors.partition(" (")[0],
        )
        for each in verdicts
    ]
    return markdown(("claim", "verdict", "measured", "limit", "the authors' data"), rows)


def _measured(verdict: Verdict) -> str:
    """Return what was measured, without the name of the statistic."""
    return verdict.statistic.rpartition(": ")[2]


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines) + "\n"


def write_page(
    program: str, about: str, page: Callable[[Consulted], str], target: Path, arguments: Sequence[str] | None
) -> None:
    """Write a page that is made from the published runs, as a program of its own."""
    parser = argparse.ArgumentParser(prog=f"python -m studies.benzing2020.{program}", description=about)
    parser.add_argument("--page", type=Path, default=target, help="(default: %(default)s)")
    parser.add_argument("--store", type=Path, default=STORE, help="(default: %(default)s)")
    options = parser.parse_args(arguments)
    write_whole(options.page, page(known_results(options.store)).encode())
    print(options.page)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page."""
    write_page("claims_page", __doc__ or "", page, PAGE, arguments)


if __name__ == "__main__":
    main()
