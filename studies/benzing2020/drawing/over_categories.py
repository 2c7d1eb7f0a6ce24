"""A panel of accuracies side by side, where what is compared has names and no numbers."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from anchorhold_lab.analysis import Estimate
from anchorhold_lab.report import colour
from studies.benzing2020.drawing.panels import Panel

_WIDTH = 13
"""Characters in a line of a category's name."""
_APART = 0.16
"""How far the points of two series stand from each other within a category."""
_MARKS: tuple[dict[str, Any], ...] = (
    {"marker": "o"},
    {"marker": "s", "markerfacecolor": "none"},
    {"marker": "^"},
    {"marker": "D", "markerfacecolor": "none"},
)


def over_categories(
    title: str, series: Mapping[str, Mapping[str, Estimate]], order: Sequence[str], *, y_label: str
) -> Panel:
    """Return a point with its standard error for each category of each series that has one.

    Args:
        title: that of the panel.
        series: means by category, by the names that the legend has.
        order: the categories from left to right; those without a point are left out.
        y_label: what is shown.
    """
    categories = [category for category in order if any(category in points for points in series.values())]

    def draw(axes: Axes) -> None:
        shades = [colour(name) for name in ("SOS", "SI", "SIU", "MAS")]
        for number, (name, points) in enumerate(series.items()):
            beside = _APART * (number - (len(series) - 1) / 2)
            places = [categories.index(category) + beside for category in points]
            means = [found.mean for found in points.values()]
            errors = [0.0 if math.isnan(found.error) else found.error for found in points.values()]
            shade = shades[number % len(shades)]
            axes.plot(places, means, linestyle="none", color=shade, label=name, **_MARKS[number % len(_MARKS)])
            axes.errorbar(places, means, errors, fmt="none", ecolor=shade)
        wrapped = ["\n".join(textwrap.wrap(category, _WIDTH)) for category in categories]
        axes.set_xticks(range(len(categories)), wrapped)
        axes.set_xlim(-0.6, len(categories) - 0.4)
        axes.set_ylabel(y_label)
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + 0.3 * (high - low))  # room for the legend
        axes.legend(loc="upper center", ncols=2)

    rows = [
        (f"{name}, {category}", None, found.mean, found.error, found.count)
        for name, points in series.items()
        for category, found in points.items()
    ]
    return Panel(title, draw, tuple(rows))
