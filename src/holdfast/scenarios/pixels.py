"""From bytes to what a network sees."""

from torch import Tensor


def scaled(pixels: Tensor) -> Tensor:
    """Return pixels as floats from 0 to 1. The paper does nothing else to them, and so no augmentation."""
    return pixels.float() / 255
