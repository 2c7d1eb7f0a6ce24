"""Appendix: MAS on logits, its accuracy against MAS on probabilities, and its correlations."""

from collections.abc import Sequence

from anchorhold_lab.analysis import welch_test
from anchorhold_lab.experiments import Spec
from anchorhold_lab.report import Cell, Item, Measured, Table
from studies.benzing2020.drawing.panels import correlation_panel, figure_of
from studies.benzing2020.findings import NotMeasuredError, Results
from studies.benzing2020.item import PaperItem
from studies.benzing2020.needed_runs import accuracy_runs, correlation_runs
from studies.benzing2020.presets import BENCHMARKS, Benchmark, Preset
from studies.benzing2020.published import ACCURACIES, LOGITS_P_VALUE

_CAPTION = "MAS on logits: Pearson correlations with MAS on probabilities, AF and √Fisher after each task."
_TEST = "MAS on probabilities and on logits, with as many seeds each, and Welch's t-test between them."
_COLUMNS = ("benchmark", "MAS", "MAS on logits", "p", "paper, MAS", "paper, MAS on logits", "paper, p")


def runs(preset: Preset) -> list[Spec]:
    """Return runs of both, and those in which every measure watches SI."""
    found = []
    for benchmark in BENCHMARKS:
        for name in ("MAS", "MAS-logits"):
            found += accuracy_runs(preset, benchmark, name)
        found += correlation_runs(preset, benchmark)
    return found


def draw(results: Results) -> Sequence[Item]:
    """Return the test and the correlations."""
    rows = tuple(_row(results, benchmark) for benchmark in BENCHMARKS)
    panels = [
        correlation_panel(results, benchmark, "MAS-logits", ("MAS", "AF", "sqrtFisher"), called="MAS on logits")
        for benchmark in BENCHMARKS
    ]
    return [
        Table("mas-logits-test", _TEST, _COLUMNS, rows),
        figure_of("mas-logits", _CAPTION, panels, columns=2),
    ]


def _row(results: Results, benchmark: Benchmark) -> tuple[Cell, ...]:
    published = [ACCURACIES[benchmark, name].cell() for name in ("MAS", "MAS-logits")]
    title = results.preset.stages[benchmark].title
    try:
        mas, logits = (results.accuracy(benchmark, name) for name in ("MAS", "MAS-logits"))
    except NotMeasuredError:
        return (title, None, None, None, *published, LOGITS_P_VALUE.cell())
    shown = [Measured(e.mean, e.error, decimals=2) for e in (mas, logits)]
    return (title, *shown, Measured(welch_test(mas, logits).p, decimals=2), *published, LOGITS_P_VALUE.cell())


ITEM = PaperItem("mas-logits", "Appendix: MAS on logits", runs, draw)
