"""Holding one importance against another."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from anchorhold_lab.analysis.pearson import CoMoments

Importance = Mapping[str, Tensor]


@dataclass(frozen=True)
class Agreement:
    """How an importance compares with its definition, over all weights together."""

    correlation: float
    """Pearson's; NaN where one of the two is the same for all weights."""
    scale: float
    """The ratio of their Euclidean norms: 1 where they are of the same size."""


def compare(found: Importance, definition: Importance) -> Agreement:
    """Compare over the parameters that ``found`` has; it may leave some out, a head for instance."""
    ours, theirs = flat(definition, list(found)), flat(found)
    moments = CoMoments(2)
    moments.add(torch.stack([theirs, ours]))
    return Agreement(float(moments.correlations()[0, 1]), float(theirs.norm() / ours.norm()))


def relative_error(found: Importance, expected: Importance) -> float:
    """Return ‖found − expected‖ / ‖expected‖ over the parameters of ``found``; 0 for two zeros."""
    theirs, ours = flat(found), flat(expected, list(found))
    gap, size = float((theirs - ours).norm()), float(ours.norm())
    return gap / size if size else (0.0 if gap == 0 else math.inf)


def flat(importance: Importance, names: list[str] | None = None) -> Tensor:
    """Return all values in one float64 vector, in the order of ``names``."""
    missing = set(names or ()) - set(importance)
    if missing:
        raise ValueError(f"no importance of {', '.join(sorted(missing))}; there are {', '.join(importance)}.")
    return torch.cat([importance[name].detach().double().cpu().flatten() for name in names or importance])
