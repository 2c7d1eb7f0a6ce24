"""One table and one figure over everything."""

import itertools

import pytest
from matplotlib.figure import Figure as Canvas

from anchorhold.forms import FORMS
from anchorhold.holds import HOLDS
from anchorhold.measures import MEASURES
from anchorhold_lab.data import digits_dataset
from anchorhold_lab.experiments import Store, execute, paper_spec
from anchorhold_lab.experiments.running.engines import make_learner
from studies.benzing2020 import ITEMS, PRESETS
from studies.benzing2020.algorithms import ALGORITHMS
from studies.benzing2020.drawing.overview_figure import LONGEST, overview_figure
from studies.benzing2020.drawing.tables.overview_table import (
    every_line,
    item_of,
    overview_left,
    overview_table,
    standings,
)
from studies.benzing2020.findings import Results
from studies.benzing2020.kept_bytes import kept_bytes
from studies.benzing2020.needed_runs import accuracy_runs
from tests.studies.benzing2020.tiny import tiny_preset

SMALL = {"tasks": 3, "hidden": (8,), "epochs": 1}


def test_what_has_runs_is_in_the_table_and_everything_else_is_listed(tmp_path):
    preset, store = tiny_preset(), Store(tmp_path / "store")
    lines = every_line(preset)
    chosen = [line for line in lines if line.method in ("SI", "VCL", "joint training")]
    execute([spec for line in chosen for spec in line.specs[:1]], store, device="cpu")
    results = Results(store, preset)
    shown = {tuple(row[:2]) for row in overview_table(standings(results)).rows}
    assert shown == {(line.benchmark, line.method) for line in chosen}
    (left,) = overview_left(results)
    assert len(left.rows) == len(lines) - len(chosen)
    assert all(row[-1].startswith(("anchorhold-lab run ", "python -m studies.benzing2020 ")) for row in left.rows)
    figure = overview_figure(standings(results))
    assert len(figure.data.rows) == len(chosen)
    canvas = Canvas()
    figure.draw(canvas)
    benchmarks = {line.benchmark for line in chosen}
    assert len(canvas.axes) == 4 * len(benchmarks)  # accuracy, forgetting, bytes and seconds of each
    for axes in canvas.axes[::4]:
        methods = [tick.get_text() for tick in axes.get_yticklabels()]
        shown = [point for line in axes.get_lines() for point in line.get_xdata()]
        assert len(methods) == len(shown) and shown == sorted(shown)  # the most accurate at the top


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_no_name_is_broken_into_lines_that_would_reach_into_the_next_ones(preset):
    assert max(len(line.method) for line in every_line(preset)) <= LONGEST


def test_lines_of_one_benchmark_stand_side_by_side():
    lines = [line.benchmark for line in every_line(PRESETS["paper"])]
    assert [benchmark for benchmark, _ in itertools.groupby(lines)] == list(dict.fromkeys(lines))
    assert "GPM" in {line.method for line in every_line(PRESETS["paper"]) if line.benchmark == "P-MNIST"}


def test_the_item_that_is_named_for_a_line_makes_its_runs():
    preset = PRESETS["digits"]  # in which every strength is known
    made = {name: {spec.id for spec in item.runs(preset)} for name, item in ITEMS.items()}
    for algorithm in ALGORITHMS.values():
        for benchmark in algorithm.benchmarks:
            item = item_of(benchmark, algorithm)
            assert {spec.id for spec in accuracy_runs(preset, benchmark, algorithm)} <= made[item], algorithm.name


@pytest.mark.parametrize(("name", "without"), [("digits", set()), ("paper", {"dense"})])
def test_every_measure_form_and_hold_of_the_library_is_on_some_line(name, without):
    """A network on MNIST has too many weights for a dense matrix."""
    preset = PRESETS[name]
    specs = [spec for line in every_line(preset) for spec in line.specs[:1]]
    for study in preset.relatives:
        specs += [study.try_of(row, **row.tried[0]) for row in study.rows if row.tried]
    measures = {spec.measure for spec in specs} | {row.measure for row in ALGORITHMS.values()}
    assert measures >= _of_the_library(MEASURES)
    assert {hold for spec in specs for hold in spec.holds} >= _of_the_library(HOLDS)
    assert {spec.form for spec in specs} >= _of_the_library(FORMS) - without


def _of_the_library(registry):
    """Names but for those that other tests have registered."""
    return {
        name
        for name in registry
        if getattr(registry[name], "func", registry[name]).__module__.startswith("anchorhold.")
    }


@pytest.mark.parametrize(
    ("measure", "changes"),
    [
        ("EWC", {}),
        ("RWalk-batch", {}),
        ("EWC", {"form": "rotated"}),
        ("EWC", {"form": "rotated", "anchor": "mean", "gradient_term": True}),
        ("fine-tune", {"holds": ("distillation",)}),
        ("fine-tune", {"holds": ("variational",)}),
    ],
)
def test_bytes_that_are_worked_out_are_those_that_a_run_keeps(measure, changes):
    spec = paper_spec("split-digits", measure, strength=1.0, **SMALL, **changes)
    learner = make_learner(spec, spec.make_scenario({"digits": digits_dataset()}), "cpu")
    for task in range(2):
        learner.begin_task(task)
        learner.model.train()
        optimizer = learner.settings.make_optimizer(learner.model.parameters())
        learner.guard.attach(optimizer)
        samples = learner.samples(task)
        for head in range(len(learner.model.heads)):
            learner.loss(samples.x, samples.y, task, head).backward()
        optimizer.step()
        learner.guard.detach()
        learner.guard.consolidate([(samples.x, samples.y)], forward=lambda model, x: model(x, 0))
    state = learner.guard.state_dict()["tensors"]
    kept = ("anchor/", "tilt/", "total/", "hold/variational/mean", "hold/variational/log_variance")
    lasting = ("hold/distillation/", "running.fisher/", "running.past/")
    tensors = [t for name, t in state.items() if name.startswith((*kept, *lasting)) and "fine-tune" not in name]
    if measure == "fine-tune":
        tensors = [t for name, t in state.items() if name.startswith("hold/") and "learned/" not in name]
    assert kept_bytes(spec).bytes == sum(t.numel() * t.element_size() for t in tensors)


def test_samples_and_networks_are_counted():
    sample = 64 * 4
    assert kept_bytes(paper_spec("permuted-digits", "fine-tune", **SMALL)).bytes == 0
    replay = {"holds": ("replay",), "hold_settings": {"replay": {"source": 10}}}
    assert kept_bytes(paper_spec("permuted-digits", "fine-tune", **SMALL, **replay)).bytes == 10 * (sample + 4)
    weights = 64 * 8 + 8 + 8 * 10 + 10
    anew = paper_spec("permuted-digits", "fine-tune", **SMALL, trains="anew")
    assert kept_bytes(anew).bytes == 2 * 4 * weights
    columns = paper_spec("permuted-digits", "fine-tune", **SMALL, compress=1)
    lateral = 8 * 100 + 100 + 100 * 10 + 10
    assert kept_bytes(columns).bytes == 4 * (weights + lateral)
    assert kept_bytes(paper_spec("permuted-digits", "fine-tune", **SMALL, compress=1, reinitialise=True)).bytes == 0
    jointly = paper_spec("permuted-digits", "fine-tune", **SMALL, trains="jointly")
    assert kept_bytes(jointly).bytes == 2 * sample * len(digits_dataset().train.labels)
    assert kept_bytes(paper_spec("split-digits", "fine-tune", **SMALL, holds=("projection",))).at_most
