"""One table and one figure over everything that the library has: every method, every benchmark."""

from collections.abc import Sequence

from anchorhold.lab.experiments import Spec
from anchorhold.lab.paper.algorithms import ALGORITHMS
from anchorhold.lab.paper.drawing.overview_figure import overview_figure
from anchorhold.lab.paper.drawing.tables.overview_table import every_line, overview_left, overview_table, standings
from anchorhold.lab.paper.findings import Results
from anchorhold.lab.paper.item import PaperItem
from anchorhold.lab.paper.presets import Preset
from anchorhold.lab.report import Item


def runs(preset: Preset) -> list[Spec]:
    """Return the runs behind every accuracy of the other items."""
    return list({spec.id: spec for line in every_line(preset) for spec in line.specs}.values())


def draw(results: Results) -> Sequence[Item]:
    """Return the table and the figure, and what has not been run yet, with the command that makes it."""
    found = standings(results)
    return [overview_table(found), overview_figure(found), *overview_left(results)]


ITEM = PaperItem(
    "overview",
    "Everything: every method on every benchmark, by accuracy, forgetting, memory and time",
    runs,
    draw,
    tuple(ALGORITHMS.values()),
    relatives=True,
)
