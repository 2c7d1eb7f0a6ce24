"""Pictures of runs: which methods they have, what is drawn of them, and what is refused."""

import dataclasses
import itertools
import math

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg as Canvas
from matplotlib.figure import Figure
from matplotlib.text import Text

from anchorhold.errors import ConfigurationError
from anchorhold.retention import SetRetention, TracePoint
from anchorhold_lab.experiments import paper_spec
from anchorhold_lab.experiments.plots import run_panels
from anchorhold_lab.experiments.plots.methods import MOST, methods_of
from anchorhold_lab.experiments.plots.picture import _figure, legend_columns, panels_across, plot_runs
from anchorhold_lab.report.style import style
from anchorhold_lab.training.metrics import learned_later
from anchorhold_lab.training.telling.retention import TaskRetention
from tests.lab.experiments.helpers import result_of

LOOKS = {name: {"color": "black", "marker": "o"} for name in ("EWC", "SI", "EWC with a tolerance")}


def run(measure="EWC", accuracy=0.5, seed=0, **changes):
    return result_of(paper_spec("permuted-digits", measure, seed=seed, tasks=3, hidden=(10,), **changes), accuracy)


def learned(result, *diagonal, end):
    """A result whose tasks were learned so well, and of which so much is left."""
    tasks = len(diagonal)
    rows = [[diagonal[j] if i == j else end[j] for j in range(tasks)] for i in range(tasks)]
    return dataclasses.replace(result, matrix=tuple(map(tuple, rows)))


def followed(nats=0.1, seed=0):
    result = run(tolerance=nats, seed=seed)
    noted = [TaskRetention(0, None, tolerance=nats)]
    for task in (1, 2):
        sets = (SetRetention("task 1", 0.04 * task, 1.0, "sample", 300),)
        trace = tuple(TracePoint(step, 0.01 * step, 10.0 + step, None) for step in range(4))
        noted.append(TaskRetention(task, 13.0 * (1 + seed), sets, nats * task / 2, 1.0, trace))
    return dataclasses.replace(result, retention=tuple(noted))


def test_methods_are_what_protects_settings_how_strongly_and_the_rest_are_seeds():
    runs = [run(strength=c, seed=seed, accuracy=c / 100) for c in (50, 5) for seed in range(3)]
    runs += [run("SI"), run(form="rotated", strength=2.0), run(strength=5, seed=0, watch=("SI",)), followed()]
    found = {method.name: method for method in methods_of(runs)}
    assert list(found) == ["EWC", "SI", "rotated EWC", "EWC with a tolerance"]
    assert [setting.strength for setting in found["EWC"].settings] == [5, 50]
    assert [len(setting.results) for setting in found["EWC"].settings] == [3, 3]  # one was watched, and counts once
    assert found["EWC"].best.says == "c = 50" and found["EWC"].says == "EWC, c = 50 (best of 2)"
    assert found["EWC with a tolerance"].best.says == "0.1 nats" and found["SI"].says == "SI"


def test_a_method_is_told_apart_by_all_else_that_its_runs_differ_in():
    names = [method.name for method in methods_of([run(), run(epochs=9), run(epochs=9, kept=40, seed=1)])]
    assert names == ["EWC, epochs 6", "EWC, epochs 9", "EWC, kept 40, epochs 9"]


def test_strengths_that_seeds_found_for_themselves_are_meaned_as_ratios():
    (method,) = methods_of([followed(seed=0), followed(seed=1)])
    assert method.settings[0].strength == pytest.approx(13 * math.sqrt(2))


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([], "No finished run"),
        ([run(), run(judge_by="validation")], r"judge_by test and validation .* --where judge_by=test"),
        (
            [run(), result_of(paper_spec("split-digits", "SI"), 0.5)],
            r"scenario permuted-digits and split-digits .* --scenario permuted-digits",
        ),
        ([run(epochs=epochs) for epochs in range(1, MOST + 2)], f"{MOST + 1} methods .* expected at most {MOST}"),
    ],
)
def test_what_has_no_place_in_one_picture_is_refused(runs, said):
    with pytest.raises(ConfigurationError, match=said):
        methods_of(runs)


