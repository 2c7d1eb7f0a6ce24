"""The pages of the documentation as tests read and run them."""

import re
import warnings
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def page(name):
    return (DOCS / name).read_text(encoding="utf-8")


def blocks(text, language):
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def run_page(name, section=None):
    """Run a page's Python blocks as they stand, in their order, and return the names that they leave."""
    scope = {}
    with warnings.catch_warnings():
        for told in ("This guard holds nothing yet", "No strength was given"):  # which other tests let pass
            warnings.filterwarnings("error", message=told)
        for code in code_of(name, section):
            exec(compile(code, str(DOCS / name), "exec"), scope)
    return scope


def code_of(name, section=None):
    """Return the Python blocks of a page, or of one of its sections, each at its line: a traceback has the page's."""
    text = page(name)
    start, end = 0, len(text)
    if section is not None:
        start = text.index(f"\n## {section}\n")
        end = text.find("\n## ", start + 1)
        end = len(text) if end < 0 else end
    found = [
        block for block in re.finditer(r"```python\n(.*?)```", text, flags=re.DOTALL) if start < block.start() < end
    ]
    assert found, f"{name} has no code"
    return ["\n" * text.count("\n", 0, block.start(1)) + block[1] for block in found]
