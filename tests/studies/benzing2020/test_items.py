"""What items ask for, and that all of them can be drawn from real runs and from none."""

import shutil
from collections import Counter

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure as Canvas

from anchorhold_lab.experiments import Store
from anchorhold_lab.report import Figure, Report, Section, Table, Text, colour, ink
from anchorhold_lab.report.style import style
from studies.benzing2020 import ITEMS, PRESETS
from studies.benzing2020.algorithms import TABLE1
from studies.benzing2020.findings import Results
from studies.benzing2020.needed_runs import MANY_SAMPLES, accuracy_runs, correlation_runs
from studies.benzing2020.presets import PAPER
from studies.benzing2020.published import ACCURACIES


def test_table_1_has_the_papers_130_runs_and_seven_more_of_mas_which_a_test_compares():
    specs = [spec for row in TABLE1 for benchmark in row.benchmarks for spec in accuracy_runs(PAPER, benchmark, row)]
    assert Counter(spec.scenario for spec in specs) == {"permuted-mnist": 30 + 7, "split-cifar": 100}
    assert len({spec.id for spec in specs}) == 137
    assert {(benchmark, row.name) for row in TABLE1 for benchmark in row.benchmarks} <= set(ACCURACIES)


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
@pytest.mark.parametrize("item", ITEMS.values(), ids=ITEMS)
def test_every_item_has_runs_in_every_preset(item, preset):
    specs = item.runs(preset)
    assert specs
    assert len({spec.id for spec in specs}) == len(specs)


def test_items_share_runs():
    once = {spec.id for item in ITEMS.values() for spec in item.runs(PAPER)}
    assert sum(len(item.runs(PAPER)) for item in ITEMS.values()) > 1.5 * len(once)


def test_measures_are_compared_on_the_same_samples_and_af_on_more():
    spec = correlation_runs(PAPER, "P-MNIST")[0]
    assert spec.measure == "SI" and spec.settings.samples == 30_000
    limits = {name: settings["samples"] for name, settings in spec.watch_settings.items() if "samples" in settings}
    assert limits.pop(MANY_SAMPLES) is None
    assert set(limits) == {"EWC", "sqrtFisher", "AF", "MAS", "MASX", "MAS-logits"}
    assert set(limits.values()) == {1000}


@pytest.mark.parametrize("item", ITEMS.values(), ids=ITEMS)
def test_without_results_an_item_says_so_instead_of_failing(item, nothing):
    drawn = item.draw(nothing)
    assert drawn
    for each in drawn:
        if isinstance(each, Text):
            assert "Not measured yet" in each.text
        elif isinstance(each, Table):
            others = ("No.", "reported", "verdict", "where", "differs", "study", "benchmark", "method", "command")
            ours = [i for i, column in enumerate(each.columns) if i and column not in others and "paper" not in column]
            if each.name.endswith("-left"):  # which lists what has no results
                assert each.rows
                continue
            assert all(row[i] is None for row in each.rows for i in ours)
        else:
            assert isinstance(each, Figure) and each.data is None


@pytest.mark.nightly
@pytest.mark.parametrize("item", ITEMS.values(), ids=ITEMS)
def test_with_results_it_shows_numbers(item, results):
    drawn = item.draw(results)
    shown = [each.data if isinstance(each, Figure) else each for each in drawn if not isinstance(each, Text)]
    assert not any("Not measured yet" in each.text for each in drawn if isinstance(each, Text))
    assert shown and all(isinstance(table, Table) and table.rows for table in shown)
    Report("All", Text("Names are unique."), (Section(item.title, tuple(drawn)),), shown[0].__class__("p", "", (), ()))


@pytest.mark.nightly
def test_the_full_gradient_has_the_colour_that_it_has_beside_measures(results):
    (figure,) = ITEMS["gradient-noise"].draw(results)
    with style("light"):
        canvas = Canvas()
        figure.draw(canvas)
        drawn = {points.get_label(): to_hex(points.get_facecolor()[0]) for points in canvas.axes[0].collections}
        assert drawn == {"noise": to_hex(ink()), "full gradient": to_hex(colour("full gradient"))}


@pytest.mark.nightly
def test_figure_1_shows_what_there_is_where_its_controls_are_missing(results, tmp_path):
    """The controls come after the runs that most figures need, so they are missing first."""
    store = Store(tmp_path / "store")
    for spec in correlation_runs(results.preset, "CIFAR"):
        shutil.copytree(results.store.run_folder(spec.id), store.run_folder(spec.id))
    (figure,) = ITEMS["figure1"].draw(Results(store, results.preset))
    assert {row[1] for row in figure.data.rows} == {"SI", "SIB", "SIU"}


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["figure1", "figure2"])
def test_where_the_store_was_kept_small_plots_of_weights_are_left_out(name, results, tmp_path):
    whole = ITEMS[name].draw(results)[0]
    store = Store(tmp_path / "store")
    for spec in ITEMS[name].runs(results.preset):
        shutil.copytree(results.store.run_folder(spec.id), store.run_folder(spec.id))
        (store.run_folder(spec.id) / "observations.safetensors").unlink()
    kept_small = ITEMS[name].draw(Results(store, results.preset))[0]
    assert "one point a weight" in whole.caption and "left out" not in whole.caption
    assert "one point a weight" not in kept_small.caption and "left out" in kept_small.caption
