"""A mark of the weights that a state in the middle of a task was saved with: a few numbers of a few parameters.

A guard's file has no weights. ``state/schema.py`` writes the mark, and by it ``stepping/watcher.py`` sees before the
first step after it was loaded whether the model goes on from the weights of then.
"""

import torch
from torch.optim import Optimizer

from anchorhold.errors import warn
from anchorhold.guard.core import Core
from anchorhold.tensors.sharding import is_sharded, local

PARAMETERS, ELEMENTS = 16, 16
"""So many are looked at, and so many of each one's elements."""
ALIKE = 1e-5
"""How far weights may be from those of then, by the length of those: an optimizer that keeps its weights in another
place while they are saved brings them back but for the last digits."""
ALIKE_ROUNDED = 4e-3
"""The same of weights in 16 bits, to which they may have been rounded since."""

Mark = dict[str, list[float]]
"""Elements by parameter."""


@torch.no_grad()
def mark_of(core: Core) -> Mark:
    """Return the mark of a model's weights in the middle of a task; nothing at its beginning, or of sharded ones.

    One that came with a state stays until it was compared with the model's weights.
    """
    if core.task.watched is not None:  # which is refused at other weights than it was seen at
        return {}
    if core.task.mark:
        return dict(core.task.mark)
    stepped = [(name, p) for name, p in core.runtime.parameters.items() if name in core.task.steps]
    if any(is_sharded(parameter) or parameter.is_meta for _, parameter in stepped):
        return {}
    apart = max(1, len(stepped) // PARAMETERS)
    return {name: _elements(parameter) for name, parameter in stepped[::apart][:PARAMETERS]}


@torch.no_grad()
def warn_of_other_weights(core: Core, optimizer: Optimizer) -> None:
    """Say so, once, if a state of the middle of a task was loaded and the model's weights are not those of then.

    A schedule-free optimizer has two places for its weights, and a state may have been saved in either.
    """
    mark, core.task.mark = core.task.mark, {}
    if any("train_mode" in group for group in optimizer.param_groups):
        return
    here = {name: parameter for name, parameter in core.runtime.parameters.items() if name in mark}
    if not here or any(is_sharded(parameter) for parameter in here.values()):
        return
    then = torch.tensor([number for name in here for number in mark[name]], dtype=torch.float64)
    now = torch.tensor([number for p in here.values() for number in _elements(p)], dtype=torch.float64)
    if now.shape != then.shape:
        return  # of another shape, which is refused elsewhere, or taken for a new parameter
    away, size = float((now - then).norm()), float(then.norm())
    rounded = any(parameter.element_size() < 4 for parameter in here.values())
    if away > (ALIKE_ROUNDED if rounded else ALIKE) * size:
        share = f"{away / size:.2g} times their size" if size else "all of their size"
        warn(
            f"The guard's state was saved after {core.task.most_steps} steps of a task, and the model's weights are "
            f"not those of then: they are {share} away. Load the model's checkpoint of that moment too: a guard's "
            "state has no weights, and what it goes on with belongs to those. If they were moved on purpose, pay no "
            "heed."
        )


def _elements(parameter: torch.Tensor) -> list[float]:
    own = local(parameter.detach()).reshape(-1)
    found: list[float] = own[:: max(1, own.numel() // ELEMENTS)][:ELEMENTS].double().tolist()
    return found
