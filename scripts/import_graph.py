"""Read which module of the library imports which, and draw the packages as a graph for the docs.

``python scripts/import_graph.py > docs/_static/packages.dot`` writes the graph in Graphviz's language. The tests use
:func:`imports_of` and :func:`cycles`.
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"


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


def drawn(graph: Mapping[str, set[str]]) -> str:
    """Return the graph in Graphviz's language, without what follows from other arrows."""
    lines = [f'  "{_short(a)}" -> "{_short(b)}";' for a in sorted(graph) for b in sorted(_direct(graph, a))]
    return "\n".join(["digraph packages {", "  rankdir=TB; node [shape=box, fontname=sans];", *lines, "}"])


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


def _direct(graph: Mapping[str, set[str]], name: str) -> set[str]:
    """Return what a package imports, less what others that it imports do."""
    own = graph[name]
    return {other for other in own if not any(other in _reached(graph, third) for third in own - {other})}


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
    sys.stdout.write(drawn(packages(imports_of())) + "\n")
