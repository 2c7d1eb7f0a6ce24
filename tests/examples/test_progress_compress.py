"""The example of Progress & Compress keeps what it distils."""

import runpy
from pathlib import Path

import torch

EXAMPLE = Path(__file__).parents[2] / "examples" / "progress_compress.py"


def test_online_ewc_keeps_what_was_compressed():
    example = runpy.run_path(str(EXAMPLE))
    learn = example["learn"]
    kept, free = (learn(strength, tasks=3, epochs=4) for strength in (0.1, 0.0))
    assert kept > free + 0.1


def test_an_active_column_lends_features_and_teaches_them_nothing():
    example = runpy.run_path(str(EXAMPLE))
    base = example["Column"]()
    active = example["Column"](beside=base)
    assert not {id(p) for p in base.parameters()} & {id(p) for p in active.parameters()}
    x = torch.rand(5, 64)
    active(x).sum().backward()
    assert all(p.grad is None for p in base.parameters()) and all(p.grad is not None for p in active.parameters())
    before = active(x)
    with torch.no_grad():
        base.hidden.weight.add_(0.1)
    assert not torch.equal(active(x), before)
