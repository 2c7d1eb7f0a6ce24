"""Summed importances of one task: SI, SIU, the full-gradient path integral, and the decrease in loss."""

from holdfast.paper.measured import full_paths, loss_decreases, raw_sums
from holdfast.paper.panels import Panel, bars, panel_or_reason
from holdfast.paper.presets import Benchmark
from holdfast.paper.results import Results


def sums_panel(results: Results, benchmark: Benchmark, *, task: int) -> Panel:
    """Return the four as bars; the task is counted from 0."""
    title = f"{results.preset.stages[benchmark].title}, task {task + 1}"

    def make() -> Panel:
        series = {
            "SI": raw_sums(results, benchmark, "SI")[:, task],
            "SIU": raw_sums(results, benchmark, "SIU")[:, task],
            "full gradient": full_paths(results, benchmark)[:, task],
            "decrease in loss": loss_decreases(results, benchmark)[:, task],
        }
        return bars(title, series, y_label="sum over all weights")

    return panel_or_reason(title, make)