def test_the_trade_off_is_of_what_was_learned_later_and_of_what_was_forgotten():
    runs = [learned(run(strength=c), 0.9, 0.8, 0.7, end=(lost, lost, 0.7)) for c, lost in ((1, 0.2), (10, 0.6))]
    assert learned_later(runs[0].matrix) == pytest.approx(0.75)
    axes = Figure().subplots()
    run_panels.trade_off(axes, methods_of(runs), LOOKS)
    (line,) = [each for each in axes.lines if len(each.get_xdata()) == 2]
    assert list(line.get_xdata()) == pytest.approx([(70 + 60) / 2, (30 + 20) / 2])
    assert list(line.get_ydata()) == pytest.approx([75, 75])
    assert {text.get_text() for text in axes.texts} >= {"c = 1", "c = 10"}


def test_lines_over_tasks_are_means_over_seeds():
    runs = [learned(run("SI", seed=seed), 0.9, 0.8, 0.7, end=(0.2 + 0.2 * seed,) * 3) for seed in (0, 1)]
    accuracy, forgotten = Figure().subplots(2)
    run_panels.accuracy_over_tasks(accuracy, methods_of(runs), LOOKS)
    run_panels.forgetting_over_tasks(forgotten, methods_of(runs), LOOKS)
    assert list(accuracy.lines[0].get_ydata()) == pytest.approx([90, (30 + 80) / 2, (30 + 30 + 70) / 3])
    assert list(forgotten.lines[0].get_xdata()) == [2, 3]
    assert list(forgotten.lines[0].get_ydata()) == pytest.approx([60, (60 + 50) / 2])


def test_strengths_and_what_a_tolerance_did_are_drawn():
    runs = [run(strength=c, accuracy=c / 100) for c in (1, 10)] + [followed()]
    strength, lost, as_it_went = Figure().subplots(3)
    methods = methods_of(runs)
    run_panels.strength_curves(strength, methods, LOOKS)
    assert list(strength.lines[0].get_xdata()) == [1, 10] and list(strength.lines[0].get_ydata()) == [1, 10]
    run_panels.lost_as_it_went(lost, methods, LOOKS)
    kl, tolerance = lost.lines
    assert list(kl.get_xdata()) == [0, 1, 2, 3, 3, 4, 5, 6]
    assert list(kl.get_ydata())[1:4] == pytest.approx([0.01, 0.02, 0.03])
    assert math.isnan(kl.get_ydata()[0]) and list(tolerance.get_ydata()) == pytest.approx([0.05] * 4 + [0.1] * 4)
    run_panels.strength_as_it_went(as_it_went, methods, LOOKS)
    assert list(as_it_went.lines[0].get_ydata()) == [10, 11, 12, 13] * 2


def test_a_matrix_has_the_tasks_that_were_learned():
    axes = Figure().subplots()
    run_panels.matrix(axes, methods_of([learned(run(), 0.9, 0.8, 0.7, end=(0.2, 0.3, 0.7))])[0], LOOKS)
    assert [text.get_text() for text in axes.texts] == ["90", "20", "80", "20", "30", "70"]


