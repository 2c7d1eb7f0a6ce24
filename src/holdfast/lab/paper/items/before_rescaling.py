"""Appendix: correlations of SI, SIB and SIU with SOS before rescaling, beside those after it."""

from collections.abc import Sequence

from holdfast.lab.paper.drawing.panels import (
    Panel,
    correlations_over_tasks,
    figure_of,
    lines_over_tasks,
    panel_or_reason,
)
from holdfast.lab.paper.drawing.task_columns import correlations, negative_shares
from holdfast.lab.paper.findings import Results
from holdfast.lab.paper.item import PaperItem
from holdfast.lab.paper.items.figure2 import runs
from holdfast.lab.paper.presets import BENCHMARKS, Benchmark
from holdfast.lab.report import Item

_MEASURES = ("SI", "SIB", "SIU")
_CAPTION = (
    "Top: Pearson correlations with SOS before SI, SIB and SIU are clamped at 0 and divided by the squared path "
    "length. Below: the share of weights whose importance is negative before that."
)


def draw(results: Results) -> Sequence[Item]:
    """Return the figure."""
    above = [_panel(results, benchmark, "correlation with SOS") for benchmark in BENCHMARKS]
    below = [_panel(results, benchmark, "negative importances") for benchmark in BENCHMARKS]
    return [figure_of("before-rescaling", _CAPTION, [*above, *below], columns=2)]


def _panel(results: Results, benchmark: Benchmark, what: str) -> Panel:
    title = results.preset.stages[benchmark].title

    def make() -> Panel:
        if what == "negative importances":
            shares = {name: negative_shares(results, benchmark, name) for name in _MEASURES}
            return lines_over_tasks(title, shares, y_label="share of negative weights")
        found = {name: correlations(results, benchmark, name, "SOS", when="before") for name in _MEASURES}
        return correlations_over_tasks(title, found, y_label=what)

    return panel_or_reason(title, make)


ITEM = PaperItem("before-rescaling", "Appendix: correlations before rescaling", runs, draw)
