"""The README's code is run as it stands, and the citation is the same twice."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("error:This guard holds nothing yet", "error:No strength was given")
def test_the_examples_run_in_the_order_of_the_page(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert blocks
    scope = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), scope)
    assert scope["guard"].tasks == 1
    assert "rotated" in capsys.readouterr().out


def test_what_it_links_to_is_there():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", README):
        assert (ROOT / target).exists(), target


def test_the_headings_that_it_links_to_are_there():
    for target, heading in re.findall(r"\]\((?!https?:)([^)#]+)#([^)]+)\)", README):
        titles = re.findall(r"^#+ (.*)$", (ROOT / target).read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert heading in {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}, heading


def test_the_citation_is_that_of_the_file():
    said = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f'title: "{re.search(r"@software.*?title = {(.*?)}", README, flags=re.DOTALL)[1]}"' in said
    assert f"version: {re.search(r'version = {(.*?)}', README)[1]}" in said
    assert re.search(r"arXiv:(\d+\.\d+)", README)[1] in said
