"""Appendix: correlations with SOS on CIFAR's first task, without the weights that have the highest SIU."""

from collections.abc import Sequence

from anchorhold_lab.experiments import Spec
from anchorhold_lab.report import Cell, Item, Measured, Table, Text
from studies.benzing2020 import authors_data
from studies.benzing2020.drawing.task_columns import correlations, correlations_without_top, each_task
from studies.benzing2020.findings import NotMeasuredError, Results
from studies.benzing2020.item import PaperItem
from studies.benzing2020.needed_runs import correlation_runs
from studies.benzing2020.presets import Preset
from studies.benzing2020.published import WITHOUT_TOP

_COLUMNS = ("measure", "all weights", "without 1 %", "without 5 %", "paper, without 5 %")
_THEIRS = {"0.01": f"{authors_data.NAMED}, without 1 %", "0.05": f"{authors_data.NAMED}, without 5 %"}


def runs(preset: Preset) -> list[Spec]:
    """Return the runs in which every measure watches SI."""
    return correlation_runs(preset, "CIFAR")


def draw(results: Results) -> Sequence[Item]:
    """Return a table with a line for each of SI, SIB and SIU."""
    title = results.preset.stages["CIFAR"].title
    try:
        rows = {name: _row(results, name) for name in ("SI", "SIB", "SIU")}
    except NotMeasuredError as error:
        return [Text(f"Not measured yet: {error}.")]
    caption = (
        f"Correlations with SOS on the first task of {title}, before rescaling: over all weights, and without those "
        "with the highest SIU. In the paper, what is left is dominated by noise, and SIU loses its tie to SOS; for "
        '1 % its results are "similar".'
    )
    if not results.preset.follows_the_paper:
        return [Table("without-top", caption, _COLUMNS, tuple(rows.values()))]
    caption += f" The authors' data have 10,000 weights of one run, {authors_data.SUM_OF_SIZES}."
    both = [(*row, *(authors_data.WITHOUT_TOP[share][name].cell(3) for share in _THEIRS)) for name, row in rows.items()]
    return [Table("without-top", caption, (*_COLUMNS, *_THEIRS.values()), tuple(both))]


def _row(results: Results, name: str) -> tuple[Cell, ...]:
    tables = [
        correlations(results, "CIFAR", name, "SOS", when="before"),
        *(correlations_without_top(results, "CIFAR", name, "SOS", share) for share in ("0.01", "0.05")),
    ]
    first = [each_task(table)[0] for table in tables]
    return (name, *(Measured(e.mean, e.error, decimals=3) for e in first), WITHOUT_TOP[name].cell())


ITEM = PaperItem("without-top", "Appendix: without the weights of highest SIU", runs, draw)
