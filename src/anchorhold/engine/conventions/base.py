"""Conventions: how families of models read their batches, registered by a function for each family."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import TreeSpec, tree_flatten

from anchorhold.engine.batches import Batch, read_batch

Completion = Callable[[Batch], Batch]
"""Turns a batch as a family of models gets it into one as it is measured."""

Convention = Callable[[nn.Module], Completion | None]
"""Returns how the batches of a model are completed, or ``None`` for a model of another family."""

_conventions: list[Convention] = []


def register_convention(convention: Convention) -> Convention:
    """Register how a family of models reads its batches, such as with labels that lie elsewhere.

    Every registered convention is asked about every model that is measured. Works as a decorator.
    """
    _conventions.append(convention)
    return convention


def registered_conventions() -> list[Convention]:
    """Return all conventions, in the order in which they complete a batch."""
    return list(_conventions)


class BatchReader:
    """Read one batch after another, and remember which inputs were seen to belong to no sample.

    A mask of ``[T, T]`` looks like T samples in a batch of T; it does not in a batch of another size. Batches of models
    that have a convention are completed by it.
    """

    def __init__(self, device: torch.device, model: nn.Module | None = None) -> None:
        self.device = device
        found = [] if model is None else [convention(model) for convention in _conventions]
        self._completions = [completion for completion in found if completion is not None]
        self._structure: TreeSpec | None = None
        self._shared: frozenset[int] = frozenset()

    def read(self, batch: Any) -> Batch:
        """Return a batch with all that is known of its inputs; one that another reader has read is complete."""
        if isinstance(batch, Batch):
            read = batch
        else:
            read = read_batch(batch, self.device)
            for complete in self._completions:
                read = complete(read)
        structure = tree_flatten(read.inputs)[1]
        if structure != self._structure:
            self._structure, self._shared = structure, frozenset()
        self._shared |= read.shared
        return replace(read, shared=self._shared)
