"""From items to their report: makes the runs that are missing, and shows what there is."""

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from anchorhold.errors import AnchorholdError, ConfigurationError
from anchorhold_lab.experiments import Spec, Store, Summary, execute
from anchorhold_lab.experiments.store.read_once import ReadOnce
from anchorhold_lab.report import Verdict, write_report
from anchorhold_lab.user_paths import is_file
from studies.benzing2020.drawing.paper_report import report_of
from studies.benzing2020.drawing.tables.run_tables import csv_files
from studies.benzing2020.findings import Results
from studies.benzing2020.item import PaperItem, runs_of
from studies.benzing2020.items import ITEMS
from studies.benzing2020.presets import Preset
from studies.benzing2020.relatives.making import make_studies, unknown_rows
from studies.benzing2020.searched_strengths import find_strengths, unknown_strengths
from studies.benzing2020.tried_settings import Run


@dataclass(frozen=True)
class Reproduction:
    """What came out, and where to read it."""

    index: Path
    """The report's page."""
    specs: tuple[Spec, ...]
    """All runs that the items need, as far as their strengths are known."""
    finished: int
    """How many of them have a result."""
    failed: int
    damaged: tuple[str, ...]
    """Which files in the store cannot be used, and what to do about each; runs that have one count as unfinished."""
    searches_left: int
    """How many strengths are not known yet, whose runs are therefore not among the specs."""
    interrupted: bool
    verdicts: tuple[Verdict, ...]

    @property
    def complete(self) -> bool:
        """Whether every run has a result."""
        return self.finished == len(self.specs) and not self.searches_left


def items_named(names: Iterable[str]) -> list[PaperItem]:
    """Return items by name, in the order of their value; ``all`` stands for every one."""
    asked = set(names)
    unknown = sorted(asked - {"all", *ITEMS})
    if unknown:
        raise ConfigurationError(f"No item is called {unknown[0]!r}; there are all, {', '.join(ITEMS)}.")
    return [item for item in ITEMS.values() if "all" in asked or item.name in asked]


def reproduce(
    items: Sequence[PaperItem],
    preset: Preset,
    store: Store,
    folder: str | os.PathLike[str],
    *,
    run: Run = execute,
) -> Reproduction:
    """Make the runs of some items that the store lacks, item by item, and write the report.

    What was stopped goes on with the next call. The report is written in any case, from what there is.

    >>> reproduce(items_named(["table1"]), PRESETS["digits"], Store("results"), "report").index

    Args:
        items: what to reproduce, the most valuable first.
        preset: the size of the study.
        store: where results are, and go to.
        folder: where the report goes. Whether it can be written is found out before any run is made.
        run: makes runs; :func:`run_nothing` for a report on what there is.
    """
    with _writing(folder):
        _make_writable(Path(folder))
    store = ReadOnce(store.folder)  # searches and the report look at the same results
    interrupted = False

    def make(specs: Sequence[Spec], store: Store) -> Summary:  # searches and tries may be stopped as well as runs
        nonlocal interrupted
        summary = run(specs, store)
        interrupted |= summary.interrupted
        return summary

    damaged_searches: dict[tuple[str, str], str] = {}
    for item in items:
        if item.relatives:
            studies, damaged = make_studies(preset.relatives, store, make)
            preset = preset.with_relatives(studies)
            damaged_searches |= damaged
        # Without the search, the runs of all that is known can be made all the same; so they come first.
        _run_missing(item.runs(preset), store, make)
        preset, damaged = find_strengths(preset, item.algorithms, store, make)
        damaged_searches |= damaged
        _run_missing(item.runs(preset), store, make)
    specs = runs_of(items, preset)
    results = Results(store, preset, damaged_searches)
    report = report_of(items, results)
    with _writing(folder):
        index = write_report(report, folder, csv_files(results, specs))
    statuses = [results.status(spec) for spec in specs]
    damage = [*filter(None, map(results.damage, specs)), *damaged_searches.values(), *store.group_damage()]
    return Reproduction(
        index,
        tuple(specs),
        finished=statuses.count("finished"),
        failed=statuses.count("failed"),
        damaged=tuple(dict.fromkeys(damage)),
        searches_left=sum(len(unknown_strengths(preset, item.algorithms)) for item in items)
        + any(item.relatives for item in items) * len(unknown_rows(preset.relatives)),
        interrupted=interrupted,
        verdicts=tuple(report.verdicts()),
    )


def run_nothing(specs: Sequence[Spec], store: Store) -> Summary:
    """Make no run: for a report on what there is."""
    del specs, store
    return Summary(interrupted=True)


def _run_missing(specs: Sequence[Spec], store: Store, run: Run) -> None:
    # Those that have finished, often for an item before this one, would only be told of once more.
    left = [spec for spec in specs if store.status(spec.id) != "finished"]
    if left:
        run(left, store)


@contextmanager
def _writing(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Turn what goes wrong while a report is written into an error that says where, and what to do."""
    try:
        yield
    except AnchorholdError:  # the store's own, some of which are OSErrors
        raise
    except OSError as error:
        reason = "it is a file" if is_file(folder) else error.strerror or error
        raise ConfigurationError(
            f"The report cannot be written to {os.fspath(folder)}: {reason}. Expected a folder in which files can be "
            "made, or the name of one that can be made. Name another one, or make room or give permission there, and "
            "start again: runs that have finished are in the store, and not made again."
        ) from error


def _make_writable(folder: Path) -> None:
    """Make a folder unless it is there, and prove that files can be made in it: hours of runs may come before them."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".writable-"):
        pass
