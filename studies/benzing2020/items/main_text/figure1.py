"""Figure 1: SI, its bias and the square root of the approximate Fisher (SOS)."""

import contextlib
from collections.abc import Mapping, Sequence

from anchorhold_lab.experiments import Spec
from anchorhold_lab.report import Item
from studies.benzing2020 import authors_data
from studies.benzing2020.drawing.panels import (
    WITHOUT_WEIGHTS,
    Panel,
    authors_series,
    correlations_over_tasks,
    figure_of,
    lacks_weights,
    panel_or_reason,
    scatter_panel,
    shown_weights,
)
from studies.benzing2020.drawing.summed_importance import bars_of_sums
from studies.benzing2020.drawing.task_columns import Table as Measurements
from studies.benzing2020.drawing.task_columns import control_correlations, correlations
from studies.benzing2020.findings import NotMeasuredError, Results
from studies.benzing2020.item import PaperItem
from studies.benzing2020.needed_runs import CONTROLS, control_runs, correlation_runs
from studies.benzing2020.presets import BENCHMARKS, Benchmark, Preset

_CAPTION = (
    "SI, bias and square root of the approximate Fisher (SOS). Top left: importances summed over all weights, for SI, "
    "its unbiased version SIU, the path integral with the full gradient, and the decrease in loss that all three are "
    "meant to track. Top centre: Pearson correlations of "
    "SI, its bias SIB and its unbiased version SIU with SOS, over all protected weights. Top right: the same on the "
    "other benchmark, with two controls of SI that are regularised less: without re-initialisation and with {weaker}, "
    "and with c = 0. "
    "Bars are standard errors over {repetitions} repetitions."
)
_WEIGHTS = (
    " Bottom: SOS against SI, SIB and SIU in the first of them, one point a weight, {points} random weights; on a "
    "straight line through the origin, one measure is a multiple of the other. SIU is shown before rescaling, with its "
    "negative side."
)
_THEIRS = (
    " Stars: the authors' data. The sums are of one run; the correlations were read off their notebook's plot, five "
    "runs, where SI, SIB and SIU are divided by the path length and not clamped."
)


def runs(preset: Preset) -> list[Spec]:
    """Return the runs in which every measure watches SI, and the controls."""
    watched = [spec for benchmark in BENCHMARKS for spec in correlation_runs(preset, benchmark)]
    return watched + [spec for control in CONTROLS for spec in control_runs(preset, control)]


def draw(results: Results) -> Sequence[Item]:
    """Return the figure."""
    panels = [
        bars_of_sums(results, "P-MNIST", task=0),
        *(_correlations(results, benchmark) for benchmark in BENCHMARKS),
    ]
    without = lacks_weights(results, "P-MNIST")
    if not without:
        panels += [
            scatter_panel(results, "P-MNIST", "SOS", "SI"),
            scatter_panel(results, "P-MNIST", "SOS", "SIB"),
            scatter_panel(results, "P-MNIST", "SOS", "SIU", raw=True),
        ]
    usual, weaker = (results.preset.spec("CIFAR", "SI", variant).strength for variant in ("usual", "no re-init"))
    caption = _CAPTION.format(
        repetitions=results.preset.repetitions, weaker=f"c = {weaker:g} in place of {usual:g}"
    ) + (WITHOUT_WEIGHTS if without else _WEIGHTS.format(points=shown_weights(results, "P-MNIST")))
    caption += _THEIRS * results.preset.follows_the_paper
    for control in CONTROLS:
        if not results.finished(control_runs(results.preset, control)):
            caption += f" Not measured yet: the control {control}."
    return [figure_of("figure1", caption, panels, columns=3)]


def _correlations(results: Results, benchmark: Benchmark) -> Panel:
    title = results.preset.stages[benchmark].title

    def series() -> Mapping[str, Measurements]:
        found = {name: correlations(results, benchmark, name, "SOS") for name in ("SI", "SIB", "SIU")}
        for control in CONTROLS if benchmark == "CIFAR" else ():
            # A control that has not run yet must not hide what has.
            with contextlib.suppress(NotMeasuredError):
                found[f"SI ({control})"] = control_correlations(results, control)
        return found

    theirs = authors_series(results, authors_data.WITH_SOS, benchmark)
    return panel_or_reason(
        title, lambda: correlations_over_tasks(title, series(), y_label="correlation with SOS", theirs=theirs)
    )


ITEM = PaperItem("figure1", "Figure 1: SI, its bias and SOS", runs, draw)
