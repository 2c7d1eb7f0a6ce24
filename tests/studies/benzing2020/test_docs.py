"""The page about this package knows all that it talks about."""

import re
from pathlib import Path

from studies.benzing2020 import ITEMS, PRESETS

PAGE = (Path(__file__).parents[3] / "docs" / "reproduce.md").read_text(encoding="utf-8")


def test_every_item_is_described_in_its_order():
    assert re.findall(r"^\| `([a-z0-9-]+)` \|", PAGE, flags=re.MULTILINE) == list(ITEMS)


def test_every_preset_is_shown():
    assert set(re.findall(r"--preset (\w+)", PAGE)) == set(PRESETS)


def test_the_code_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(compile(block, "reproduce.md", "exec"), {})
    assert (tmp_path / "report" / "index.html").exists()
