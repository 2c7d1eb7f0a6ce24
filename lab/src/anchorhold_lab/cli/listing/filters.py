"""Which runs of a store are meant: ``--measure SI --where network=cnn``."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

from anchorhold.errors import ConfigurationError
from anchorhold.registry import find_name, simplified
from anchorhold_lab.cli.progress.labels import shown_value
from anchorhold_lab.experiments.store.listing.rows import Row

_SHOWN = 12
"""How many values are named in a message."""

_POSSIBLE = {
    "status": ("finished", "failed", "running", "stopped", "started", "damaged"),
    "judge_by": ("test", "validation"),
}
"""Values that may be asked for though no run has them now."""

Measures = Annotated[
    list[str] | None,
    typer.Option("--measure", "-m", help="Only runs of this measure; may be repeated.", show_default=False),
]
Scenarios = Annotated[
    list[str] | None,
    typer.Option("--scenario", help="Only runs of this scenario; may be repeated.", show_default=False),
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        help="Only runs with FIELD=VALUE, such as judge_by=validation, network=cnn, epochs=20 or status=failed; may be "
        "repeated: any of the values that one field is given, and all of the fields.",
        show_default=False,
    ),
]


def chosen(
    rows: Sequence[Row], measures: Iterable[str] | None, scenarios: Iterable[str] | None, where: Iterable[str] | None
) -> list[Row]:
    """Return the rows that are meant; a field or a value that no run has is refused, with those that there are."""
    wanted: dict[str, list[str]] = {}
    for name, values in (("measure", measures), ("scenario", scenarios)):
        if values:
            wanted[name] = list(values)
    known: dict[str, None] | None = None
    for text in where or ():
        given, sign, value = text.partition("=")
        if not sign or not given:
            raise ConfigurationError(f"--where {text}: expected FIELD=VALUE, such as judge_by=validation.")
        known = known or _fields(rows)
        wanted.setdefault(find_name("field of a run", given.strip(), known), []).append(value.strip())
    found = list(rows)
    for name, values in wanted.items():
        accepted = _accepted(name, values, rows) if rows else set()
        found = [row for row in found if _value(row, name) in accepted]
    return found


def _fields(rows: Iterable[Row]) -> dict[str, None]:
    settings = {id(row.setting): row.setting for row in rows}.values()
    return dict.fromkeys(["id", "status", "seed", "device", *(name for setting in settings for name in setting)])


def _value(row: Row, name: str) -> Any:
    if name in ("id", "status", "seed"):
        return getattr(row, name)
    if name == "device":
        return None if row.figures is None else row.figures.device
    return row.setting.get(name)


def _accepted(name: str, given: Iterable[str], rows: Iterable[Row]) -> set[Any]:
    """Return the values that are meant, as runs have them."""
    there = dict.fromkeys([*_POSSIBLE.get(name, ()), *(_value(row, name) for row in rows)])
    accepted: set[Any] = set()
    for text in given:
        meant = {value for value in there if _means(text, value)}
        if not meant:
            values = sorted(shown_value(value) for value in there)
            more = f" and {len(values) - _SHOWN} more" if len(values) > _SHOWN else ""
            raise ConfigurationError(f"No run here has {name} {text!r}; there are {', '.join(values[:_SHOWN])}{more}.")
        accepted |= meant
    return accepted


def _means(text: str, value: Any) -> bool:
    """Whether a text stands for a value, as it is printed or as Python or JSON write it."""
    if value is None or isinstance(value, bool):
        names = {None: ("-", "none", "null", ""), True: ("yes", "true", "1"), False: ("no", "false", "0")}
        return text.lower() in names[value]
    if isinstance(value, int | float):
        try:
            return float(text) == value
        except ValueError:
            return False
    shown = shown_value(value)
    # Of a name, capitals and hyphens do not count; of widths such as 20-20 they do.
    return text.casefold() == shown.casefold() or (not shown[:1].isdigit() and simplified(text) == simplified(shown))
