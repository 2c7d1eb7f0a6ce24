"""How far MAS and AF agree on one network, over many sets of samples: whether 0.90 and 0.96 are the same thing."""

from collections.abc import Sequence

from matplotlib.axes import Axes

from anchorhold_lab.analysis import estimate
from anchorhold_lab.report import Item, colour, ink
from studies.benzing2020 import authors_data
from studies.benzing2020.drawing.panels import Panel, figure_of, panel_or_reason
from studies.benzing2020.findings import Results
from studies.benzing2020.item import PaperItem
from studies.benzing2020.needed_runs import sample_set_runs

_CAPTION = (
    "MAS with AF after the first task, Pearson correlations over all weights: one network, {sets} random sets of "
    "{samples:,} training samples each, from the lowest to the highest. What varies is the samples alone."
)


def draw(results: Results) -> Sequence[Item]:
    """Return the figure."""
    preset = results.preset
    (spec,) = sample_set_runs(preset)
    caption = _CAPTION.format(sets=spec.probes[0].partition(":")[2], samples=spec.settings.samples)
    theirs = authors_data.WITH_MAS["P-MNIST"]["AF"][0] if preset.follows_the_paper else None
    if theirs is not None:
        caption += f" The line: {theirs:g}, printed once in the authors' notebook."
    title = f"{preset.stages['P-MNIST'].title}, task 1"

    def make() -> Panel:
        found = sorted(results.observed([spec], "sample-sets")[0]["tasks"][0]["correlations"])
        mean = estimate(found)

        def show(axes: Axes) -> None:
            axes.plot(range(1, len(found) + 1), found, marker="o", linestyle="none", color=colour("MAS"))
            if theirs is not None:
                axes.axhline(theirs, color=ink(), linewidth=0.9, linestyle=(0, (4, 3)))
            axes.set_xlabel("sets, in their order")
            axes.set_ylabel("correlation of MAS with AF")

        rows = [("mean", None, mean.mean, mean.error, len(found))]
        each = [("set", place, value, None, 1) for place, value in enumerate(found, start=1)]
        return Panel(title, show, (*rows, *each))

    return [figure_of("sample-sets", caption, [panel_or_reason(title, make)], columns=1, size=(5.0, 3.2))]


ITEM = PaperItem("sample-sets", "MAS and AF over many sets of samples", sample_set_runs, draw)
