"""Read which module of the library imports which, and draw the packages as a graph for the docs.

``python scripts/import_graph.py`` writes the picture of ``docs/architecture.md``. The tests use :func:`imports_of` and
:func:`cycles`, and compare the picture with what the imports are.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PICTURE = ROOT / "docs" / "_static" / "packages.svg"
NOT_DRAWN = {"anchorhold", "anchorhold.__main__", "anchorhold.public"}
"""What only names the rest: ``anchorhold.…`` and ``python -m anchorhold``."""


def imports_of(package: str = "anchorhold", source: Path = SOURCE) -> dict[str, set[str]]:
    """Return the modules that each module of a package imports, also within functions, but not for types alone."""
    files = {_module_name(path, source): path for path in sorted((source / package).rglob("*.py"))}
    return {name: set(_imported(path, files)) - {name} for name, path in files.items()}


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one module (Tarjan 1972)."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = lowest[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in stack:
                lowest[name] = min(lowest[name], index[other])
        if lowest[name] == index[name]:
            component = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(component) > 1:
                found.append(sorted(component))

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return found


def packages(graph: Mapping[str, set[str]], depth: int = 2) -> dict[str, set[str]]:
    """Return the same graph with the modules of a package as one."""
    found: dict[str, set[str]] = {}
    for name, others in graph.items():
        own = ".".join(name.split(".")[:depth])
        found.setdefault(own, set()).update(".".join(other.split(".")[:depth]) for other in others)
    return {name: others - {name} for name, others in found.items()}


def library_packages() -> dict[str, set[str]]:
    """Return what the picture shows: the packages, and as one box the single files that import none of them."""
    graph = packages(imports_of())
    lowest = {name for name in graph if not (SOURCE / name.replace(".", "/")).is_dir()} - NOT_DRAWN
    while above := {name for name in lowest if graph[name] - lowest}:
        lowest -= above
    box = ", ".join(sorted(map(_short, lowest)))
    names = {name: box if name in lowest else _short(name) for name in graph.keys() - NOT_DRAWN}
    found: dict[str, set[str]] = {name: set() for name in names.values()}
    for name, own in names.items():
        found[own] |= {names[other] for other in graph[name] - NOT_DRAWN} - {own}
    return found


def direct(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the graph without what follows from other arrows."""
    return {
        name: {other for other in own if not any(other in _reached(graph, third) for third in own - {other})}
        for name, own in graph.items()
    }


