"""The coordinates in which importance is measured and the hold acts: each space is one file."""

from collections.abc import Mapping
from typing import Literal

from anchorhold.spaces.base import Space
from anchorhold.spaces.folded import Folded
from anchorhold.spaces.merged import Merged
from anchorhold.spaces.plain import Plain

SpaceName = Literal["weights", "merged"]
"""What a user asks for of adapters; ``batch_norm="fold"`` asks for the space of folded maps."""

SPACES: Mapping[str, type[Space]] = {kind.name: kind for kind in (Plain, Folded, Merged)}
"""The spaces, by name."""

__all__ = ["SPACES", "Folded", "Merged", "Plain", "Space", "SpaceName"]
