"""The page of searches: how many settings each method was tried with, and whether the best lies at the edge of these.

From results that are there: nothing is trained.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from anchorhold_lab.experiments import SearchOutcome
from studies.benzing2020 import run_nothing
from studies.benzing2020.algorithms import ALGORITHMS, Algorithm
from studies.benzing2020.claims_page import markdown, write_page
from studies.benzing2020.drawing.tables.relatives_table import in_words, where_among
from studies.benzing2020.findings import Results
from studies.benzing2020.presets import Benchmark
from studies.benzing2020.searched_strengths import search_of

PAGE = Path("results/paper/searches.md")
_HEAD = """# How many settings each method got

`python -m studies.benzing2020.searches_page` writes this page from the runs in `store/`. It lists every method for
which something was chosen here, on validation data, by seeds that no test has. Other rows of the paper's Table 1 have
the one strength that the paper gives.

Where the best of what was tried lies at the edge, a better one may lie beyond: such a row is marked, and is not the
method's best. {edge} of {rows} are. Pairs of settings (DER++) have no edge here.
"""
_COLUMNS = ("benchmark or study", "method", "settings tried", "chosen", "at the edge", "test, %", "runs")


def page(results: Results) -> str:
    """Return the page as Markdown."""
    rows = [*_of_strengths(results), *_of_relatives(results)]
    edge = sum(bool(row[4]) for row in rows)
    return _HEAD.format(edge=edge, rows=len(rows)) + "\n" + markdown(_COLUMNS, rows)


def settings_tried(results: Results, benchmark: Benchmark, name: str) -> int:
    """Return with how many settings an algorithm was tried, for which something was chosen."""
    algorithm = ALGORITHMS[name]
    plan = results.preset.stages[benchmark].searched[algorithm.measure, algorithm.variant]
    if plan.tried:
        return len(plan.tried)
    found = _search(results, benchmark, algorithm)
    return len(found.points) if found else 0


def _of_strengths(results: Results) -> Iterator[Sequence[str]]:
    for algorithm in ALGORITHMS.values():
        for benchmark in algorithm.benchmarks:
            stage, row = results.preset.stages[benchmark], (algorithm.measure, algorithm.variant)
            specs = results.accuracies(benchmark, algorithm.name) if row in stage.chosen else []
            if row not in stage.searched or not specs:
                continue
            if tried := stage.searched[row].tried:
                chosen = stage.chosen[row].changes
                words = in_words(tried, chosen), where_among(tried, chosen)
            else:
                found = _search(results, benchmark, algorithm)
                assert found is not None and found.choice is not None
                words = str(found.choice), _where(found)
            count = str(settings_tried(results, benchmark, algorithm.name))
            yield (stage.title, algorithm.name, count, *_marked(*words), *_mean(specs))


def _of_relatives(results: Results) -> Iterator[Sequence[str]]:
    for study in results.preset.relatives:
        for row in study.rows:
            found = [100 * run.average_accuracy for run in results.finished(study.runs(row))]
            if row.tried and row.chosen is not None and found:
                words = in_words(row.tried, row.chosen), where_among(row.tried, row.chosen)
                yield (study.title, row.name, str(len(row.tried)), *_marked(*words), *_mean(found))


def _search(results: Results, benchmark: Benchmark, algorithm: Algorithm) -> SearchOutcome | None:
    return search_of(results.preset, benchmark, algorithm, results.store, run_nothing)


def _where(found: SearchOutcome) -> str:
    """Say whether the best strength is the largest or the smallest of those tried as it was."""
    choice = found.choice
    assert choice is not None
    sizes = [point.strength for point in found.points if point.reinitialise == choice.reinitialise]
    return "largest" if choice.strength == max(sizes) else "smallest" if choice.strength == min(sizes) else ""


def _marked(chosen: str, where: str) -> tuple[str, str]:
    return chosen, f"**the {where}**" if where else ""


def _mean(values: Sequence[float]) -> tuple[str, str]:
    return f"{sum(values) / len(values):.2f}", str(len(values))


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page."""
    write_page("searches_page", __doc__ or "", page, PAGE, arguments)


if __name__ == "__main__":
    main()
