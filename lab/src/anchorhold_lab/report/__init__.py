"""Reports: tables, figures and verdicts as one HTML page that needs nothing beside it."""

from anchorhold.errors import MissingExtraError

try:
    import jinja2  # noqa: F401 (asked for before anything else, so that whoever lacks it is told how to get it)
    import matplotlib as mpl  # noqa: F401
except ImportError as error:
    raise MissingExtraError(
        "Reports are drawn with matplotlib and jinja2, and one of them is not installed: pip install 'anchorhold-lab'"
    ) from error

from anchorhold_lab.report.colours import colour, ink, label
from anchorhold_lab.report.elements import Cell, Figure, Item, Measured, Report, Section, Table, Text, Verdict
from anchorhold_lab.report.writing import write_report

__all__ = [
    "Cell",
    "Figure",
    "Item",
    "Measured",
    "Report",
    "Section",
    "Table",
    "Text",
    "Verdict",
    "colour",
    "ink",
    "label",
    "write_report",
]
