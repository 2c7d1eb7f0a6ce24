"""Appendix: correlations of SI, SIB and SIU with SOS before rescaling, beside those after it."""

from collections.abc import Sequence

from anchorhold_lab.report import Item
from studies.benzing2020 import authors_data
from studies.benzing2020.drawing.panels import (
    Panel,
    authors_series,
    correlations_over_tasks,
    figure_of,
    lines_over_tasks,
    panel_or_reason,
)
from studies.benzing2020.drawing.task_columns import correlations, negative_shares
from studies.benzing2020.findings import Results
from studies.benzing2020.item import PaperItem
from studies.benzing2020.items.main_text.figure2 import runs
from studies.benzing2020.presets import BENCHMARKS, Benchmark

_MEASURES = ("SI", "SIB", "SIU")
_CAPTION = (
    "Top: Pearson correlations with SOS before SI, SIB and SIU are clamped at 0 and divided by the squared path "
    "length. Below: the share of weights whose importance is negative before that."
)
_THEIRS = (
    " Stars: the authors' data: one run on MNIST, read off a plot; on CIFAR what is printed of one run's first task, "
    "cut off after two decimals, and below 10,000 weights of one run."
)


def draw(results: Results) -> Sequence[Item]:
    """Return the figure."""
    above = [_panel(results, benchmark, "correlation with SOS") for benchmark in BENCHMARKS]
    below = [_panel(results, benchmark, "negative importances") for benchmark in BENCHMARKS]
    caption = _CAPTION + _THEIRS * results.preset.follows_the_paper
    return [figure_of("before-rescaling", caption, [*above, *below], columns=2)]


def _panel(results: Results, benchmark: Benchmark, what: str) -> Panel:
    title = results.preset.stages[benchmark].title

    def make() -> Panel:
        if what == "negative importances":
            shares = {name: negative_shares(results, benchmark, name) for name in _MEASURES}
            theirs = authors_series(results, authors_data.NEGATIVE, benchmark)
            return lines_over_tasks(title, shares, y_label="share of negative weights", theirs=theirs)
        found = {name: correlations(results, benchmark, name, "SOS", when="before") for name in _MEASURES}
        theirs = authors_series(results, authors_data.WITH_SOS_BEFORE, benchmark)
        return correlations_over_tasks(title, found, y_label=what, theirs=theirs)

    return panel_or_reason(title, make)


ITEM = PaperItem("before-rescaling", "Appendix: correlations before rescaling", runs, draw)
