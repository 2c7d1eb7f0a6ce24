"""Figure 2: MAS and the square root of the Fisher."""

from collections.abc import Sequence

from anchorhold_lab.experiments import Spec
from anchorhold_lab.report import Item
from studies.benzing2020 import authors_data
from studies.benzing2020.drawing.panels import (
    WITHOUT_WEIGHTS,
    authors_series,
    correlation_panel,
    figure_of,
    lacks_weights,
    scatter_panel,
    shown_weights,
)
from studies.benzing2020.findings import Results
from studies.benzing2020.item import PaperItem
from studies.benzing2020.needed_runs import correlation_runs
from studies.benzing2020.presets import BENCHMARKS, Benchmark, Preset

_CAPTION = (
    "MAS and the square root of the Fisher. Left: Pearson correlations of MAS with MASX, AF and √Fisher after each "
    "task, over all protected weights; bars are standard errors over {repetitions} repetitions."
)
_WEIGHTS = (
    " Right of it: MAS against AF and √Fisher in the first of them, one point a weight, {points} random weights; on a "
    "straight line through the origin, one measure is a multiple of the other."
)
_THEIRS = (
    " Stars: the authors' data, 10,000 weights of one run on CIFAR, and what is printed of one on MNIST's first task."
)


def runs(preset: Preset) -> list[Spec]:
    """Return the runs in which every measure watches SI."""
    return [spec for benchmark in BENCHMARKS for spec in correlation_runs(preset, benchmark)]


def draw(results: Results) -> Sequence[Item]:
    """Return the figure: a line of panels for each benchmark, CIFAR above MNIST as in the paper."""
    benchmarks: tuple[Benchmark, ...] = ("CIFAR", "P-MNIST")
    without = all(lacks_weights(results, benchmark) for benchmark in benchmarks)
    panels = [
        panel
        for benchmark in benchmarks
        for panel in (
            correlation_panel(
                results,
                benchmark,
                "MAS",
                ("MASX", "AF", "sqrtFisher"),
                called="MAS",
                theirs=authors_series(results, authors_data.WITH_MAS, benchmark),
            ),
            *(() if without else (scatter_panel(results, benchmark, name, "MAS") for name in ("AF", "sqrtFisher"))),
        )
    ]
    points = " and ".join(dict.fromkeys(shown_weights(results, benchmark) for benchmark in benchmarks))
    caption = _CAPTION.format(repetitions=results.preset.repetitions)
    caption += WITHOUT_WEIGHTS if without else _WEIGHTS.format(points=points)
    caption += _THEIRS * results.preset.follows_the_paper
    return [figure_of("figure2", caption, panels, columns=2 if without else 3)]


ITEM = PaperItem("figure2", "Figure 2: MAS and √Fisher", runs, draw)
