"""The frontier as a picture: English lost against Python gained, one line a method, one point a strength."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from anchorhold.whole_files import whole_file
from anchorhold_lab.report.colours import colour
from anchorhold_lab.report.style import style
from benchmarks.language.frontier import Point
from benchmarks.language.python import FINE_TUNE
from benchmarks.language.report import NAMES
from benchmarks.language.settings import UNGUARDED, WAYS, methods

MARKERS = {
    "L2": "s",
    "EWC": "o",
    "SOS": "D",
    "MAS": "^",
    "L2 of B": "v",
    "shorter": "1",
    "slower": "2",
    "averaged": "x",
    "replay": "+",
}
DASHES = {"EWC": "--", "L2": ":", "L2 of B": ":"} | dict.fromkeys(UNGUARDED, "-.")
SHADES = {
    "L2": "#1f3fd0",
    "L2 of B": "#7c93f0",
    "shorter": "#6a8a3a",
    "slower": "#00b3c7",
    "averaged": "#1f2328",
    "replay": "#a05a2c",
}
"""Of what has no colour in the laboratory, in all pictures of the study."""
LABELS = {
    FINE_TUNE: "fine-tuning",
    "L2": "L2 to the start",
    "L2 of B": "L2 to the start, B alone",
    "shorter": "fewer steps",
    "slower": "lower rate",
    "averaged": "averaged weights",
    "replay": "English replayed",
}
SHOWN = (0.35, 1.04)
"""The shares of Python that are of interest: below, hardly anything is learned or lost."""


def draw(points: Sequence[Point], path: Path) -> None:
    """Write the picture; on white paper, whatever the page's colours."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ways = [way for way in WAYS if any(point.way == way for point in points)]
    with style("light"):
        figure = Figure(figsize=(4.1 * max(len(ways), 1.5), 4.2))
        for axes, way in zip(figure.subplots(1, len(ways), squeeze=False).flat, ways, strict=True):
            _panel(axes, [point for point in points if point.way == way])
            axes.set_title(NAMES[way])
            axes.set_xlabel("English lost, bits a byte (← better)")
            axes.set_ylabel("Python gained, of fine-tuning's (better →)")
        # One legend for both panels, away from the lines.
        lines = [zip(*axes.get_legend_handles_labels()[::-1], strict=True) for axes in figure.axes]
        shown = {label: line for panel in lines for label, line in panel}
        figure.legend(shown.values(), shown.keys(), loc="outside upper center", ncols=5, fontsize="small")
        with whole_file(path) as file:
            figure.savefig(file, format="png", dpi=170, metadata={"Software": None})


def _panel(axes: Axes, here: Sequence[Point]) -> None:
    axes.grid(visible=True, axis="both")
    axes.axvline(0, color="#808080", linewidth=0.8)
    axes.set_ylim(*SHOWN)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    for name in (FINE_TUNE, *methods(here[0].way)):
        line = [(p.lost, p.share) for p in sorted(here, key=lambda p: p.strength) if p.measure == name and p.share]
        if not line:
            continue
        shape: dict[str, Any] = {
            "marker": "X",
            "markersize": 9,
            "linestyle": "none",
            "color": colour(FINE_TUNE),
            "zorder": 5,
        }
        if name != FINE_TUNE:
            shade = SHADES[name] if name in SHADES else colour(name)
            shape = {"marker": MARKERS[name], "color": shade, "linewidth": 1.3, "markersize": 5, "zorder": 3}
            shape["linestyle"] = DASHES.get(name, "-")
        axes.errorbar(
            [lost.value for lost, _ in line],
            [share.value for _, share in line],
            xerr=[lost.error or 0 for lost, _ in line],
            yerr=[share.error or 0 for _, share in line],
            elinewidth=0.8,
            label=LABELS.get(name, name),
            **shape,
        )
