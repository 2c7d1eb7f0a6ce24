"""Warn of batch norms whose running statistics move while their weights are held.

They are buffers: no gradient reaches them and no penalty sees them, and still the outputs for what was consolidated
change with them (Lee et al. 2020, arXiv 2004.07507).
"""

from anchorhold.guard.monitor import Monitor, Step


class MovingStatistics(Monitor):
    """Look at the batch norms of a model before its steps."""

    name = "moving-statistics"

    def before_step(self, step: Step) -> None:
        """Warn once that statistics move."""
        core = self.core
        if not core.state.anchor or not core.state.strength or core.options.batch_norm is not None:
            return
        if not core.norms or core.runtime.warned.about(self.name):
            return
        moving = [name for name, norm in core.norms.items() if norm.training and norm.momentum != 0]
        if moving and any(core.largest_importance.values()):
            others = f" and {len(moving) - 1} more" if len(moving) > 1 else ""
            core.runtime.warned.once(self.name, _MOVING.format(names=f"{moving[0]!r}{others}"))


_MOVING = (
    "Batch norms in training mode: {names}. Their running mean and variance follow the new data, and with them go the "
    "outputs for what was consolidated: they are buffers, so no penalty holds them. Guard(..., "
    "batch_norm='freeze') keeps them as they were at the first consolidation, batch_norm='fold' holds the weights as "
    "the statistics scale them; or put these layers in eval mode after every model.train()."
)
