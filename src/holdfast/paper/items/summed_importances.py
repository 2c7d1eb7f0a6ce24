"""Appendix: summed importances on every task of both benchmarks."""

from collections.abc import Sequence

from holdfast.paper.item import PaperItem
from holdfast.paper.items.figure2 import runs
from holdfast.paper.measured import full_paths, loss_decreases, raw_sums
from holdfast.paper.panels import Panel, figure_of, lines_over_tasks, panel_or_reason
from holdfast.paper.presets import BENCHMARKS, Benchmark
from holdfast.paper.results import Results
from holdfast.report import Item


def draw(results: Results) -> Sequence[Item]:
    """Return the figure."""
    steps = " and ".join(str(results.preset.stages[benchmark].path_steps) for benchmark in BENCHMARKS)
    caption = (
        "Importances summed over all weights on every task, before rescaling, and the decrease in loss that they are "
        "meant to track. What SI has beyond SIU is its bias. The full gradient was computed at some random steps, "
        f"{steps} of each task on the two benchmarks: unbiased, with a scatter that the error bars contain."
    )
    panels = [_panel(results, benchmark) for benchmark in BENCHMARKS]
    return [figure_of("summed-importances", caption, panels, columns=2)]


def _panel(results: Results, benchmark: Benchmark) -> Panel:
    title = results.preset.stages[benchmark].title

    def make() -> Panel:
        series = {
            "SI": raw_sums(results, benchmark, "SI"),
            "SIU": raw_sums(results, benchmark, "SIU"),
            "full gradient": full_paths(results, benchmark),
            "decrease in loss": loss_decreases(results, benchmark),
        }
        return lines_over_tasks(title, series, y_label="sum over all weights", least=None)

    return panel_or_reason(title, make)


ITEM = PaperItem("summed-importances", "Appendix: summed importances on every task", runs, draw)
