"""Reading the batches that users give: inputs, targets, how many samples, and any part of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from holdfast.errors import BatchError

Forward = Callable[[nn.Module, Any], Tensor]
"""How a model is called: ``forward(model, inputs)`` returns outputs of shape ``[N, ..., C]``."""


@dataclass(frozen=True)
class Batch:
    """Inputs of any structure, targets if there are any, and the number of samples in both."""

    inputs: Any
    targets: Tensor | None
    size: int

    def __getitem__(self, part: slice) -> "Batch":
        start, stop, _ = part.indices(self.size)
        cut = tree_map(lambda leaf: leaf[start:stop] if self.holds_samples(leaf) else leaf, self.inputs)
        return Batch(cut, None if self.targets is None else self.targets[start:stop], stop - start)

    def holds_samples(self, leaf: object) -> bool:
        """Whether a leaf of the inputs has one entry a sample."""
        return isinstance(leaf, Tensor) and leaf.ndim > 0 and len(leaf) == self.size


def read_batch(batch: Any, device: torch.device) -> Batch:
    """Return a batch given as inputs, ``(inputs,)``, ``(inputs, targets)`` or a mapping with ``"labels"``."""
    if isinstance(batch, Batch):
        return batch
    targets = None
    inputs = batch
    if isinstance(batch, Mapping):
        inputs = {key: value for key, value in batch.items() if key != "labels"}
        targets = batch.get("labels")
    elif isinstance(batch, tuple | list):
        if len(batch) not in (1, 2):
            raise BatchError(
                f"A batch of {len(batch)} parts; expected inputs, (inputs, targets) or a mapping with 'labels'. Group "
                "several inputs as ((a, b), targets) or {'name': tensor, ..., 'labels': targets}."
            )
        inputs, targets = batch[0], batch[1] if len(batch) == 2 else None
    if targets is not None and not isinstance(targets, Tensor):
        raise BatchError(f"Targets of type {type(targets).__name__}; expected a tensor with one entry a sample.")
    leaves = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.ndim > 0]
    if not leaves:
        raise BatchError(f"A batch of type {type(batch).__name__} without any tensor; expected inputs as tensors.")
    size = len(leaves[0])
    if size == 0:
        raise BatchError("A batch of 0 samples. Leave empty batches out.")
    if targets is not None and len(targets) != size:
        raise BatchError(f"{size} inputs but {len(targets)} targets; expected one target a sample.")
    moved = tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, inputs)
    return Batch(moved, None if targets is None else targets.to(device), size)


def call_model(model: nn.Module, inputs: Any) -> Tensor:
    """Call a model in the usual ways, and take the logits of an output that has them."""
    if isinstance(inputs, Mapping):
        outputs = model(**inputs)
    elif isinstance(inputs, tuple | list):
        outputs = model(*inputs)
    else:
        outputs = model(inputs)
    outputs = getattr(outputs, "logits", outputs)
    if not isinstance(outputs, Tensor):
        raise BatchError(
            f"The model returned a {type(outputs).__name__}; expected a tensor of outputs (or an object with .logits). "
            "Give forward=lambda model, inputs: ... that returns the tensor to measure."
        )
    return outputs
