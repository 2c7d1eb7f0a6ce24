"""The item beyond the diagonal: what it asks for, and what its tables and figures show."""

import dataclasses

import numpy as np
import pytest

from anchorhold_lab.experiments import Store
from anchorhold_lab.report import Measured
from studies.benzing2020 import ITEMS, PRESETS
from studies.benzing2020.drawing.kept_accuracy import of_every_task, of_first_task, on_average_so_far
from studies.benzing2020.drawing.tables.form_table import form_table
from studies.benzing2020.findings import NotMeasuredError, Results
from studies.benzing2020.needed_runs import accuracy_runs
from studies.benzing2020.searched_strengths import unknown_strengths
from tests.lab.experiments.helpers import result_of
from tests.studies.benzing2020.tiny import tiny_preset

FORMS = ITEMS["forms"]


def finished(store, specs, matrix):
    """Let runs have finished, each with the accuracies that are given, and the seed's number of per cent more."""
    for spec in specs:
        more = np.asarray(matrix) + spec.seed / 100
        claim = store.claim(spec)
        claim.finish(dataclasses.replace(result_of(spec, 0.5), matrix=tuple(map(tuple, more.tolist()))))
        claim.release()


@pytest.fixture
def results(tmp_path):
    """Results of two tasks: of diagonal EWC, of rotated EWC and of one row of Table 1."""
    store, preset = Store(tmp_path / "store"), tiny_preset()
    matrices = {
        "diagonal EWC": [[0.9, 0.1], [0.6, 0.8]],
        "rotated EWC": [[0.9, 0.1], [0.8, 0.88]],
        "MAS": [[0.9, 0.1], [0.7, 0.7]],
        "SI": [[0.9, 0.1], [0.6, 0.7]],
    }
    for name, matrix in matrices.items():
        finished(store, accuracy_runs(preset, "P-MNIST", name), matrix)
    return Results(store, preset)


def test_what_is_worth_most_is_searched_for_first():
    order = [(b, row.variant) for b, row in unknown_strengths(PRESETS["paper"], FORMS.algorithms)]
    mnist, cifar = (order.index((benchmark, "rotated")) for benchmark in ("P-MNIST", "CIFAR"))
    few, many = (
        order.index(("P-MNIST", variant)) for variant in ("rotated, few samples, damped", "rotated, many tasks")
    )
    assert (mnist, cifar) == (0, 2) and cifar < few < many
    assert len(order) == 14 and {row.measure for row in FORMS.algorithms} == {"EWC", "fine-tune"}


def test_fine_tuning_is_that_of_table_1():
    own, table1 = ({spec.id for spec in ITEMS[item].runs(PRESETS["paper"])} for item in ("forms", "table1"))
    assert own and own < table1  # as long as no strength is known


def test_what_is_kept_is_read_from_the_accuracies_after_each_task(results):
    read = results, "P-MNIST", "diagonal EWC"
    np.testing.assert_allclose(of_first_task(*read), [[90, 60], [91, 61]])
    np.testing.assert_allclose(of_every_task(*read), [[60, 80], [61, 81]])
    np.testing.assert_allclose(on_average_so_far(*read), [[90, 70], [91, 71]])
    with pytest.raises(NotMeasuredError, match="no run of diagonal EWC on CIFAR has finished"):
        of_first_task(results, "CIFAR", "diagonal EWC")


def test_the_table_has_first_and_last_task_and_the_best_of_table_1(results):
    found = form_table("t", "Caption.", results, "P-MNIST", ("fine-tune", "diagonal EWC", "rotated EWC"))
    assert found.columns == ("method", "accuracy", "first task", "last task", "strength", "runs")
    rows = {row[0]: row[1:] for row in found.rows}
    assert list(rows) == ["fine-tune", "diagonal EWC", "rotated EWC", "best of Table 1: MAS"]
    assert rows["fine-tune"] == (None,) * 5
    assert [cell.mean for cell in rows["diagonal EWC"][:3]] == pytest.approx([70.5, 60.5, 80.5])
    assert rows["diagonal EWC"][0].error == pytest.approx(0.5)
    assert rows["rotated EWC"][3:] == (20.0, 2)


def test_others_numbers_stand_in_a_column_of_their_own_where_the_paper_is_followed(results):
    preset = dataclasses.replace(results.preset, follows_the_paper=True)
    found = form_table("t", "Caption.", Results(results.store, preset), "CIFAR", ("rotated EWC",))
    assert found.columns[-1] == "in other papers"
    assert [(row[0], row[-1]) for row in found.rows] == [
        ("rotated EWC", None),
        ("best of Table 1", None),
        ("the paper's best: SIB", Measured(75.1, 0.1, decimals=1)),
        ("FROMP, which stores images", Measured(76.2, None, decimals=1)),
    ]
    assert all(cell is None for row in found.rows for cell in row[1:-1])


def test_figures_show_what_there_is(results):
    *_, kept, samples, many = FORMS.draw(results)
    lines = {(row[0], row[1]) for row in kept.data.rows}
    titles = ("Permuted digits: the first task", "Permuted digits: every task")
    assert lines == {(title, form) for title in titles for form in ("diagonal", "rotated")}
    assert {(row[1], row[2], row[5]) for row in samples.data.rows} == {("diagonal", 20, 2), ("rotated", 20, 2)}
    assert many.data is None


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_captions_tell_the_presets_own_numbers(preset, tmp_path):
    mnist, _, _, samples, many = FORMS.draw(Results(Store(tmp_path), preset))
    variants = preset.stages["P-MNIST"].variants
    assert f"from {variants['rotated']['samples']:,} samples a task" in mnist.caption
    assert f"With {variants['rotated, few samples']['samples']:,} of them" in samples.caption
    assert many.caption.startswith(f"{variants['rotated, many tasks']['tasks']} tasks, ")
