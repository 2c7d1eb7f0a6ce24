"""Reports: tables, figures and verdicts as one HTML page that needs nothing beside it."""

from anchorhold_lab.report.colours import colour, ink, label
from anchorhold_lab.report.elements import Answer, Cell, Figure, Item, Measured, Report, Section, Table, Text, Verdict
from anchorhold_lab.report.writing import write_report

__all__ = [
    "Answer",
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
