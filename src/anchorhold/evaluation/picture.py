"""The picture of a report, as SVG that is written by hand: no library of plots is needed."""

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from anchorhold.evaluation.report import MEAN, Estimate, Forgotten

# Okabe and Ito's colours, which colour-blind readers can tell apart.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_GREY, _LIGHT = "#595959", "#dddddd"
_PLOT, _ROW, _TOP, _BOTTOM = 420, 15, 58, 62
_CHARACTER = 7.2
"""About the width of a letter of 12 pixels."""


def picture(report: Forgotten) -> str:
    """Return an SVG: how the loss changed on each kind of text, a dot with its standard error for each model.

    Where there are several models and new text, a second part shows what each lost against what each gained, with the
    frontier as a line.
    """
    in_nats = all(row.change is not None for row in report.rows)
    unit = "nats a token" if in_nats else "bits a byte"
    groups: dict[tuple[str, str], list[tuple[str, Estimate]]] = {}
    for row in report.rows:
        found = row.change if in_nats else row.bits_change
        if found is not None and row.kind != MEAN:
            groups.setdefault((row.part, row.kind), []).append((row.model, found))
    colours = {name: _COLOURS[k % len(_COLOURS)] for k, name in enumerate(report.after)}
    labels = [kind if part in ("text", kind) else f"{kind} ({part})" for part, kind in groups]
    left = 24 + _CHARACTER * max(map(len, [*labels, ""]))
    legend = _ROW * len(colours) if len(colours) > 1 else 0
    top = _TOP + legend
    height = sum(_ROW * len(own) + 12 for own in groups.values())
    points = report.points()
    width = left + _PLOT + 30 + (_PLOT + 90 if points else 0)
    total = max(top + height + _BOTTOM, top + 260 + _BOTTOM if points else 0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{total:.0f}" font-family="sans-serif">',
        f'<rect width="{width:.0f}" height="{total:.0f}" fill="white"/>',
        _text(16, 24, f"What changed from {report.before}", size=15),
        _text(16, 42, f"Loss after less loss before, {unit}; lines: two standard errors either way", colour=_GREY),
    ]
    for k, (name, colour) in enumerate(colours.items() if legend else ()):
        parts += [_dot(22, 58 + _ROW * k, colour), _text(32, 62 + _ROW * k, name)]
    parts += _changes(groups, labels, colours, left, top, height)
    if points:
        parts += _frontier(report, points, colours, left + _PLOT + 100, top, total - top - _BOTTOM)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _changes(
    groups: "dict[tuple[str, str], list[tuple[str, Estimate]]]",
    labels: Sequence[str],
    colours: dict[str, str],
    left: float,
    top: float,
    height: float,
) -> list[str]:
    """Return the dots of all kinds over one axis, 0 in it."""
    reach = [
        e.value + sign * 2 * (e.error or 0.0) for own in groups.values() for _, e in own for sign in (-1, 1)
    ]  # fmt: skip
    low, high, ticks = _axis([0.0, *reach])

    def x(value: float) -> float:
        return left + _PLOT * (value - low) / (high - low)

    parts = []
    for tick in ticks:
        parts += [
            _line(x(tick), top, x(tick), top + height, _LIGHT),
            _text(x(tick), top + height + 16, _said(tick), "middle"),
        ]
    parts.append(_line(x(0), top - 4, x(0), top + height, "black"))
    parts.append(_text(x(0) - 8, top + height + 36, "← learned", "end", _GREY))
    parts.append(_text(x(0) + 8, top + height + 36, "forgotten →", "start", _GREY))
    y = top
    for label, own in zip(labels, groups.values(), strict=True):
        middle = y + 6 + _ROW * len(own) / 2
        parts.append(_text(left - 10, middle + 4, label, "end"))
        for k, (name, estimate) in enumerate(own):
            line = y + 6 + _ROW * (k + 0.5)
            if estimate.error is not None:
                ends = [x(estimate.value + sign * 2 * estimate.error) for sign in (-1, 1)]
                parts.append(_line(ends[0], line, ends[1], line, colours[name], 2))
            parts.append(_dot(x(estimate.value), line, colours[name], f"{name}, {label}: {estimate.signed}"))
        y += _ROW * len(own) + 12
        parts.append(_line(16, y, left + _PLOT, y, _LIGHT))
    return parts


def _frontier(
    report: Forgotten,
    points: dict[str, tuple[float, float]],
    colours: dict[str, str],
    left: float,
    top: float,
    height: float,
) -> list[str]:
    """Return the models as points, what is gained to the right and what is lost upwards, the frontier as a line."""
    x_low, x_high, x_ticks = _axis([0.0, *(gained for gained, _ in points.values())])
    y_low, y_high, y_ticks = _axis([0.0, *(lost for _, lost in points.values())])
    size = _PLOT - 40

    def at(point: tuple[float, float]) -> tuple[float, float]:
        gained, lost = point
        return (
            left + size * (gained - x_low) / (x_high - x_low),
            top + height - height * (lost - y_low) / (y_high - y_low),
        )

    parts = []
    for tick in x_ticks:
        x = at((tick, y_low))[0]
        parts += [_line(x, top, x, top + height, _LIGHT), _text(x, top + height + 16, _said(tick), "middle")]
    for tick in y_ticks:
        y = at((x_low, tick))[1]
        parts += [_line(left, y, left + size, y, _LIGHT), _text(left - 6, y + 4, _said(tick), "end")]
    parts.append(_text(left + size / 2, top + height + 36, "gained on new text →", "middle", _GREY))
    by_kl = all(report.row(name).kl is not None for name in points)
    what = "KL(old‖new), nats a token" if by_kl else "change in bits a byte"
    parts.append(_text(left - 30, top - 10, f"lost of the old: {what}", "start", _GREY))
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in sorted(at(points[name]) for name in report.frontier))
    parts.append(f'<polyline points="{line}" fill="none" stroke="{_GREY}" stroke-dasharray="4 3"/>')
    x, y = at((0.0, 0.0))
    parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="white" stroke="black"><title>before</title></circle>')
    for name, point in points.items():
        x, y = at(point)
        beyond = x > left + size - _CHARACTER * len(name)
        parts.append(_dot(x, y, colours[name], f"{name}: gained {point[0]:+.4f}, lost {point[1]:.4f}"))
        parts.append(_text(x - 8 if beyond else x + 8, y - 6, name, "end" if beyond else "start"))
    return parts


def _axis(values: Sequence[float]) -> tuple[float, float, list[float]]:
    """Return the ends of an axis and its ticks: 1, 2 or 5 times a power of ten apart, four to nine of them."""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    low, high = low - 0.04 * span, high + 0.04 * span
    power = 10.0 ** math.floor(math.log10(span))
    step = next(power * f for f in (0.1, 0.2, 0.5, 1, 2) if span / (power * f) <= 6)
    ticks = [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return low, high, ticks


def _said(tick: float) -> str:
    return f"{tick:g}".replace("-", "−") if abs(tick) > 1e-12 else "0"


def _text(x: float, y: float, text: str, anchor: str = "start", colour: str = "black", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" font-size="{size}">{escape(text)}</text>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: int = 1) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"/>'


def _dot(x: float, y: float, colour: str, title: str = "") -> str:
    inner = f"<title>{escape(title)}</title>" if title else ""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}">{inner}</circle>'
