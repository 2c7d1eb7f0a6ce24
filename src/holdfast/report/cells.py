"""Cells of a table as a reader wants them."""

import math

import numpy as np

from holdfast.report.model import Cell, Measured, Table

_MISSING = "–"
_LINE = 40
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
    """Return what a cell is sorted by: a mean by itself, and nothing where nothing is known."""
    value = cell.mean if isinstance(cell, Measured) else cell
    if value is None or isinstance(value, str):
        return value or ""
    return "" if math.isnan(value) else repr(float(value))


def is_numeric(table: Table, column: int) -> bool:
    """Return whether a column holds numbers, which are set flush right."""
    cells = [row[column] for row in table.rows if row[column] is not None]
    return bool(cells) and not any(isinstance(cell, str) for cell in cells)


def is_long(table: Table, column: int) -> bool:
    """Return whether a column holds text for which one line may be too short."""
    return any(len(shown(row[column])) > _LINE for row in table.rows)


def _measured(cell: Measured) -> str:
    if cell.error is None or math.isnan(cell.error):
        return _number(cell.mean) if cell.decimals is None else _typeset(f"{cell.mean:.{cell.decimals}f}")
    if not math.isfinite(cell.mean) or not math.isfinite(cell.error):
        return f"{_number(cell.mean)} ± {_number(cell.error)}"
    decimals = _decimals(cell.error) if cell.decimals is None else cell.decimals
    return f"{_typeset(f'{cell.mean:.{decimals}f}')} ± {cell.error:.{decimals}f}"


def _decimals(error: float) -> int:
    """Return how many decimals show an error's first digit, one at least."""
    return max(1, -math.floor(math.log10(error))) if error > 0 else 1


def _number(value: float) -> str:
    if math.isnan(value):
        return _MISSING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return _typeset(str(value) if isinstance(value, int | np.integer) else f"{value:.4g}")


def _typeset(text: str) -> str:
    """Return a number with the signs that a printer would use."""
    mantissa, _, exponent = text.partition("e")
    power = f"×10{str(int(exponent)).translate(_SUPERSCRIPTS)}" if exponent else ""
    return mantissa.replace("-", "−") + power
