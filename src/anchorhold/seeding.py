"""Many independent random streams from one seed, and leaving those of others alone."""

import contextlib
import hashlib
import random
from collections.abc import Iterator

import numpy as np
import torch


def derive_seed(seed: int, *purpose: str | int) -> int:
    """Return a seed for one purpose, such as ``derive_seed(7, "order", 3)``: unrelated to that of any other purpose."""
    text = "/".join(str(part) for part in (seed, *purpose))
    # torch takes 64 bits; staying below the sign bit keeps the number the same everywhere.
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator_for(seed: int, *purpose: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a random generator for one purpose."""
    return torch.Generator(device).manual_seed(derive_seed(seed, *purpose))


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Put back the random states of Python, numpy and torch on the CPU.

    Loaders that shuffle and data that are augmented draw from them, and so does the training that goes on.
    """
    own, numpys = random.getstate(), np.random.get_state()  # noqa: NPY002 (it is the one that others draw from)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(own)
        np.random.set_state(numpys)  # noqa: NPY002
