"""How figures look: one restrained matplotlib style, in a light and a dark scheme."""

from contextlib import AbstractContextManager

import matplotlib as mpl
from cycler import cycler

from anchorhold_lab.report.colours import Scheme, cycle

_INK: dict[Scheme, str] = {"light": "#1f2328", "dark": "#e4e2dd"}
_FAINT: dict[Scheme, str] = {"light": "#d9d7d2", "dark": "#3a3d42"}
_PAPER: dict[Scheme, str] = {"light": "#ffffff", "dark": "#16181b"}


def style(scheme: Scheme) -> AbstractContextManager[None]:
    """Return a context in which matplotlib draws in our style."""
    ink, faint = _INK[scheme], _FAINT[scheme]
    return mpl.rc_context(
        {
            "figure.facecolor": _PAPER[scheme],
            "figure.constrained_layout.use": True,
            "savefig.facecolor": "auto",
            "font.family": "sans-serif",
            "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, so that every machine draws the same
            "font.size": 9.0,
            "axes.titlesize": 9.5,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.labelsize": 9.0,
            "xtick.labelsize": 8.5,
            "ytick.labelsize": 8.5,
            "legend.fontsize": 8.5,
            "legend.frameon": False,
            "legend.handlelength": 1.4,
            "text.color": ink,
            "axes.facecolor": "none",
            "axes.edgecolor": ink,
            "axes.labelcolor": ink,
            "axes.titlecolor": ink,
            "axes.linewidth": 0.8,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.grid.axis": "y",
            "axes.axisbelow": True,
            "grid.color": faint,
            "grid.linewidth": 0.7,
            "xtick.color": ink,
            "ytick.color": ink,
            "xtick.major.size": 3.0,
            "ytick.major.size": 3.0,
            "lines.linewidth": 1.6,
            "lines.markersize": 4.5,
            "errorbar.capsize": 2.5,
            "hatch.linewidth": 0.6,
            "axes.prop_cycle": cycler(color=cycle(scheme)),
            "axes.formatter.limits": (-4, 5),
            "savefig.dpi": 200,
            "svg.fonttype": "path",  # the page looks the same whichever fonts its reader has
            "svg.hashsalt": "anchorhold",  # the same figure is the same file
        }
    )
