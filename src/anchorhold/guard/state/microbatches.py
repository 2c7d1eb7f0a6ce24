"""Writing and reading the gradients that ``gradients.microbatches`` has seen since the last consolidation.

The values have the key ``watched``. The tensors, ``watched/PARAMETER#NUMBER.mean`` and ``.spread``, are numbered by the
means over samples that the measures ask for.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from anchorhold.errors import StateError, warn
from anchorhold.guard.core import Core
from anchorhold.guard.microbatches.gradient_sums import GradientSums, Progress, Watched, weights_sum
from anchorhold.guard.microbatches.support import asked_of
from anchorhold.guard.task_classes import Classes
from anchorhold.tensors.finite import is_finite
from anchorhold.tensors.sharding import is_sharded, like_parameter, local, wrap_local
from anchorhold.tensors.storage import running_dtype

WATCHED = "watched"
PARTS = ("mean", "spread")


def can_be_kept(core: Core) -> bool:
    """Return whether a state can have them; if several processes draw labels, each is at a place of its own."""
    return core.runtime.ranks.size == 1 or all(asked.seed is None for asked in asked_of(core.state))


def watched_values(core: Core) -> dict[str, Any] | None:
    """Return the plain values of what was seen; ``None`` where nothing was."""
    watched = core.task.watched
    if watched is None or not can_be_kept(core):
        return None
    rows = []
    for asked in asked_of(core.state):
        sums = watched.sums.get(asked, GradientSums())
        at = watched.progress.get(asked, Progress(0, None))
        draws = None if at.draws is None else bytes(at.draws.cpu().tolist()).hex()
        rows.append([sums.batches, sums.samples, sums.counted, sums.outputs, at.seen, draws])
    # The checksum is of this process's shards, and another number of processes has other shards.
    weights = None if any(map(is_sharded, core.runtime.model.parameters())) else watched.weights
    classes = watched.classes
    return {"weights": weights, "labels": sorted(classes.labels), "samples": classes.samples, "asked": rows}


def watched_tensors(core: Core) -> dict[str, Tensor]:
    """Return the tensors by ``NAME#NUMBER.mean`` and ``NAME#NUMBER.spread``, sharded as the parameters are."""
    watched = core.task.watched
    if watched is None or not can_be_kept(core):
        return {}
    found = {}
    for number, asked in enumerate(asked_of(core.state)):
        sums = watched.sums.get(asked, GradientSums())
        for part, kept in zip(PARTS, (sums.mean, sums.spread), strict=True):
            for name, own in kept.items():
                found[f"{name}#{number}.{part}"] = wrap_local(own, core.measured[name])
    return found


def watched_of(
    core: Core, values: Any, tensors: Mapping[str, Tensor], measured: Mapping[str, Tensor]
) -> Watched | None:
    """Return what was seen. Raise StateError if it is not whole; tensors are named as in :func:`watched_tensors`."""
    if values is None and not tensors:
        return None
    try:
        rows, labels, samples, weights = (values[key] for key in ("asked", "labels", "samples", "weights"))
        found = Watched(0, classes=Classes(frozenset(map(int, labels)), int(samples)))
        found.weights = weights_sum(core.runtime.model) if weights is None else int(weights)
        for number, (asked, row) in enumerate(zip(asked_of(core.state), rows, strict=True)):
            found.sums[asked] = _sums(number, row, tensors, measured)
            draws = None if row[5] is None else torch.tensor(list(bytes.fromhex(row[5])), dtype=torch.uint8)
            found.progress[asked] = Progress(int(row[4]), draws)
    except (TypeError, KeyError, ValueError, IndexError) as error:
        raise StateError(
            f"The state is damaged: what gradients.microbatches() has seen is not whole ({type(error).__name__}: "
            f"{error}). Use another copy."
        ) from error
    if weights is None:
        warn(
            "The state was saved between gradients.microbatches() and consolidate() with sharded weights, and whether "
            "the model's are the same now cannot be told: they are taken for it. Load the model's weights before the "
            "guard's state."
        )
    return found


def _sums(number: int, row: Any, tensors: Mapping[str, Tensor], measured: Mapping[str, Tensor]) -> GradientSums:
    batches, samples, counted, outputs = int(row[0]), int(row[1]), int(row[2]), row[3]
    if min(batches, samples, counted) < 0:
        raise ValueError(f"numbers of samples below 0: {row[:3]}")
    sums = GradientSums(batches, samples, counted, outputs=outputs)
    for name, parameter in measured.items() if samples else ():
        for part, kept in zip(PARTS, (sums.mean, sums.spread), strict=True):
            tensor = tensors[f"{name}#{number}.{part}"]
            if tensor.shape != parameter.shape:
                raise ValueError(f"{name!r} has shape {tuple(tensor.shape)}; expected {tuple(parameter.shape)}")
            own = local(like_parameter(tensor.detach(), parameter)).to(running_dtype(parameter))
            if not is_finite(own):
                raise ValueError(f"the {part} of {name!r} has NaN or infinities")
            kept[name] = own.clone()
    return sums
