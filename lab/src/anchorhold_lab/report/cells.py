"""Cells of a table as a reader wants them."""

import math
import re

import numpy as np

from anchorhold_lab.report.elements import Cell, Measured, Table

_MISSING = "–"
_LINE = 40
_WORD = 30
# A number that has to be text to say more than a number can: "<95", "≈ 0.9", "97.3 ± 0.1". Digits alone are left out,
# because whoever gives them as text means a name.
_NUMBER = r"[-−+]?\d+(?:\.\d+)?"
_NUMBER_AS_TEXT = re.compile(rf"[<>≤≥≈~]\s*({_NUMBER})(?:\s*±\s*{_NUMBER})?|({_NUMBER})\s*±\s*{_NUMBER}")
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def shown(cell: Cell) -> str:
    """Return a cell as text for people.

    >>> [shown(cell) for cell in (Measured(97.23, 0.12), 0.123456, -3, 1.2e-7, None)]
    ['97.2 ± 0.1', '0.1235', '−3', '1.2×10⁻⁷', '–']
    """
    if cell is None or isinstance(cell, str):
        return cell or _MISSING
    if isinstance(cell, Measured):
        return _measured(cell)
    return _number(cell)


def sort_key(cell: Cell) -> str:
    """Return what a cell is sorted by: a mean by itself, a bound by its number, nothing where nothing is known.

    >>> [sort_key(cell) for cell in (Measured(97.23, 0.12), "<95", "SI", -math.inf, None)]
    ['97.23', '95.0', 'SI', '-Infinity', '']
    """
    value = cell.mean if isinstance(cell, Measured) else cell
    if value is None:
        return ""
    if isinstance(value, str):
        number = _number_in(value)
        return value if number is None else repr(number)
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"  # as JavaScript reads it
    return "" if math.isnan(value) else repr(float(value))


def is_numeric(table: Table, column: int) -> bool:
    """Return whether a column holds numbers, which are set flush right; what is missing or a bound changes nothing."""
    texts = [cell for row in table.rows if isinstance(cell := row[column], str) and cell]
    return bool(table.rows) and all(_number_in(text) is not None for text in texts)


def is_long(table: Table, column: int) -> bool:
    """Return whether a column holds text for which one line may be too short."""
    return any(len(shown(row[column])) > _LINE for row in table.rows)


def is_unbroken(table: Table, column: int) -> bool:
    """Return whether a column holds words, such as a hash, that have to be broken to fit."""
    return any(len(word) > _WORD for row in table.rows for word in shown(row[column]).split())


def _measured(cell: Measured) -> str:
    if math.isnan(cell.mean):
        return _MISSING
    if cell.error is None or math.isnan(cell.error):
        plain = cell.decimals is None or not math.isfinite(cell.mean)
        return _number(cell.mean) if plain else _typeset(f"{cell.mean:.{cell.decimals}f}")
    if not math.isfinite(cell.mean) or not math.isfinite(cell.error):
        return f"{_number(cell.mean)} ± {_number(cell.error)}"
    decimals = _decimals(cell.error) if cell.decimals is None else cell.decimals
    return f"{_typeset(f'{cell.mean:.{decimals}f}')} ± {cell.error:.{decimals}f}"


def _decimals(error: float) -> int:
    """Return how many decimals show an error's first digit, one at least."""
    return max(1, -math.floor(math.log10(error))) if error > 0 else 1


def _number_in(text: str) -> float | None:
    found = _NUMBER_AS_TEXT.fullmatch(text.strip())
    return float((found[1] or found[2]).replace("−", "-")) if found else None


def _number(value: float) -> str:
    if math.isnan(value):
        return _MISSING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return _typeset(str(value) if isinstance(value, int | np.integer) else f"{value:.4g}")


def _typeset(text: str) -> str:
    """Return a number with the signs that a printer would use, and zero without any."""
    mantissa, _, exponent = text.partition("e")
    if not mantissa.strip("-0."):
        mantissa = mantissa.removeprefix("-")
    power = f"×10{str(int(exponent)).translate(_SUPERSCRIPTS)}" if exponent else ""
    return mantissa.replace("-", "−") + power
