"""Whether a tensor holds numbers alone."""

from torch import Tensor

from anchorhold.tensors.sharding import local


def is_finite(tensor: Tensor) -> bool:
    """Whether this process's part of a tensor holds neither NaN nor infinity."""
    own = local(tensor.detach())
    # The sum, five times as fast, is not finite if any element is not; the reverse is rare, and then looked into.
    return bool(own.sum().isfinite()) or bool(own.isfinite().all())
