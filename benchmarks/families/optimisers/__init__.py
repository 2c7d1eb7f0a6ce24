"""The families of optimisers."""

from benchmarks.families.family import Section
from benchmarks.families.optimisers import by_hand, of_packages, of_torch
from benchmarks.families.optimisers.judging import Trained, judge

__all__ = ["judge", "sections"]


def sections() -> list[Section[Trained]]:
    """Return all families of optimisers, in sections."""
    return [of_torch.torch_optimisers, by_hand.by_hand, of_packages.packages]
