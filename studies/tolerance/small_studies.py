"""The command line that small studies of tolerances share: all of their rows, or a rehearsal, and their page.

Called by ``starts``, ``weaker_starts``, ``kept_twice`` and ``ten_tasks``, each with its own rows and page.
"""

import argparse
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.harness import write_rows

Rows = Iterable[dict[str, Any]]


def run_study(
    arguments: list[str] | None,
    command: str,
    about: str | None,
    name: str,
    rows: Callable[[], Rows],
    rehearsal: Callable[[], Rows],
    page: Callable[[list[dict[str, Any]], dict[str, str]], str],
) -> None:
    """Make all rows, telling each, and write the page.

    Args:
        arguments: those of the command line.
        command: what is typed for it.
        about: what ``--help`` says.
        name: that of the files, without an ending.
        rows: makes all of it.
        rehearsal: makes the little that ``--rehearse`` asks for.
        page: from rows and surroundings to a page.
    """
    parser = argparse.ArgumentParser(prog=command, description=about)
    parser.add_argument("--results", type=Path, default=Path("results"), help="where to write (default: %(default)s)")
    parser.add_argument("--rehearse", action="store_true", help="one seed, few steps; give --results of its own")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")  # what guards tell of is what is looked at
    found = []
    for row in rehearsal() if options.rehearse else rows():
        print(row, flush=True)
        found.append(row)
    write_rows(options.results, name, command, found, page)
