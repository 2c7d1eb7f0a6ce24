"""The library's modules import downwards: no cycle among modules, nor among packages."""

import pytest

from scripts.import_graph import cycles, drawn, imports_of, packages


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


def test_the_drawing_leaves_out_what_follows():
    text = drawn({"p.a": {"p.b", "p.c"}, "p.b": {"p.c"}, "p.c": set()})
    assert '"p.a" -> "p.b"' in text and '"p.b" -> "p.c"' in text and '"p.a" -> "p.c"' not in text
