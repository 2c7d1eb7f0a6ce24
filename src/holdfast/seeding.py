"""Many independent random streams from one seed."""

import hashlib

import torch


def derive_seed(seed: int, *purpose: str | int) -> int:
    """Return a seed for one purpose, such as ``derive_seed(7, "order", 3)``: unrelated to that of any other purpose."""
    text = "/".join(str(part) for part in (seed, *purpose))
    # torch takes 64 bits; staying below the sign bit keeps the number the same everywhere.
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator_for(seed: int, *purpose: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a random generator for one purpose."""
    return torch.Generator(device).manual_seed(derive_seed(seed, *purpose))
