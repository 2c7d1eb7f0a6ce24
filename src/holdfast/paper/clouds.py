"""Scatter plots of importances, from the first repetition of the runs in which every measure watches."""

import numpy as np
from numpy.typing import NDArray

from holdfast.paper.panels import Panel, cloud, panel_or_reason
from holdfast.paper.presets import Benchmark
from holdfast.paper.results import NotMeasuredError, Results
from holdfast.paper.runs import correlation_runs


def scatter_panel(results: Results, benchmark: Benchmark, x: str, y: str, *, raw: bool = False) -> Panel:
    """Return two measures against each other after the benchmark's first task."""
    title = f"{results.preset.stages[benchmark].title}, task 1"

    def make() -> Panel:
        seen = results.observed(correlation_runs(results.preset, benchmark), "scatter")[0]
        weights = seen["raw" if raw else "tasks"]["0"]
        note = " before rescaling" if raw else ""
        return cloud(title, (x, _array(weights[x])), (y, _array(weights[y])), y_note=note)

    return panel_or_reason(title, make)


def shown_weights(results: Results, benchmark: Benchmark) -> str:
    """Return how many weights a scatter plot shows, for its caption."""
    try:
        seen = results.observed(correlation_runs(results.preset, benchmark), "scatter")[0]
    except NotMeasuredError:
        return "some"
    return f"{len(_array(seen['tasks']['0']['SOS'])):,}"


def _array(tensor: object) -> NDArray[np.float32]:
    return np.asarray(tensor, dtype=np.float32)