@pytest.mark.parametrize(
    ("ending", "begins"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml"), ("PNG", b"\x89PNG")]
)
def test_the_ending_says_what_kind_of_file_and_the_same_runs_make_the_same(tmp_path, ending, begins):
    paths = [tmp_path / f"{name}.{ending}" for name in ("a", "b")]
    for path in paths:
        assert plot_runs([run("SI")], path) == ["accuracy", "forgetting", "trade-off", "matrix"]
    assert paths[0].read_bytes().startswith(begins) and paths[0].read_bytes() == paths[1].read_bytes()


def test_what_runs_have_decides_what_is_drawn(tmp_path):
    several = [run(strength=c) for c in (1, 10)] + [followed()]
    assert plot_runs(several, tmp_path / "a.png") == [
        *("accuracy", "forgetting", "trade-off", "strength", "following", "matrix")
    ]
    one = [result_of(paper_spec("permuted-digits", "SI", tasks=1), 0.5)]
    assert plot_runs(one, tmp_path / "b.png") == ["accuracy", "matrix"]
    for what, said in (("trade-off", "nothing to lose"), ("strength", "two strengths"), ("following", "plain engine")):
        with pytest.raises(ConfigurationError, match=f"'{what}' cannot be drawn of these runs: .*{said}"):
            plot_runs(one, tmp_path / "c.png", [what])
    with pytest.raises(ConfigurationError, match="'all' cannot be drawn; expected one of accuracy"):
        plot_runs(one, tmp_path / "c.png", ["all"])
    with pytest.raises(ConfigurationError, match=r"expected a file that ends with .png, .pdf"):
        plot_runs(one, tmp_path / "c.jpeg")
    with pytest.raises(ConfigurationError, match="could not be written"):
        plot_runs(one, tmp_path / "missing" / "c.png")
    assert not list(tmp_path.glob("c.*"))


@pytest.mark.parametrize(
    ("plain", "grids", "across"),
    [(1, 0, 1), (2, 0, 2), (3, 3, 3), (3, 2, 3), (4, 4, 2), (4, 0, 2), (5, 5, 3), (1, 7, 2)],
)
def test_as_few_places_as_can_be_stay_empty(plain, grids, across):
    assert panels_across(plain, grids) == across


@pytest.mark.parametrize(
    ("strengths", "said"), [((0.3, 2.5), ["0.5", "1", "2"]), ((1.0, 1000.0), ["1", "10", "100", "1000"])]
)
def test_strengths_are_written_as_numbers_that_do_not_overlap(strengths, said):
    figure = Figure()
    axes = figure.subplots()
    methods = methods_of([run(strength=c, accuracy=0.5) for c in strengths])
    run_panels.strength_curves(axes, methods, LOOKS)
    figure.draw_without_rendering()
    shown = [tick.label1 for tick in axes.xaxis.get_major_ticks() if tick.label1.get_text() in said]
    assert [each.get_text() for each in shown] == said
    assert not any(label.get_text() for label in axes.xaxis.get_minorticklabels())


def test_long_names_stay_within_the_picture_and_out_of_each_others_way():
    """As those of runs that differ in much: each label of the legend whole, each title above its own panel."""
    changes = [{"batch_norm": each, "compress": 2} for each in (None, "fold", "freeze")]
    results = [run("online-EWC", strength=0.1, network="mlp-batch-norm", **each) for each in changes]
    results += [
        run("online-EWC", strength=0.1, network="mlp-batch-norm", reinitialise=True, rate_decay=0.001, **each)
        for each in changes
    ]
    results.append(run("online-EWC", strength=0.1, network="mlp-torch-init", compress=2))
    figure = _figure(methods_of(results), ["accuracy", "matrix"])
    with style("light"):
        canvas = Canvas(Figure(figsize=figure.size)).figure
        figure.draw(canvas)
        canvas.canvas.draw()
    (legend,) = canvas.legends
    assert len(legend.texts) == 7
    assert max(text.get_window_extent().x1 for text in legend.texts) <= canvas.bbox.x1
    grids = [axes for axes in canvas.axes if axes.get_xlabel() == "% on task"]
    written = [text for axes in grids for text in axes.findobj(Text) if "online-EWC" in text.get_text()]
    titles = [text.get_window_extent() for text in written]
    assert len(titles) == 7 and not any(a.overlaps(b) for a, b in itertools.combinations(titles, 2))
    assert max(title.x1 for title in titles) <= canvas.bbox.x1


@pytest.mark.parametrize(
    ("letters", "across", "columns"), [([5] * 4, 3, 3), ([5], 3, 1), ([5, 60], 3, 2), ([5, 60], 2, 1), ([99, 5], 2, 1)]
)
def test_as_many_labels_stand_beside_each_other_as_are_whole(letters, across, columns):
    assert legend_columns(["x" * count for count in letters], across) == columns
