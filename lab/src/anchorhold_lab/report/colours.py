"""A colour for every measure and every form, the same in every figure."""

import math
import re
from collections.abc import Iterable
from typing import Literal

import matplotlib as mpl
from matplotlib.colors import to_rgb

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
_SYNONYMS = {"fine": "fine-tuning", "kronecker": "Kronecker", "√Fisher": "sqrtFisher"}
"""How the names of measures and forms begin that have a colour by another name, or are written as the paper does."""
_OTHERS = ("#117733", "#cc4f00", "#443399", "#c08400", "#45a3dc", "#75751f", "#b0508a", "#00875f", "#222222", "#0072b2")
"""For what has no colour of its own, or one that is too near another's, on white."""
_APART = 18.0
"""How far colours have to be apart, in CIE 1976 L*a*b*, of which an eye can just tell 2."""


def colour(name: str) -> str:
    """Return the colour of a measure or a form: the place in matplotlib's cycle where each scheme has its own shade.

    A variant such as ``SI(2048)``, ``SI, all tasks``, ``AF:large`` or ``MAS-logits`` has its measure's colour, and
    what has none is grey.
    """
    family = re.split(r"[ ,(:-]", name)[0]
    known = name if name in _COLOURS else _SYNONYMS.get(family, family)
    return f"C{list(_COLOURS).index(known)}" if known in _COLOURS else _GREY


def told_apart(names: Iterable[str]) -> dict[str, str]:
    """Return a colour on white for each of some methods: its own, unless that is too near one that comes before it.

    Those that have none of their own, or share it with a variant, take the others that are furthest from all.
    """
    shades = {name: _on_white(name) for name in names}
    found: dict[str, str] = {}
    # In the order of the table above, so that who comes first in a figure changes nothing.
    for name, shade in sorted(shades.items(), key=lambda item: (_rank(item[1]), len(item[0]), item[0])):
        taken = [_lab(each) for each in found.values()]
        if shade is not None and all(math.dist(_lab(shade), other) > _APART for other in taken):
            found[name] = shade
    for name in sorted(shades):
        if name not in found:
            taken = [_lab(each) for each in found.values()]
            free = [each for each in _OTHERS if each not in found.values()] or list(_OTHERS)
            found[name] = max(free, key=lambda each: min((math.dist(_lab(each), t) for t in taken), default=math.inf))
    return {name: found[name] for name in shades}


def _rank(shade: str | None) -> int:
    """Return a colour's place in the table; what has none comes last."""
    return len(_COLOURS) if shade is None else cycle("light").index(shade)


def _on_white(name: str) -> str | None:
    place = colour(name)
    return None if place == _GREY else cycle("light")[int(place[1:])]


def _lab(shade: str) -> tuple[float, float, float]:
    """Return a colour's place in CIE 1976 L*a*b*, where distances are about what eyes see (sRGB, white of D65)."""
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in to_rgb(shade)]
    rows = ((0.4124, 0.3576, 0.1805, 0.9505), (0.2126, 0.7152, 0.0722, 1.0), (0.0193, 0.1192, 0.9505, 1.089))
    x, y, z = (math.cbrt(max(sum(a * b for a, b in zip(row[:3], linear, strict=True)) / row[3], 1e-6)) for row in rows)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def cycle(scheme: Scheme) -> list[str]:
    """Return every colour in one scheme, for matplotlib to look them up."""
    return [shades[scheme] for shades in _COLOURS.values()]


def ink() -> str:
    """Return the colour of text and axes in the scheme being drawn, for what matplotlib would draw in black."""
    return str(mpl.rcParams["text.color"])


def label(name: str) -> str:
    """Return a measure's name as the paper writes it."""
    return name.replace("sqrtFisher", "√Fisher")
