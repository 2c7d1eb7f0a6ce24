"""Many tensors in a few words, where all of their numbers would fill the screen."""

from collections.abc import Iterable

from torch import Tensor

from anchorhold.tensors.storage import widest_dtype


def amount(tensors: Iterable[Tensor]) -> str:
    """Return how many parameters, of how many weights."""
    sizes = [tensor.numel() for tensor in tensors]
    return f"{len(sizes)} parameter{'' if len(sizes) == 1 else 's'} ({sum(sizes):,} weights)"


def spread(tensors: Iterable[Tensor]) -> str:
    """Return the mean and the largest of some importances, and how many are 0."""
    total, count, most, none = 0.0, 0, 0.0, 0
    for tensor in tensors:
        if tensor.numel():
            total += float(tensor.sum(dtype=widest_dtype(tensor.device)))
            count += tensor.numel()
            most = max(most, float(tensor.max()))
            none += int((tensor == 0).sum())
    if not count:
        return "of no weight"
    share = "all" if none == count else f"{100 * none / count:.2g} %"
    zero = f"; {share} are 0" if none else ""
    return f"{total / count:.3g} on average, {most:.3g} at most{zero}"


def in_bytes(count: float) -> str:
    """Return a number of bytes in the unit that suits it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    raise AssertionError
