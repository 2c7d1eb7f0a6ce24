"""The page about memory says what a guard really holds."""

import re

import pytest
import torch
from torch import nn

import holdfast
from tests.docs.pages import page, run_page

ROWS = re.findall(
    r"^\| ([\w, -]+) \| (\d+) \| (\d+) \| (\d+) / (\d+) \|$", page("guides/memory.md"), flags=re.MULTILINE
)


def held(measure, weights, state_dtype):
    """Return the bytes a parameter of a guard's state in the middle of a task, and of its working buffers."""
    model = nn.Linear(30, 5).to(weights)
    optimizer = torch.optim.Adam(model.parameters())
    guard = holdfast.Consolidator(model, measure, state_dtype=state_dtype)
    guard.attach(optimizer)
    x, y = torch.randn(8, 30, dtype=weights), torch.randint(0, 5, (8,))
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        guard.observe_independent(nn.functional.cross_entropy(model(x), y))
        optimizer.step()
        if not guard.tasks:
            guard.consolidate([(x, y)])
    state = guard.state_dict()["tensors"].values()
    buffers = [*guard._watcher._before.values(), *guard._watcher._held_back.values()]
    count = sum(parameter.numel() for parameter in model.parameters())
    return tuple(sum(tensor.nbytes for tensor in tensors) / count for tensors in (state, buffers))


def test_its_code_runs():
    run_page("guides/memory.md")


def test_every_measure_has_its_row():
    assert sorted(name for row in ROWS for name in row[0].split(", ")) == sorted(holdfast.measures())


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_bytes_are_those_of_real_guards(row, weights):
    names, usual, small, *buffers = row
    working = int(buffers[weights is torch.bfloat16])
    for name in names.split(", "):
        assert held(name, weights, None) == (int(usual), working)
        assert held(name, weights, torch.bfloat16) == (int(small), working)
