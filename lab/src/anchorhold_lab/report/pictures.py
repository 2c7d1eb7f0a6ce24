"""Figures as files: drawn in each colour scheme, the same bytes for the same figure."""

import io
from dataclasses import dataclass

import numpy as np
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure as Canvas

from anchorhold_lab.report.colours import Scheme
from anchorhold_lab.report.elements import Figure
from anchorhold_lab.report.style import style

# Without the time and the version, the same figure is the same file.
_ANONYMOUS: dict[str, dict[str, str | None]] = {
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "png": {"Software": None},
}

# A cloud of more points than this is an image inside a vector file: it looks the same and opens at once.
_MANY_POINTS = 2000


@dataclass(frozen=True)
class Pictures:
    """One figure in every form: files by their ending, and what the page shows on a dark background."""

    files: dict[str, bytes]
    dark_svg: bytes

    @property
    def light_svg(self) -> bytes:
        """Return what the page shows on a light background."""
        return self.files["svg"]


def render(figure: Figure) -> Pictures:
    """Draw a figure once for each colour scheme."""
    light = drawn(figure, "light", ("svg", "png", "pdf"))
    dark = drawn(figure, "dark", ("svg",))
    return Pictures(files=light, dark_svg=dark["svg"])


def drawn(figure: Figure, scheme: Scheme, kinds: tuple[str, ...]) -> dict[str, bytes]:
    """Draw a figure in one colour scheme, as files by their endings."""
    with style(scheme):
        canvas = Canvas(figsize=figure.size)
        figure.draw(canvas)
        for points in canvas.findobj(PathCollection):
            if isinstance(points, PathCollection) and np.shape(points.get_offsets())[0] > _MANY_POINTS:
                points.set_rasterized(True)
        # Arranged once and not for each file again: they all look the same, and it is most of the work.
        canvas.draw_without_rendering()
        canvas.set_layout_engine("none")
        return {kind: _saved(canvas, kind) for kind in kinds}


def _saved(canvas: Canvas, kind: str) -> bytes:
    file = io.BytesIO()
    canvas.savefig(file, format=kind, metadata=_ANONYMOUS[kind])
    return file.getvalue()
