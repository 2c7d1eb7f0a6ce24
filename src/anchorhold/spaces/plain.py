"""The space of parameters as they are: each is its own coordinate, and its anchor is where it was."""

from typing import ClassVar

from anchorhold.spaces.base import Space


class Plain(Space):
    """Parameters that are measured and held as they are."""

    name: ClassVar[str] = "weights"
