"""The frontier as a picture: English lost against Python gained, one line a measure, one point a strength."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.language.frontier import Point
from benchmarks.language.python import FINE_TUNE
from benchmarks.language.report import NAMES
from benchmarks.language.settings import UNGUARDED, WAYS, methods
from holdfast.files import whole_file
from holdfast.report.colours import colour
from holdfast.report.style import style

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
    "L2": "#808080",
    "L2 of B": "#b0a090",
    "shorter": "#6a8a3a",
    "slower": "#3a6a8a",
    "averaged": "#1f2328",
    "replay": "#a05a2c",
}


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
            axes.set_ylabel("Python gained, bits a byte (better →)")
        # One legend for both panels, away from the lines.
        shown = axes.get_legend_handles_labels()
        figure.legend(*shown, loc="outside upper center", ncols=5, fontsize="small")
        with whole_file(path) as file:
            figure.savefig(file, format="png", dpi=170, metadata={"Software": None})


def _panel(axes: Axes, here: Sequence[Point]) -> None:
    axes.grid(visible=True, axis="both")
    axes.axhline(0, color="#808080", linewidth=0.8)
    axes.axvline(0, color="#808080", linewidth=0.8)
    axes.plot([0], [0], marker="*", markersize=10, linestyle="none", color="#808080", label="before", zorder=4)
    for name in (FINE_TUNE, *methods(here[0].way)):
        line = sorted((p for p in here if p.measure == name), key=lambda point: point.strength)
        if not line:
            continue
        shape = {"marker": "X", "markersize": 9, "linestyle": "none", "color": "#1f2328", "zorder": 5}
        if name != FINE_TUNE:
            shade = SHADES[name] if name in SHADES else colour(name)
            shape = {"marker": MARKERS[name], "color": shade, "linewidth": 1.3, "markersize": 5, "zorder": 3}
            shape["linestyle"] = DASHES.get(name, "-")
        axes.errorbar(
            [point.lost.value for point in line],
            [point.gained.value for point in line],
            xerr=[point.lost.error or 0 for point in line],
            yerr=[point.gained.error or 0 for point in line],
            elinewidth=0.8,
            label={FINE_TUNE: "fine-tuning", "L2": "L2 to the start"}.get(name, name),
            **shape,
        )
