"""What old code computed, and what is computed now."""

import os

import torch
from safetensors.torch import load_file

from tests.data.written_by_0_1_0 import make

FILES = make.HERE
BITS = os.environ.get("ANCHORHOLD_REGRESSION") == "bits"
"""Whether the same machine computed both, so that not one bit may differ."""


def recorded(folder, name):
    """Return the numbers of one case by what they are."""
    every = load_file(FILES / folder / "numbers.safetensors")
    return {key.removeprefix(f"{name}/"): value for key, value in every.items() if key.startswith(f"{name}/")}


def assert_same(found, expected, rtol=1e-9):
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if BITS:
            assert torch.equal(found[key], value), key
        else:
            torch.testing.assert_close(found[key], value, rtol=rtol, atol=rtol * float(value.abs().sum()), msg=key)