def drawn(graph: Mapping[str, set[str]]) -> str:
    """Return a graph without cycles as a picture in SVG: each package above all that it imports.

    Arrows that cross several rows take a place in each, and places within a row are sorted by those of the neighbours
    (Sugiyama, Tagawa and Toda 1981).
    """
    arrows = direct(graph)
    rows, ways = _rows(arrows)
    centres = _centres(rows)
    width, height = 2 * MARGIN + WIDTH, 2 * MARGIN + ROW * (len(rows) - 1) + BOX
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        "<title>The packages of anchorhold: each imports only what lies below it</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">',
        '<path d="M0 0 8 4 0 8z" fill="#5b6b7b"/></marker></defs>',
        f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
    ]
    lines += [_curve([centres[place] for place in way]) for way in ways]
    for name in sorted(graph):
        x, y = centres[name]
        wide = _box_width(name)
        lines.append(
            f'<rect x="{x - wide / 2:g}" y="{y - BOX / 2:g}" width="{wide:g}" height="{BOX}" rx="5" fill="#eaf1f8" '
            f'stroke="#3d6a94"/><text x="{x:g}" y="{y + 5:g}" text-anchor="middle" font-family="monospace" '
            f'font-size="14" fill="#16293b">{name}</text>'
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


MARGIN, WIDTH, ROW, BOX = 20, 640, 66, 30
Place = str | tuple[str, str, int]
"""A package, or where an arrow from one to another crosses a row."""


def _rows(arrows: Mapping[str, set[str]]) -> tuple[list[list[Place]], list[list[Place]]]:
    """Return the places in each row, from the top, and the places that each arrow goes through."""
    levels: dict[str, int] = {}

    def level(name: str) -> int:
        if name not in levels:
            levels[name] = 1 + max(map(level, arrows[name]), default=-1)
        return levels[name]

    top = max(map(level, sorted(arrows)))
    rows: list[list[Place]] = [[name for name in sorted(arrows) if levels[name] == top - row] for row in range(top + 1)]
    ways: list[list[Place]] = []
    for name in sorted(arrows):
        for other in sorted(arrows[name]):
            way: list[Place] = [name]
            for row in range(top - levels[name] + 1, top - levels[other]):
                way.append((name, other, row))
                rows[row].append(way[-1])
            ways.append([*way, other])
    above: dict[Place, list[Place]] = {place: [] for row in rows for place in row}
    below: dict[Place, list[Place]] = {place: [] for row in rows for place in row}
    for way in ways:
        for upper, lower in pairwise(way):
            above[lower].append(upper)
            below[upper].append(lower)
    for _ in range(12):
        for order, near in ((rows[1:], above), (rows[-2::-1], below)):
            _sort_by_neighbours(rows, order, near)
    return rows, ways


def _sort_by_neighbours(
    rows: Sequence[list[Place]], order: Sequence[list[Place]], near: Mapping[Place, Sequence[Place]]
) -> None:
    """Sort the places of each row by the mean place of their neighbours in the row before."""
    at = {place: (i + 0.5) / len(row) for row in rows for i, place in enumerate(row)}
    for row in order:
        row.sort(key=lambda p: (sum(at[q] for q in near[p]) / len(near[p]) if near[p] else at[p], str(p)))
        at |= {place: (i + 0.5) / len(row) for i, place in enumerate(row)}


def _centres(rows: Sequence[Sequence[Place]]) -> dict[Place, tuple[float, float]]:
    """Return where the middle of each place lies: with equal gaps within a row, in the middle of the picture."""
    found: dict[Place, tuple[float, float]] = {}
    for i, row in enumerate(rows):
        widths = [_box_width(place) if isinstance(place, str) else 0 for place in row]
        gap = (WIDTH - sum(widths)) / (len(row) + 1)
        x = float(MARGIN)
        for place, wide in zip(row, widths, strict=True):
            found[place] = round(x + gap + wide / 2, 1), MARGIN + BOX / 2 + ROW * i
            x += gap + wide
    return found


def _curve(points: Sequence[tuple[float, float]]) -> str:
    """Return an arrow from the lower edge of a box, through some points, to the upper edge of another."""
    (x, y), *rest = points
    y += BOX / 2
    way = [f"M{x:g} {y:g}"]
    for i, (to_x, middle) in enumerate(rest):
        to_y = middle - (BOX / 2 + 1 if i == len(rest) - 1 else 0)
        bend = (to_y - y) / 2
        way.append(f"C{x:g} {y + bend:g} {to_x:g} {to_y - bend:g} {to_x:g} {to_y:g}")
        x, y = to_x, to_y
    return f'<path d="{" ".join(way)}" fill="none" stroke="#5b6b7b" stroke-width="1.3" marker-end="url(#tip)"/>'


def _box_width(name: str) -> float:
    return 8.6 * len(name) + 20


def _module_name(path: Path, source: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(path: Path, files: Mapping[str, Path]) -> Iterator[str]:
    for node in _at_run_time(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in files)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            # What is imported from a package may be a module in it; else the package itself is meant.
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in files or node.module in files:
                    yield inner if inner in files else node.module


def _at_run_time(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from _at_run_time(node)


def _reached(graph: Mapping[str, set[str]], name: str) -> set[str]:
    found: set[str] = set()
    waiting = [name]
    while waiting:
        for other in graph.get(waiting.pop(), set()) - found:
            found.add(other)
            waiting.append(other)
    return found


def _short(name: str) -> str:
    return name.removeprefix("anchorhold.")


if __name__ == "__main__":
    PICTURE.write_text(drawn(library_packages()), encoding="utf-8")
