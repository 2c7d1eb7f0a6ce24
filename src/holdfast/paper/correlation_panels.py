"""One measure's correlations with some others, task by task, as a panel of a figure."""

from collections.abc import Sequence

from holdfast.paper.measured import correlations
from holdfast.paper.panels import Panel, correlations_over_tasks, panel_or_reason
from holdfast.paper.presets import Benchmark
from holdfast.paper.results import Results


def correlation_panel(
    results: Results, benchmark: Benchmark, measure: str, others: Sequence[str], *, called: str
) -> Panel:
    """Return a line for each of the others; ``called`` is what the axis calls the measure."""
    title = results.preset.stages[benchmark].title
    return panel_or_reason(
        title,
        lambda: correlations_over_tasks(
            title,
            {name: correlations(results, benchmark, measure, name) for name in others},
            y_label=f"correlation with {called}",
        ),
    )
