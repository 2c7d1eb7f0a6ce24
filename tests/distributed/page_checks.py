"""The code of the guide is run as it stands, by two processes."""

import contextlib
import re
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "distributed.md"


def page_runs_as_it_stands(here):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) >= 4
    torch.manual_seed(0)
    folder = here.folder / "page"
    folder.mkdir(exist_ok=True)
    scope = {"__name__": "page"}
    with contextlib.chdir(folder):
        for block in blocks:
            exec(compile(block, PAGE.name, "exec"), scope)
    assert scope["guard"].tasks == 1
    assert isinstance(scope["guard"].held.of("EWC")["0.weight"], DTensor)


CHECKS = [page_runs_as_it_stands]
