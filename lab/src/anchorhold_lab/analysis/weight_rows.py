"""All protected weights as one long row for each measure, a piece at a time."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from anchorhold.guard import TaskImportance
from anchorhold_lab.training import Learner

_PIECE = 2**17
"""Weights in a piece: a few megabytes in float64."""

Row = Mapping[str, Tensor]
"""One measure's values for all protected weights, by parameter name, the parameters in the order of the guard."""


def after_rescaling(learner: Learner, found: Mapping[str, TaskImportance]) -> dict[str, Row]:
    """Return every measure's ω, as the penalty uses it, in the order in which the run has the measures."""
    names = learner.guard.parameters
    measures = [measure for measure in learner.guard.measures if measure in found]
    return {measure: {name: found[measure].importance[name] for name in names} for measure in measures}


def before_rescaling(learner: Learner, found: Mapping[str, TaskImportance]) -> dict[str, Row]:
    """Return ω̃ of SI, SIU and SIB, before max(0, ·) and the division; for all other measures ω, as the paper does.

    SOS accumulates v, but what the paper compares with ω̃ is its importance √v.
    """
    rows = after_rescaling(learner, found)
    for measure in rows:
        path = found[measure].raw
        if path is not None and "path" in learner.guard.measures[measure].running:
            # A parameter that took no step has no path.
            rows[measure] = {
                name: path[name] if name in path else torch.zeros_like(value) for name, value in rows[measure].items()
            }
    return rows


def pieces_of_rows(rows: Sequence[Row], kept: Tensor | None = None) -> Iterator[Tensor]:
    """Yield the values of all rows, ``[rows, n]`` at a time in float64.

    Args:
        rows: the values, with the same parameters in the same order everywhere.
        kept: which weights to keep, one flag for each as :func:`joined` has them; all by default.
    """
    start = 0
    for name, first in rows[0].items():
        for offset in range(0, first.numel(), _PIECE):
            piece = torch.stack([row[name].flatten()[offset : offset + _PIECE].double() for row in rows])
            stop = start + piece.shape[1]
            yield piece if kept is None else piece[:, kept[start:stop]]
            start = stop


def joined(row: Row) -> Tensor:
    """Return all values of one row side by side."""
    return torch.cat([value.flatten() for value in row.values()])
