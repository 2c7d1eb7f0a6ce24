"""Batch norms that keep their running statistics, whatever mode the model is put in.

In eval mode a batch norm normalises with its running mean and variance, and leaves them alone. So nothing has to be
done but to keep it there: its ``train()`` is replaced, on the layer itself, since ``model.train()`` calls that of every
layer. A compiled model looks at the mode of its layers at every call, and not at hooks that came after it was compiled;
and what lies on a layer is copied and pickled with it.
"""

from collections.abc import Iterable, Mapping

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from anchorhold.errors import warn
from anchorhold.tensors.names import named_modules


def with_statistics(model: nn.Module) -> dict[str, BatchNorm]:
    """Return the batch norms of any kind that have running statistics, by name."""
    every = named_modules(model)
    return {name: layer for name, layer in every if isinstance(layer, BatchNorm) and layer.running_mean is not None}


def is_fresh(layer: BatchNorm) -> bool:
    """Whether a batch norm has seen no data yet, as that of a branch which only a later task uses."""
    mean, variance = layer.running_mean, layer.running_var
    assert mean is not None and variance is not None
    return not bool(mean.any()) and bool((variance == 1).all())


class FrozenStatistics:
    """The batch norms that one guard keeps in eval mode."""

    def __init__(self) -> None:
        self._layers: list[BatchNorm] = []

    def keep(self, layers: Iterable[BatchNorm], *, mode: bool) -> None:
        """Keep these in eval mode from now on, and let others go back to the mode of the model."""
        wanted = list(layers)
        for layer in self._layers:
            stand_in = vars(layer).get("train")
            if layer in wanted or not isinstance(stand_in, _StaysInEval):
                continue
            stand_in.keepers -= 1
            if stand_in.keepers <= 0:  # another guard may keep it too
                del vars(layer)["train"]
                layer.train(mode)
        for layer in wanted:
            if layer in self._layers:
                continue
            stand_in = vars(layer).get("train")
            if not isinstance(stand_in, _StaysInEval):
                stand_in = vars(layer)["train"] = _StaysInEval(layer)
            stand_in.keepers += 1
            layer.eval()
        self._layers = wanted

    def restore(self, names: Mapping[str, BatchNorm]) -> None:
        """Put those back in eval mode that are not, and warn: setting ``layer.training`` goes past ``train()``."""
        for layer in self._layers:
            if layer.training:
                layer.eval()
                warn(_IN_TRAINING_MODE.format(name=next(name for name, norm in names.items() if norm is layer)))


class _StaysInEval:
    """Stands in for ``layer.train``."""

    def __init__(self, layer: BatchNorm) -> None:
        self.layer = layer
        self.keepers = 0
        """How many guards keep it in eval mode."""

    def __call__(self, mode: bool = True) -> BatchNorm:
        type(self.layer).train(self.layer, False)
        return self.layer


_IN_TRAINING_MODE = (
    "The batch norm {name!r} was to keep its running statistics, and is in training mode: somebody has set its "
    ".training, past train() and eval(). It is back in eval mode, and what it has seen meanwhile is in its statistics. "
    "Call model.train() instead."
)
