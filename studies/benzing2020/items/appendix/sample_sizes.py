"""Appendix: AF from few samples against AF from many, and SI against the latter."""

from collections.abc import Sequence

from anchorhold_lab.report import Item
from studies.benzing2020.drawing.panels import Panel, correlations_over_tasks, figure_of, panel_or_reason
from studies.benzing2020.drawing.task_columns import correlations
from studies.benzing2020.findings import Results
from studies.benzing2020.item import PaperItem
from studies.benzing2020.items.main_text.figure2 import runs
from studies.benzing2020.needed_runs import MANY_SAMPLES
from studies.benzing2020.presets import BENCHMARKS, Benchmark

_CAPTION = (
    "How much AF depends on the number of samples: Pearson correlations of AF from many samples with AF from as few as "
    "the algorithms use, with MAS, and with SI, which has seen every sample."
)


def draw(results: Results) -> Sequence[Item]:
    """Return the figure."""
    return [figure_of("sample-sizes", _CAPTION, [_panel(results, benchmark) for benchmark in BENCHMARKS], columns=2)]


def _panel(results: Results, benchmark: Benchmark) -> Panel:
    stage = results.preset.stages[benchmark]
    title = f"{stage.title}: {stage.samples} against {stage.many_samples}"

    def make() -> Panel:
        found = {name: correlations(results, benchmark, name, MANY_SAMPLES) for name in ("AF", "MAS", "SI")}
        return correlations_over_tasks(title, found, y_label=f"correlation with AF ({stage.many_samples})")

    return panel_or_reason(title, make)


ITEM = PaperItem("sample-sizes", "Appendix: how AF depends on the number of samples", runs, draw)
