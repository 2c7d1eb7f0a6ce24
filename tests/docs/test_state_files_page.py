"""The page on state files: its tables are those of the schema, and its code reads a file without the library."""

import pytest

from scripts.state_tables import with_tables
from tests.docs.pages import page, run_page


def test_the_tables_are_those_of_the_schema():
    """``python scripts/state_tables.py`` writes them."""
    assert with_tables(page("guides/state-files.md")) == page("guides/state-files.md")


def test_a_table_without_a_place_is_refused():
    with pytest.raises(ValueError, match="no place for the table of values; expected"):
        with_tables("no marks")


def test_a_file_is_read_without_the_library(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope = run_page("guides/state-files.md")
    assert scope["values"]["tasks"] == 1
    assert float(scope["penalty"]) > 0
    assert scope["tensors"].keys() == scope["guard"].state_dict()["tensors"].keys()
