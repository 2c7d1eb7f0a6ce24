"""The page on the architecture leads to what it names."""

import re

import pytest

from tests.docs.pages import DOCS, page

LIBRARY = DOCS.parent / "src" / "anchorhold"


def rows(title):
    section = page("architecture.md").split(f"## {title}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", section, flags=re.MULTILINE)[1:]


def test_what_is_to_be_found_is_defined_where_the_table_says():
    found = rows("Where to find")
    assert len(found) > 15
    for what, file, name in found:
        text = (LIBRARY / file.strip("`")).read_text(encoding="utf-8")
        own = re.escape(name.strip("`"))
        assert re.search(rf"^ *(def|class) {own}\b|^{own}\b", text, flags=re.MULTILINE), (what, file, name)


@pytest.mark.parametrize("title", ["Four ideas", "Where something new goes", "One step, and the end of a task"])
def test_files_and_folders_are_there(title):
    section = page("architecture.md").split(f"## {title}\n")[1].split("\n## ")[0]
    paths = re.findall(r"`([a-z_0-9]+/[a-z_/0-9.]*)`", section)
    assert len(paths) > 2
    assert [path for path in paths if not (LIBRARY / path).exists()] == []


def test_the_page_can_be_read_at_once():
    words = re.findall(r"\w[\w./'`-]*", page("architecture.md"))
    assert len(words) <= 600
