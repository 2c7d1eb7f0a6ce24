"""Data sets that come with the package."""

from holdfast.data.digits import load_digits

__all__ = ["load_digits"]
