"""Write the tables of what a state file holds into the documentation: ``python scripts/state_tables.py``."""

import json
from collections.abc import Iterable
from pathlib import Path

from anchorhold.guard.state.schema import ALWAYS, TENSOR_KINDS, VALUES, Value

PAGE = Path(__file__).parents[1] / "docs" / "guides" / "state-files.md"


def values_table() -> str:
    """Return the table of a state's plain values in Markdown."""
    rows = [
        (f"`{value.key}`", value.meaning, value.type.words, _default(value), "yes" if value.must_match else "")
        for value in VALUES
        if value.key != "tensors"  # of a dictionary; in a file they stand by themselves
    ]
    return _table(("key", "meaning", "type", "default", "the same in the guard"), rows)


def tensors_table() -> str:
    """Return the table of the kinds of a state's tensors in Markdown."""
    rows = [
        (kind.key, kind.meaning, kind.shape, kind.precision.words if kind.precision else "the hold's own")
        for kind in TENSOR_KINDS
    ]
    return _table(("key", "meaning", "shape", "dtype"), rows)


def with_tables(text: str) -> str:
    """Return the text of the page with the tables as they are now."""
    for name, table in {"values": values_table(), "tensors": tensors_table()}.items():
        start, end = f"<!-- {name}: written by scripts/state_tables.py -->", f"<!-- end of {name} -->"
        before, _, rest = text.partition(start)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"{PAGE} has no place for the table of {name}; expected {start!r} and then {end!r}.")
        text = f"{before}{start}\n\n{table}\n{end}{after}"
    return text


def _default(value: Value) -> str:
    if value.default is not ALWAYS:
        return f"`{json.dumps(value.default)}`"
    return "always there" if value.since == 1 else f"always there from version {value.since}"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
