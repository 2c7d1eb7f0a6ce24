"""Figure 1 and the logits figure as the authors' own scripts have them, which is not as the paper's text does.

Their measures are not clamped where they are compared on CIFAR, the sums there come from runs with a learning rate of
0.004, SI's sum on MNIST's first task is a curve over its steps, and MAS on logits stands beside MASX on logits.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from anchorhold_lab.analysis.probes.curves import running_sums
from anchorhold_lab.experiments import Spec
from anchorhold_lab.report import Item, colour, label
from studies.benzing2020 import authors_data
from studies.benzing2020.drawing.panels import (
    Panel,
    authors_series,
    correlations_over_tasks,
    figure_of,
    lines_over_tasks,
    panel_or_reason,
)
from studies.benzing2020.drawing.task_columns import Table, sums_at_their_rate, unclamped_correlations
from studies.benzing2020.findings import Results
from studies.benzing2020.item import PaperItem
from studies.benzing2020.needed_runs import curve_runs, runs_at_their_rate, unclamped_runs
from studies.benzing2020.presets import BENCHMARKS, Benchmark, Preset

_FIGURE = (
    "Figure 1 as the authors' scripts have it. Left: what SI, SIU and the full gradient have added up to after so many "
    "steps of the first task, estimated from a random sample of them, mean of {repetitions} runs, and by how much the "
    "loss has fallen in the first of these. Centre: correlations with SOS, of measures that are divided by the path "
    "length and not clamped. Right: sums over all protected weights with a learning rate of {rate:g} in place of "
    "{usual:g}."
)
_LOGITS = (
    "The logits figure as the authors have it: Pearson correlations of MAS on logits with MASX on logits, AF and "
    "√Fisher after each task, {repetitions} runs."
)
_CURVES = ("SI", "SIU", "full gradient")


def runs(preset: Preset) -> list[Spec]:
    """Return the runs of all panels, the shortest first."""
    watched = [spec for benchmark in reversed(BENCHMARKS) for spec in unclamped_runs(preset, benchmark)]
    return [*curve_runs(preset), *watched, *runs_at_their_rate(preset)]


def draw(results: Results) -> Sequence[Item]:
    """Return both figures."""
    preset = results.preset
    usual = preset.spec("CIFAR", "SI").settings.learning_rate
    rate = preset.stages["CIFAR"].variants["rate of their sums"]["learning_rate"]
    caption = _FIGURE.format(repetitions=preset.repetitions, rate=rate, usual=usual)
    panels = [_curves(results), _with_sos(results), _sums(results)]
    logits = [_logits(results, benchmark) for benchmark in BENCHMARKS]
    return [
        figure_of("authors-figure1", caption, panels, columns=3),
        figure_of("authors-logits", _LOGITS.format(repetitions=preset.repetitions), logits, columns=2),
    ]


def _curves(results: Results) -> Panel:
    title = f"{results.preset.stages['P-MNIST'].title}, task 1"

    def make() -> Panel:
        entries = [run["tasks"][0] for run in results.observed(curve_runs(results.preset), "curves")]
        series: dict[str, tuple[list[int], list[float]]] = {}
        for name in _CURVES:
            places = running_sums(entries[0], name)[0]
            means = np.mean([running_sums(entry, name)[1] for entry in entries], axis=0)
            series[name] = places, means.tolist()
        # Steps are drawn by each run's own seed, so that the loss is known at other steps in each.
        first = entries[0]
        fallen = [first["loss"][0] - loss for loss in first["loss"]]
        series["decrease in loss"] = list(first["step"]), fallen

        def show(axes: Axes) -> None:
            for name, (places, values) in series.items():
                axes.plot(places, values, color=colour(name), label=label(name))
            axes.set_xlabel("steps")
            axes.set_ylabel("sum so far")
            axes.legend()

        rows = [
            (name, place, value, None, 1 if name == "decrease in loss" else len(entries))
            for name, (places, values) in series.items()
            for place, value in zip(places, values, strict=True)
        ]
        return Panel(title, show, tuple(rows))

    return panel_or_reason(title, make)


def _with_sos(results: Results) -> Panel:
    title = results.preset.stages["CIFAR"].title

    def series() -> Mapping[str, Table]:
        return {name: unclamped_correlations(results, "CIFAR", f"{name}:unclamped", "SOS") for name in _UNCLAMPED}

    theirs = {
        name: values
        for name, values in authors_series(results, authors_data.WITH_SOS, "CIFAR").items()
        if name in _UNCLAMPED
    }
    return panel_or_reason(
        title, lambda: correlations_over_tasks(title, series(), y_label="correlation with SOS", theirs=theirs)
    )


_UNCLAMPED = ("SI", "SIB", "SIU")


def _sums(results: Results) -> Panel:
    title = results.preset.stages["CIFAR"].title
    return panel_or_reason(
        title, lambda: lines_over_tasks(title, sums_at_their_rate(results), y_label="sum of importances, or of loss")
    )


def _logits(results: Results, benchmark: Benchmark) -> Panel:
    title = results.preset.stages[benchmark].title
    others = ("MASX-logits", "AF", "sqrtFisher")

    def make() -> Panel:
        found = {name: unclamped_correlations(results, benchmark, "MAS-logits", name) for name in others}
        return correlations_over_tasks(title, found, y_label="correlation with MAS on logits")

    return panel_or_reason(title, make)


ITEM = PaperItem("authors-figure1", "Figure 1 and the logits figure as the authors have them in scripts", runs, draw)
