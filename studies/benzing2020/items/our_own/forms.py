"""Beyond the diagonal, which the paper does not go: what the same Fisher information keeps in the layers' coordinates.

EWC's Fisher information is kept weight by weight, or in the coordinates of each layer's two factors (rotated; Liu et
al. 2018, arXiv 1802.02950) or as their product (Kronecker; Ritter et al. 2018, arXiv 1805.07810). Whatever stands
beside each other has the same samples, and strengths from the same search.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from anchorhold_lab.analysis import Estimate
from anchorhold_lab.experiments import Spec
from anchorhold_lab.report import Item
from studies.benzing2020.algorithms import ALGORITHMS, BY_SAMPLES, IN_TWO_FORMS, OVER_MANY_TASKS
from studies.benzing2020.drawing.captions import found_strengths
from studies.benzing2020.drawing.kept_accuracy import of_every_task, of_first_task, on_average_so_far
from studies.benzing2020.drawing.labelled_lines import Level, over_samples, over_tasks
from studies.benzing2020.drawing.panels import Panel, figure_of, panel_or_reason
from studies.benzing2020.drawing.tables.form_table import form_table
from studies.benzing2020.drawing.task_columns import Table
from studies.benzing2020.findings import NotMeasuredError, Results
from studies.benzing2020.item import PaperItem
from studies.benzing2020.needed_runs import accuracy_runs, rows_of_runs
from studies.benzing2020.presets import BENCHMARKS, Benchmark, Preset
from studies.benzing2020.published import ACCURACIES, KRONECKER_LAPLACE

# In the order of their worth, for those whose time ends before all is made: one benchmark after the other.
_COMPARED = tuple(
    dataclasses.replace(algorithm, benchmarks=(benchmark,)) for benchmark in BENCHMARKS for algorithm in IN_TWO_FORMS
)
_ALGORITHMS = (*_COMPARED, ALGORITHMS["fine-tune"], *BY_SAMPLES, *OVER_MANY_TASKS)
_SHOWN = {"fine-tune": "fine-tuning", "diagonal EWC": "diagonal", "rotated EWC": "rotated"}
"""What lines are called in figures, by algorithm."""
_SIZES = (", few samples", ", more samples", "", ", all samples")
_BY_SAMPLES = {
    "diagonal": tuple(f"diagonal EWC{size}" for size in _SIZES),
    "rotated": tuple(f"rotated EWC{size}" for size in _SIZES),
    "rotated, more damping": ("rotated EWC, few samples, damped",),
}
"""Which algorithms a line over numbers of samples goes through."""

_TABLE = (
    "Beyond the diagonal, {title}: EWC with its Fisher information kept weight by weight (diagonal) and in the "
    "coordinates of each layer's own inputs and gradients (rotated), both without re-initialisation and from {samples} "
    "samples a task. Average accuracy over all tasks after the last, and that of the first and of the last task then, "
    "in per cent."
)
_OTHERS = " What stands in other papers is theirs, and not from runs here."
_KEPT = (
    "What the coordinates buy. Left: the first task's accuracy while others are learned. Right: every task's accuracy "
    "after the last. Bands are standard errors over runs; a line that leaves the panel says where it ends."
)
_SAMPLES = (
    "How many samples the Fisher information takes, {title}: average accuracy after the last task, with standard "
    "errors. {damped} the rotated form is shown with ten times the damping too. Each point has a strength of its own."
)
_MANY_TASKS = (
    "{tasks} tasks, {title}: average accuracy over the tasks learned so far; hidden layers of {hidden}, epochs a task: "
    "{epochs}. Network, training and strengths are ours."
)


def runs(preset: Preset) -> list[Spec]:
    """Return the runs of all forms, and those of fine-tuning, which stand beside Table 1 too."""
    return rows_of_runs(preset, _ALGORITHMS)


def draw(results: Results) -> Sequence[Item]:
    """Return a table for each benchmark, and the figures."""
    return [
        *(_table(results, benchmark) for benchmark in BENCHMARKS),
        figure_of("forms", _KEPT, [p for b in BENCHMARKS for p in _kept(results, b)], columns=2, size=(8.0, 5.8)),
        _by_samples(results),
        _over_many_tasks(results),
    ]


def _table(results: Results, benchmark: Benchmark) -> Item:
    preset, compared = results.preset, [row for row in _COMPARED if benchmark in row.benchmarks]
    stage = preset.stages[benchmark]
    caption = _TABLE.format(title=stage.title, samples=f"{stage.variants['rotated']['samples']:,}")
    caption += _OTHERS * preset.follows_the_paper + found_strengths(preset, compared)
    return form_table(f"forms-{benchmark.lower()}", caption, results, benchmark, tuple(_SHOWN))


def _kept(results: Results, benchmark: Benchmark) -> list[Panel]:
    """Return what is kept of the first task, and of every one."""
    title = results.preset.stages[benchmark].title
    return [
        _lines(f"{title}: the first task", results, benchmark, _SHOWN, of_first_task, "its accuracy, %"),
        _lines(f"{title}: every task", results, benchmark, _SHOWN, of_every_task, "accuracy, %", x_label="task"),
    ]


def _lines(
    title: str,
    results: Results,
    benchmark: Benchmark,
    called: Mapping[str, str],
    measure: Callable[[Results, Benchmark, str], Table],
    y_label: str,
    *,
    x_label: str = "tasks learned",
    level: Level | None = None,
) -> Panel:
    """Return a line for each algorithm that has runs."""

    def make() -> Panel:
        found = {}
        for algorithm, name in called.items():
            if results.accuracies(benchmark, algorithm):
                found[name] = measure(results, benchmark, algorithm)
        if not found:
            raise NotMeasuredError(f"no run of {', '.join(called)} on {benchmark} has finished")
        return over_tasks(title, found, y_label=y_label, x_label=x_label, may_leave="fine-tuning", level=level)

    return panel_or_reason(title, make)


def _by_samples(results: Results) -> Item:
    preset = results.preset
    stage = preset.stages["P-MNIST"]
    few = stage.variants["rotated, few samples"]["samples"]

    def make() -> Panel:
        series: dict[str, dict[int, Estimate]] = {}
        for name, algorithms in _BY_SAMPLES.items():
            measured = [algorithm for algorithm in algorithms if results.accuracies("P-MNIST", algorithm)]
            points = {_samples(preset, algorithm): results.accuracy("P-MNIST", algorithm) for algorithm in measured}
            series |= {name: points} if points else {}
        if not series:
            raise NotMeasuredError("no run of diagonal or rotated EWC on P-MNIST has finished")
        best = ACCURACIES["P-MNIST", "AF"].mean
        said = f"{best:g}: the paper's best, AF from 1,000 samples"
        level = Level(best, said, at="right") if preset.follows_the_paper else None
        return over_samples(stage.title, series, y_label="accuracy, %", level=level)

    caption = _SAMPLES.format(title=stage.title, damped=f"With {few:,} of them") + found_strengths(preset, BY_SAMPLES)
    return figure_of("forms-samples", caption, [panel_or_reason(stage.title, make)], columns=1, size=(7.0, 3.4))


def _over_many_tasks(results: Results) -> Item:
    preset = results.preset
    stage = preset.stages["P-MNIST"]
    changes = {**stage.usual, **stage.variants["rotated, many tasks"]}
    called = {row.name: row.name.partition(" ")[0] for row in OVER_MANY_TASKS}
    theirs = KRONECKER_LAPLACE.mean
    said = f"{theirs:g}: Ritter et al. 2018 stay above"
    level = Level(theirs, said, at="middle") if preset.follows_the_paper else None
    title = f"{stage.title}, {changes['tasks']} tasks"
    panel = _lines(title, results, "P-MNIST", called, on_average_so_far, "accuracy so far, %", level=level)
    caption = _MANY_TASKS.format(
        title=stage.title,
        tasks=changes["tasks"],
        hidden="-".join(map(str, changes["hidden"])),
        epochs=changes["epochs"],
    )
    caption += found_strengths(preset, OVER_MANY_TASKS)
    return figure_of("forms-many-tasks", caption, [panel], columns=1, size=(7.0, 3.4))


def _samples(preset: Preset, algorithm: str) -> int:
    samples = accuracy_runs(preset, "P-MNIST", algorithm)[0].settings.samples
    assert samples is not None
    return samples


ITEM = PaperItem(
    "forms",
    "Beyond the diagonal, which the paper does not go: EWC in coordinates of the layers",
    runs,
    draw,
    _ALGORITHMS,
)
