"""Appendix: the noise of a batch's gradient against the full gradient, through the training of one task."""

from collections.abc import Sequence

from matplotlib.axes import Axes

from anchorhold_lab.analysis import shares_at_least
from anchorhold_lab.report import Item, colour, ink
from studies.benzing2020.drawing.panels import Panel, figure_of, panel_or_reason
from studies.benzing2020.findings import Results
from studies.benzing2020.item import PaperItem
from studies.benzing2020.needed_runs import noise_runs

RATIOS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_SHOWN_POINTS = 240
"""The paper shows every twentieth step, for the eye's sake."""


def draw(results: Results) -> Sequence[Item]:
    """Return the figure."""
    settings = noise_runs(results.preset)[0].settings
    caption = (
        "Left: squared norms of the full gradient and of the noise, which is the distance of a batch's gradient from "
        "it, at single steps of training; for the eye's sake, some of those that were measured. Right: the share of "
        "all measured steps in which the ratio of noise to gradient is at least so large. One run on the first task, "
        f"{settings.epochs} epochs with batches of {settings.batch_size}."
    )
    panels = [
        panel_or_reason("Through training", lambda: _through_training(results)),
        panel_or_reason("Share of steps", lambda: _shares(results)),
    ]
    return [figure_of("gradient-noise", caption, panels, columns=2)]


def _through_training(results: Results) -> Panel:
    seen = results.observed(noise_runs(results.preset), "noise")[0]["tasks"][0]
    every = max(1, len(seen["step"]) // _SHOWN_POINTS)

    def show(axes: Axes) -> None:
        for name, legend, shade in (("noise", "noise", ink()), ("full", "full gradient", colour("full gradient"))):
            axes.scatter(seen["step"][::every], seen[name][::every], s=6, color=shade, label=legend)
        axes.set_yscale("log")
        axes.set_xlabel("step")
        axes.set_ylabel("squared norm")
        axes.legend()

    rows = [
        (name, int(step), float(value), None, 1)
        for name in ("noise", "full")
        for step, value in zip(seen["step"][::every], seen[name][::every], strict=True)
    ]
    return Panel("Through training", show, tuple(rows))


def _shares(results: Results) -> Panel:
    ratios = results.observed(noise_runs(results.preset), "noise")[0]["tasks"][0]["ratio"]
    shares = shares_at_least(ratios, RATIOS)

    def show(axes: Axes) -> None:
        axes.plot(RATIOS, shares, marker="o", color=ink())
        axes.set_xscale("log")
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("ratio of noise to full gradient")
        axes.set_ylabel("share of steps at or above it")

    rows = [("share of steps", ratio, share, None, 1) for ratio, share in zip(RATIOS, shares, strict=True)]
    return Panel("Share of steps", show, tuple(rows))


ITEM = PaperItem("gradient-noise", "Appendix: gradient noise", noise_runs, draw)
