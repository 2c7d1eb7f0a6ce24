"""The pages of the documentation as tests read and run them."""

import re
import warnings
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def page(name):
    return (DOCS / name).read_text(encoding="utf-8")


def blocks(text, language):
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def run_page(name):
    """Run a page's Python blocks as they stand, in their order, and return the names that they leave."""
    text, scope = page(name), {}
    found = list(re.finditer(r"```python\n(.*?)```", text, flags=re.DOTALL))
    assert found, f"{name} has no code"
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="This guard holds nothing yet")  # which other tests let pass
        for block in found:
            above = "\n" * text.count("\n", 0, block.start(1))  # so that a traceback has the page's line numbers
            exec(compile(above + block[1], str(DOCS / name), "exec"), scope)
    return scope
