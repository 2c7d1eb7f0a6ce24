"""The audit's part on RWalk, whose public versions cannot all be installed; it needs no other library."""

from typing import Any, NamedTuple

from benchmarks.audit.comparison import Agreement, compare
from benchmarks.audit.problem import Problem
from benchmarks.audit.rwalk_versions import VERSIONS, trained

TITLE = "## Three public versions of RWalk"
_BATCHES = {8: 1, 64: 5}
"""Epochs by batch size."""
_ABOUT = (
    "Each follows the same steps of the same network over two tasks of permuted digits, by SGD, in float64, in batches "
    "of 8 for one epoch and of 64 for five, and stands beside the paper's importance, which is anchorhold's `RWalk` "
    "(Chaudhry et al. 2018, arXiv 1801.10112). They are written from reading the code, since two of them cannot be "
    "installed here; the third has a row of its own above."
)
_DIFFERS = {
    "the authors' code": "facebookresearch/agem. No ½; squares of batches' gradients, summed over the task so far and "
    "never emptied within it; clamped in each interval; adds (s̄ + s)/2 to s̄ in place of assigning it; scaled between "
    "least and largest.",
    "Avalanche": "Squares of batches' gradients, averaged over steps; ε = 1.2·10⁻⁷; negative scores count until tasks "
    "are averaged.",
    "FACIL": "One interval a task, F at its end alone and with the labels that the network finds likeliest, averaged "
    "with the old by halves; no ½, damping 0.1; nothing is scaled.",
}


class VersionRow(NamedTuple):
    """A version, beside the paper's."""

    version: str
    agreements: dict[int, Agreement]
    """By batch size."""
    differs: str


def version_rows(problem: Problem) -> list[VersionRow]:
    """Return how each version agrees with the paper's."""
    steps = {batch: trained(problem, batch, epochs) for batch, epochs in _BATCHES.items()}
    return [
        VersionRow(name, {b: compare(version(tasks), paper) for b, (paper, tasks) in steps.items()}, _DIFFERS[name])
        for name, version in VERSIONS.items()
    ]


def section(rows: list[dict[str, Any]]) -> list[str]:
    """Return them, as plain values, as lines of Markdown, under a title of their own."""
    heads = ("version", *(f"batch {batch}" for batch in _BATCHES), "what it does differently")
    lines = [TITLE, "", _ABOUT, "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        cells = [f"{row['correlation'][b]:.2f}<br>×{row['size'][b]:.2g}" for b in map(str, _BATCHES)]
        lines.append(f"| {' | '.join((row['version'], *cells, row['differs']))} |")
    return lines


def as_data(rows: list[VersionRow]) -> list[dict[str, Any]]:
    """Return them as plain values."""
    return [
        {
            "version": row.version,
            "correlation": {str(batch): found.correlation for batch, found in row.agreements.items()},
            "size": {str(batch): found.scale for batch, found in row.agreements.items()},
            "differs": row.differs,
        }
        for row in rows
    ]
