"""Noticing batch norms whose running statistics move while their weights are held.

They are buffers: no gradient reaches them and no penalty sees them, and still the outputs for what was consolidated
change with them (Lee et al. 2020, arXiv 2004.07507).
"""

from anchorhold.guard.memory import Memory
from anchorhold.guard.noticing.telling import tell


class MovingStatistics:
    """Looks at the batch norms of a model before its steps."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self._told = False

    def look(self) -> None:
        """Say once that statistics move, or that they did though they were to be frozen."""
        memory = self.memory
        if not memory.anchor:
            return
        for layer in memory.frozen_statistics.astray():
            layer.eval()
            tell(_ASTRAY.format(name=next(name for name, norm in memory.norms.items() if norm is layer)))
        if memory.batch_norm is not None or self._told or not memory.strength:
            return
        moving = [name for name, norm in memory.norms.items() if norm.training and norm.momentum != 0]
        if moving and any(memory.largest_importance.values()):
            self._told = True
            others = f" and {len(moving) - 1} more" if len(moving) > 1 else ""
            tell(_MOVING.format(names=f"{moving[0]!r}{others}"))


_MOVING = (
    "Batch norms in training mode: {names}. Their running mean and variance follow the new data, and with them go the "
    "outputs for what was consolidated: they are buffers, so no penalty holds them. Guard(..., "
    "batch_norm='freeze') keeps them as they were at the first consolidation, batch_norm='fold' holds the weights as "
    "the statistics scale them; or put these layers in eval mode after every model.train()."
)

_ASTRAY = (
    "The batch norm {name!r} was to keep its running statistics, and is in training mode: somebody has set its "
    ".training, past train() and eval(). It is back in eval mode, and what it has seen meanwhile is in its statistics. "
    "Call model.train() instead."
)
