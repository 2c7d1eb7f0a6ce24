"""Embeddings with ``max_norm``, which shorten rows of their table in every forward pass.

Torch does so in place, to the rows that are looked up and longer than that. They stay so for as long as importance is
measured, since what is measured is the model as it computes; then they are put back, bit for bit. Only rows that were
changed are remembered: a table may be large.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_lock = threading.Lock()
_changed: dict[int, list[tuple[Tensor, Tensor, Tensor]]] = {}
"""For each thread that measures: tables, rows of them that were shortened, and what these held before."""


@contextlib.contextmanager
def renormed_rows_put_back() -> Iterator[None]:
    """Put back, at the end, what embeddings with ``max_norm`` write to their tables in this thread."""
    thread = threading.get_ident()
    with _lock:
        if not _changed:
            _switch.install()
        outside = _changed.get(thread)
        _changed[thread] = []
    try:
        yield
    finally:
        with _lock:
            for table, rows, values in reversed(_changed[thread]):
                table[rows] = values
            if outside is None:
                del _changed[thread]
            else:
                _changed[thread] = outside
            if not _changed:
                _switch.remove()


def is_renormed(parameter: Tensor) -> bool:
    """Whether rows of a parameter are other ones, while this thread measures, than they were before."""
    changed = _changed.get(threading.get_ident(), [])
    return any(table.data_ptr() == parameter.data_ptr() for table, _, _ in changed)


class _Switch:
    """Stands where ``F.embedding`` and ``F.embedding_bag`` find the function that shortens rows, while any measures."""

    name = "_no_grad_embedding_renorm_"

    def __init__(self) -> None:
        self.original: Callable[..., Any] = torch.embedding_renorm_

    def install(self) -> None:
        self.original = getattr(F, self.name)
        setattr(F, self.name, self)

    def remove(self) -> None:
        setattr(F, self.name, self.original)

    def __call__(self, weight: Tensor, input: Tensor, max_norm: float, norm_type: float) -> None:
        changed = _changed.get(threading.get_ident())
        if changed is None:
            self.original(weight, input, max_norm, norm_type)
            return
        # By way of .data, since all of it will be as it was: a backward pass that is still to come need not know.
        table, rows = weight.data, input.unique()
        before = table[rows]
        torch.embedding_renorm_(table, input, max_norm, norm_type)
        shortened = (table[rows] != before).any(1)
        if bool(shortened.any()):
            changed.append((table, rows[shortened], before[shortened]))


_switch = _Switch()
