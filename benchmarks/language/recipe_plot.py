"""The recipes as a picture: the English that each loses, over how much of the Python it learns."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from anchorhold.whole_files import whole_file
from anchorhold_lab.report.colours import colour
from anchorhold_lab.report.style import style
from benchmarks.language.frontier import Mean
from benchmarks.language.plot import SHADES
from benchmarks.language.recipe_report import lost, networks_of
from benchmarks.language.recipes import Looked

GAINS = [0.70 + 0.01 * step for step in range(31)]
SHOWN = {
    "fine-tuning": ("averaging alone", SHADES["averaged"], "-."),
    "EWC": ("EWC, averaged", colour("EWC"), "--"),
    "rotated": ("rotated EWC, averaged", colour("rotated"), "-"),
    "English": ("old text replayed, averaged", SHADES["replay"], "-."),
    "own text, distilled": ("own text distilled, averaged", "#7b5cd6", "-"),
    "own text, distilled, and rotated by it": ("own text distilled + rotated EWC, averaged", "#3fae2a", "-"),
}
"""The label, colour and line of what is drawn."""


def draw(looked: Sequence[Looked], path: Path) -> None:
    """Write the picture; on white paper, whatever the page's colours."""
    path.parent.mkdir(parents=True, exist_ok=True)
    looked = _of_the_same_networks(looked)
    with style("light"):
        figure = Figure(figsize=(6.4, 4.2))
        axes = figure.subplots()
        for name, (label, shade, line) in SHOWN.items():
            _line(axes, looked, name, label, shade, line)
        free = [lost(looked, each, "fine-tuning", 1.0, averaged=True) for each in networks_of(looked, "fine-tuning")]
        there = Mean.over([value for value in free if value is not None]).value
        axes.plot([1.0], [there], "X", markersize=9, color=colour("fine-tuning"), label="fine-tuning")
        axes.grid(visible=True, axis="both")
        axes.set_xlim(GAINS[0], 1.005)
        axes.set_ylim(bottom=0.0)
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_xlabel("Python learned, of what fine-tuning learns (better →)")
        axes.set_ylabel("English lost, bits a byte (↓ better)")
        axes.legend(loc="upper left", fontsize="small")
        with whole_file(path) as file:
            figure.savefig(file, format="png", dpi=170, metadata={"Software": None})


def _of_the_same_networks(looked: Sequence[Looked]) -> list[Looked]:
    """Return what was seen of networks that have all the recipes which are drawn and have been run."""
    whole = [set(networks) for name in SHOWN if (networks := networks_of(looked, name))]
    shared = set.intersection(*whole) if whole else set()
    return [found for found in looked if found.network in shared]


def _line(axes: Axes, looked: Sequence[Looked], name: str, label: str, shade: str, line: str) -> None:
    """Draw one recipe as far as all its networks reach, with its standard errors."""
    points = []
    for gain in GAINS:
        found = [lost(looked, network, name, gain, averaged=True) for network in networks_of(looked, name)]
        values = [value for value in found if value is not None]
        if values and len(values) == len(found):
            points.append((gain, Mean.over(values)))
    if points:
        gains, means = zip(*points, strict=True)
        values, errors = [mean.value for mean in means], [mean.error or 0.0 for mean in means]
        axes.plot(gains, values, linewidth=1.6, label=label, color=shade, linestyle=line)
        low, high = ([value + sign * error for value, error in zip(values, errors, strict=True)] for sign in (-1, 1))
        axes.fill_between(gains, low, high, color=shade, alpha=0.12, linewidth=0)
