"""Figure 2: MAS and the square root of the Fisher."""

from collections.abc import Sequence

from holdfast.experiments import Spec
from holdfast.paper.clouds import scatter_panel
from holdfast.paper.item import PaperItem
from holdfast.paper.measured import correlations
from holdfast.paper.panels import Panel, figure_of, lines_over_tasks, panel_or_reason
from holdfast.paper.presets import BENCHMARKS, Benchmark, Preset
from holdfast.paper.results import Results
from holdfast.paper.runs import correlation_runs
from holdfast.report import Item

_CAPTION = (
    "MAS and the square root of the Fisher. Left: Pearson correlations of MAS with MASX, AF and √Fisher after each "
    "task. Right of it: MAS against AF and √Fisher, one point a weight; on a straight line through the origin, one "
    "measure is a multiple of the other."
)


def runs(preset: Preset) -> list[Spec]:
    """Return the runs in which every measure watches SI."""
    return [spec for benchmark in BENCHMARKS for spec in correlation_runs(preset, benchmark)]


def draw(results: Results) -> Sequence[Item]:
    """Return the figure: a line of panels for each benchmark, CIFAR above MNIST as in the paper."""
    benchmarks: tuple[Benchmark, ...] = ("CIFAR", "P-MNIST")
    panels = [
        panel
        for benchmark in benchmarks
        for panel in (
            _correlations(results, benchmark),
            scatter_panel(results, benchmark, "AF", "MAS"),
            scatter_panel(results, benchmark, "sqrtFisher", "MAS"),
        )
    ]
    return [figure_of("figure2", _CAPTION, panels, columns=3)]


def _correlations(results: Results, benchmark: Benchmark) -> Panel:
    title = results.preset.stages[benchmark].title
    others = ("MASX", "AF", "sqrtFisher")
    return panel_or_reason(
        title,
        lambda: lines_over_tasks(
            title,
            {name: correlations(results, benchmark, "MAS", name) for name in others},
            y_label="correlation with MAS",
            least=0.0,
        ),
    )


ITEM = PaperItem("figure2", "Figure 2: MAS and √Fisher", runs, draw)
