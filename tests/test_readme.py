"""The README's code is run as it stands, and its table names every measure."""

import re
from pathlib import Path

import pytest

import holdfast

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("error:This guard holds nothing yet", "error:No strength was given")
def test_the_examples_run_in_the_order_of_the_page():
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(blocks) >= 3
    scope = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), scope)
    assert scope["guard"].tasks == 0  # the last block's guard has watched a task and not yet ended it


def test_the_table_names_every_measure_and_its_class():
    table = README[README.index("## The measures") : README.index("`holdfast.measures()` lists them")]
    for name, measure in holdfast.measures().items():
        if name not in ("MASX-logits", "posterior-scaled"):  # variants of a row
            assert re.search(rf"\b{re.escape(name)}\b", table), name
        assert f"{type(measure).__name__}(" in table
