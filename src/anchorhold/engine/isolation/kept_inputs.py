"""Models that write to their inputs, as those do that scale images in place: the batch stays as it was."""

from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from anchorhold.engine.batches import Forward


class KeptInputs:
    """Calls a model with copies of its inputs, unless its first call has left them alone.

    A batch is the user's, and it is gone through several times: the second pass has to see what the first one saw.
    """

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self._writes: bool | None = None

    def __call__(self, model: nn.Module, inputs: Any) -> Tensor:
        """Call the model."""
        if self._writes is False:
            return self._forward(model, inputs)
        copies = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, inputs)
        outputs = self._forward(model, copies)
        if self._writes is None:
            tensors = [leaf for leaf in tree_leaves(copies) if isinstance(leaf, Tensor) and not leaf.is_inference()]
            self._writes = any(leaf._version for leaf in tensors)
        return outputs
