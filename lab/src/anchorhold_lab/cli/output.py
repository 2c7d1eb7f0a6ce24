"""Where things are printed: results to stdout, everything that is only for the eye to stderr."""

import json
import math
import os
import sys
from typing import Any, TextIO

from rich.console import Console, OverflowMethod
from rich.table import Table

from anchorhold_lab.cli.streams import fits

_WIDTH_OF_FILES = 120


def results() -> Console:
    """Return the console for what was asked for."""
    return _console(sys.stdout)


def messages() -> Console:
    """Return the console for progress and complaints."""
    return _console(sys.stderr)


def print_json(value: Any) -> None:
    """Print one JSON object on a line of its own, at once; what is not a number is ``null``."""
    text = json.dumps(_plain(value), ensure_ascii=False, allow_nan=False)
    if not fits(text, sys.stdout):
        text = json.dumps(_plain(value), ensure_ascii=True, allow_nan=False)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def table(*columns: str, right: tuple[str, ...] = (), wrap: tuple[str, ...] = (), title: str | None = None) -> Table:
    """Return a calm table; only the columns in ``wrap`` are ever broken into several lines."""
    made = Table(title=title, title_justify="left", title_style="bold", box=None, header_style="bold", pad_edge=False)
    for column in columns:
        wraps = column in wrap
        # A path or a command that is too long is broken, never cut off: it is there to be copied.
        overflow: OverflowMethod = "fold" if wraps else "ellipsis"
        made.add_column(column, justify="right" if column in right else "left", no_wrap=not wraps, overflow=overflow)
    return made


def pairs() -> Table:
    """Return a table of names and values, without a header."""
    made = table("name", "value", wrap=("value",))
    made.show_header = False
    return made


def _console(file: TextIO) -> Console:
    # A file or a pipe has no width; a table in it should not be squeezed into that of an old terminal.
    wide = not file.isatty() and "COLUMNS" not in os.environ
    return Console(file=file, width=_WIDTH_OF_FILES if wide else None, highlight=False, markup=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
