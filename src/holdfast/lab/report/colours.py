"""A colour for every measure and every form, the same in every figure."""

import re
from typing import Literal

import matplotlib as mpl

Scheme = Literal["light", "dark"]

# After Okabe and Ito and after Tol, darkened on white and lightened on black until each stands out from its background;
# those that are shown together stay apart for colour-blind readers too.
_COLOURS: dict[str, dict[Scheme, str]] = {
    "SI": {"light": "#0072b2", "dark": "#4fa8e0"},
    "SOS": {"light": "#cc4f00", "dark": "#ff8a47"},
    "SIB": {"light": "#45a3dc", "dark": "#9bd8ff"},
    "SIU": {"light": "#00875f", "dark": "#2cb585"},
    "MAS": {"light": "#b0508a", "dark": "#e39ac8"},
    "AF": {"light": "#c08400", "dark": "#f0bd4a"},
    "sqrtFisher": {"light": "#443399", "dark": "#a99cf5"},
    "EWC": {"light": "#8a2252", "dark": "#e2799f"},
    "MASX": {"light": "#75751f", "dark": "#9c9c45"},
    "full gradient": {"light": "#c08400", "dark": "#f0bd4a"},
    "decrease in loss": {"light": "#989ca3", "dark": "#6a6d72"},
    # EWC in several forms, of which the diagonal is EWC as everybody knows it, and nothing in its place.
    "diagonal": {"light": "#8a2252", "dark": "#e2799f"},
    "rotated": {"light": "#0a7fa8", "dark": "#4cb8ea"},
    "Kronecker": {"light": "#b07d00", "dark": "#f2d060"},
    "fine-tuning": {"light": "#9a9a9a", "dark": "#5e6064"},
}
_GREY = "#808080"


def colour(name: str) -> str:
    """Return the colour of a measure or a form: the place in matplotlib's cycle where each scheme has its own shade.

    A variant such as ``SI(2048)``, ``SI, all tasks``, ``AF:large`` or ``MAS-logits`` has its measure's colour, and
    what has none is grey.
    """
    family = re.split(r"[ ,(:-]", name)[0]
    known = name if name in _COLOURS else family
    return f"C{list(_COLOURS).index(known)}" if known in _COLOURS else _GREY


def cycle(scheme: Scheme) -> list[str]:
    """Return every colour in one scheme, for matplotlib to look them up."""
    return [shades[scheme] for shades in _COLOURS.values()]


def ink() -> str:
    """Return the colour of text and axes in the scheme being drawn, for what matplotlib would draw in black."""
    return str(mpl.rcParams["text.color"])


def label(name: str) -> str:
    """Return a measure's name as the paper writes it."""
    return name.replace("sqrtFisher", "√Fisher")
