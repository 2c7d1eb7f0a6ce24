"""The library's modules import downwards: no cycle among modules, nor among packages; and the picture shows that."""

import re

import pytest

from scripts.import_graph import PICTURE, cycles, direct, drawn, imports_of, library_packages, packages


@pytest.fixture(scope="module")
def graph():
    return imports_of()


def test_no_modules_import_each_other_in_a_circle(graph):
    assert len(graph) > 150
    assert cycles(graph) == []


def test_no_packages_do_either(graph):
    assert cycles(packages(graph)) == []


def test_a_circle_is_found(tmp_path):
    """Also one through a function's import and a module of a package; what is imported for types alone is none."""
    package = tmp_path / "made"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "a.py").write_text("from made import b")
    (package / "b.py").write_text("def f():\n    import made.inner.c")
    (package / "inner" / "__init__.py").touch()
    (package / "inner" / "c.py").write_text("from made.a import x")
    (package / "d.py").write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import made.e")
    (package / "e.py").write_text("import made.d")
    found = imports_of("made", tmp_path)
    assert cycles(found) == [["made.a", "made.b", "made.inner.c"]]
    assert found["made.d"] == set() and found["made.e"] == {"made.d"}


def test_what_follows_is_left_out():
    graph = {"a": {"b", "c"}, "b": {"c"}, "c": set()}
    assert direct(graph) == {"a": {"b"}, "b": {"c"}, "c": set()}


def test_each_box_of_a_drawing_lies_above_what_it_imports():
    graph = {"a": {"b", "c"}, "b": {"d"}, "c": {"e"}, "d": {"e"}, "e": set(), "f": set()}
    text = drawn(graph)
    boxes = re.findall(r'y="([\d.]+)"[^>]*font-family[^>]*>(\w+)</text>', text)
    heights = {name: float(y) for y, name in boxes}
    assert set(heights) == set(graph)
    assert all(heights[name] < heights[other] for name, others in graph.items() for other in others)
    assert text.count("marker-end") == sum(map(len, direct(graph).values())) == 5


def test_the_picture_in_the_docs_is_what_the_imports_are():
    assert PICTURE.read_text(encoding="utf-8") == drawn(library_packages()), "run python scripts/import_graph.py"


def test_the_picture_shows_every_package():
    shown = {name.strip() for box in library_packages() for name in box.split(",")}
    assert {"guard", "forms", "measures", "holds", "engine", "errors"} <= shown
    assert shown == {name.split(".")[1] for name in imports_of() if "." in name} - {"__main__", "public"}
