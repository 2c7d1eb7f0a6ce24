"""The probe "importances": sums, signs and correlations of what all measures found for each task."""

import itertools
from collections.abc import Mapping

import torch
from torch import Tensor

from anchorhold.guard import TaskImportance
from anchorhold_lab.analysis.pearson import CoMoments
from anchorhold_lab.analysis.probes.base import Probe
from anchorhold_lab.analysis.weight_rows import Row, after_rescaling, before_rescaling, joined, pieces_of_rows
from anchorhold_lab.training import Learner

TOP_SHARES = (0.05, 0.01)
"""The shares of weights with the highest SIU that the paper removes."""


class Importances(Probe):
    r"""Looks at all protected weights i together, for every measure that drives or watches the run.

    For each task it notes ``weights``, how many there are, and by measure

    - ``sums``: :math:`\sum_i \omega_i`, and ``raw_sums``: :math:`\sum_i \tilde\omega_i`, which for SI, SIU and SIB
      should track the decrease in loss;
    - ``negative``: the share of weights with :math:`\tilde\omega_i < 0`;

    and by pair of measures, ``"A|B"`` in the order in which the run has them, Pearson correlations:

    - ``correlations["after"]`` of ω, and ``correlations["before"]`` of ω̃;
    - ``without_top["0.05"]`` and ``["0.01"]``: of ω̃ without the 5 % or 1 % of weights that have the highest ω̃ of SIU,
      where SIU is among the measures.

    ω̃ is what SI, SIU and SIB are before they are rescaled; every other measure enters with its ω there too.
    """

    def task_ended(self, learner: Learner, task: int, found: Mapping[str, TaskImportance]) -> None:
        """Note a task's entry."""
        after, before = after_rescaling(learner, found), before_rescaling(learner, found)
        moments_after, moments_before = _moments(after), _moments(before)
        entry = {
            "weights": moments_after.count,
            "sums": dict(zip(after, moments_after.sums.tolist(), strict=True)),
            "raw_sums": dict(zip(before, moments_before.sums.tolist(), strict=True)),
            "negative": _negative(before),
            "correlations": {"after": _by_pair(after, moments_after), "before": _by_pair(before, moments_before)},
        }
        if "SIU" in before:
            siu = joined(before["SIU"])
            entry["without_top"] = {
                str(share): _by_pair(before, _moments(before, _below_top(siu, share))) for share in TOP_SHARES
            }
        self.tasks.append(entry)


def _moments(rows: Mapping[str, Row], kept: Tensor | None = None) -> CoMoments:
    values = list(rows.values())
    moments = CoMoments(len(values), next(iter(values[0].values())).device)
    for piece in pieces_of_rows(values, kept):
        moments.add(piece)
    return moments


def _negative(rows: Mapping[str, Row]) -> dict[str, float]:
    counts = [torch.stack([(value < 0).sum() for value in row.values()]).sum() for row in rows.values()]
    weights = sum(value.numel() for value in next(iter(rows.values())).values())
    return {name: count / weights for name, count in zip(rows, torch.stack(counts).tolist(), strict=True)}


def _below_top(values: Tensor, share: float) -> Tensor:
    """Return a flag for each value: whether it is not among the given share of largest ones."""
    kept = torch.ones_like(values, dtype=torch.bool)
    kept[values.topk(round(share * len(values))).indices] = False
    return kept


def _by_pair(names: Mapping[str, Row], moments: CoMoments) -> dict[str, float]:
    table = moments.correlations().tolist()
    pairs = itertools.combinations(enumerate(names), 2)
    return {f"{a}|{b}": table[i][j] for (i, a), (j, b) in pairs}
