"""Figure 1: SI, its bias and the square root of the approximate Fisher (SOS)."""

from collections.abc import Mapping, Sequence

from holdfast.experiments import Spec
from holdfast.paper.clouds import scatter_panel
from holdfast.paper.item import PaperItem
from holdfast.paper.measured import Table as Measurements
from holdfast.paper.measured import control_correlations, correlations
from holdfast.paper.panels import Panel, figure_of, lines_over_tasks, panel_or_reason
from holdfast.paper.presets import BENCHMARKS, Benchmark, Preset
from holdfast.paper.results import Results
from holdfast.paper.runs import CONTROLS, control_runs, correlation_runs
from holdfast.paper.sums import sums_panel
from holdfast.report import Item

_CAPTION = (
    "SI, bias and square root of the approximate Fisher (SOS). Top left: importances summed over all weights, for SI, "
    "its unbiased version SIU, the path integral with the full gradient, and the decrease in loss that all three are "
    "meant to track. Top centre: Pearson correlations of SI, its bias SIB and its unbiased version SIU with SOS. Top "
    "right: the same on the other benchmark, with two controls of SI that are regularised less: without "
    "re-initialisation, and with c = 0. Bottom: SOS against SI, SIB and SIU, one point a weight; on a straight line "
    "through the origin, one measure is a multiple of the other. SIU is shown before rescaling, with its negative side."
)


def runs(preset: Preset) -> list[Spec]:
    """Return the runs in which every measure watches SI, and the controls."""
    watched = [spec for benchmark in BENCHMARKS for spec in correlation_runs(preset, benchmark)]
    return watched + [spec for control in CONTROLS for spec in control_runs(preset, control)]


def draw(results: Results) -> Sequence[Item]:
    """Return the figure."""
    panels = [
        sums_panel(results, "P-MNIST", task=0),
        *(_correlations(results, benchmark) for benchmark in BENCHMARKS),
        scatter_panel(results, "P-MNIST", "SOS", "SI"),
        scatter_panel(results, "P-MNIST", "SOS", "SIB"),
        scatter_panel(results, "P-MNIST", "SOS", "SIU", raw=True),
    ]
    return [figure_of("figure1", _CAPTION, panels, columns=3)]


def _correlations(results: Results, benchmark: Benchmark) -> Panel:
    title = results.preset.stages[benchmark].title

    def series() -> Mapping[str, Measurements]:
        found = {name: correlations(results, benchmark, name, "SOS") for name in ("SI", "SIB", "SIU")}
        if benchmark == "CIFAR":
            found |= {f"SI ({control})": control_correlations(results, control) for control in CONTROLS}
        return found

    return panel_or_reason(title, lambda: lines_over_tasks(title, series(), y_label="correlation with SOS", least=0.0))


ITEM = PaperItem("figure1", "Figure 1: SI, its bias and SOS", runs, draw)
