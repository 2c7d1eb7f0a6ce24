"""One table and one figure over everything that the library has: every method, every benchmark."""

from collections.abc import Sequence

from anchorhold_lab.experiments import Spec
from anchorhold_lab.report import Item
from studies.benzing2020.algorithms import ALGORITHMS
from studies.benzing2020.drawing.overview_figure import overview_figure
from studies.benzing2020.drawing.tables.overview_table import every_line, overview_left, overview_table, standings
from studies.benzing2020.findings import Results
from studies.benzing2020.item import PaperItem
from studies.benzing2020.presets import Preset


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
