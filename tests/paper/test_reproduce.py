import csv
import statistics

import pytest

from holdfast.errors import ConfigurationError
from holdfast.experiments import Store, Summary
from holdfast.paper import ITEMS, items_named, reproduce, run_nothing
from holdfast.paper.csv_files import RUNS_COLUMNS
from holdfast.paper.presets import DIGITS
from holdfast.paper.runs import accuracy_runs
from tests.paper.conftest import on_cpu
from tests.paper.tiny import tiny_preset, with_unknown_strength


def rows(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def reproduced(results, tmp_path_factory):
    """All items: what came out, and the report's folder."""
    folder = tmp_path_factory.mktemp("report")

    def refuse(specs, store):
        raise AssertionError(f"{len(specs)} runs that have finished were asked for again")

    return reproduce(items_named(["all"]), results.preset, results.store, folder, run=refuse), folder


def test_items_come_in_the_order_of_their_value():
    assert [item.name for item in items_named(["figure2", "table1"])] == ["table1", "figure2"]
    assert [item.name for item in items_named(["all"])] == list(ITEMS)
    with pytest.raises(ConfigurationError, match="'table7'; there are all, table1"):
        items_named(["table7"])


@pytest.mark.slow
def test_everything_is_reported_and_nothing_run_twice(reproduced):
    found, folder = reproduced
    assert found.complete and not found.interrupted
    assert found.index == folder / "index.html"
    page = found.index.read_text(encoding="utf-8")
    for item in ITEMS.values():
        assert item.title in page
    assert "Runs without a result" not in page
    assert {path.suffix for path in (folder / "figures").iterdir()} == {".png", ".pdf", ".svg"}


@pytest.mark.slow
def test_table1_csv(reproduced, results):
    _, folder = reproduced
    found = rows(folder / "table1.csv")
    columns = "benchmark algorithm mean stderr runs paper_mean paper_stderr seconds_per_run"
    assert list(found[0]) == columns.split()
    names = [(row["benchmark"], row["algorithm"]) for row in found]
    assert names[:3] == [("P-MNIST", "SI"), ("P-MNIST", "SIB"), ("P-MNIST", "SIU")]
    assert ("CIFAR", "SOS(2048)") in names and ("P-MNIST", "L2-growing") in names
    runs = results.finished(accuracy_runs(results.preset, "P-MNIST", "SI"))
    accuracies = [100 * run.average_accuracy for run in runs]
    assert float(found[0]["mean"]) == pytest.approx(statistics.mean(accuracies), abs=6e-4)
    assert float(found[0]["stderr"]) == pytest.approx(statistics.stdev(accuracies) / 2**0.5, abs=6e-4)
    assert (found[0]["runs"], found[0]["paper_mean"], found[0]["paper_stderr"]) == ("2", "97.2", "0.1")


@pytest.mark.slow
def test_runs_csv_has_every_run_with_the_accuracy_on_each_task(reproduced):
    found, folder = reproduced
    lines = rows(folder / "runs.csv")
    assert tuple(lines[0]) == RUNS_COLUMNS
    assert [line["id"] for line in lines] == [spec.id for spec in found.specs]
    for line in lines:
        single = [float(accuracy) for accuracy in line["accuracies"].split()]
        assert len(single) == int(line["tasks"])
        assert statistics.mean(single) == pytest.approx(float(line["average_accuracy"]), abs=2e-3)


def test_without_runs_the_report_says_what_is_missing(tmp_path):
    found = reproduce(items_named(["long-training"]), tiny_preset(), Store(tmp_path / "s"), tmp_path, run=run_nothing)
    assert (found.finished, len(found.specs), found.complete) == (0, 4, False)
    assert "Runs without a result" in found.index.read_text(encoding="utf-8")
    assert [line["status"] for line in rows(tmp_path / "data" / "runs-without-result.csv")] == ["not begun"] * 4
    assert rows(tmp_path / "table1.csv") == []
    assert {line["status"] for line in rows(tmp_path / "runs.csv")} == {"unknown"}


def test_a_stopped_study_gives_a_partial_report_and_goes_on(tmp_path):
    store, items = Store(tmp_path / "store"), items_named(["long-training"])

    def half(specs, store):
        on_cpu(specs[: len(specs) // 2], store)
        return Summary(interrupted=True)

    found = reproduce(items, tiny_preset(), store, tmp_path, run=half)
    assert found.interrupted and 0 < found.finished < len(found.specs)
    assert {line["status"] for line in rows(tmp_path / "runs.csv")} == {"finished", "unknown"}
    assert reproduce(items, tiny_preset(), store, tmp_path, run=on_cpu).complete


def test_runs_that_fail_are_shown_with_their_reason(tmp_path):
    diverging = {**DIGITS.stages["P-MNIST"].variants, "long training": {"optimizer": "sgd", "learning_rate": 1e30}}
    preset = tiny_preset(variants=diverging)
    found = reproduce(items_named(["long-training"]), preset, Store(tmp_path / "s"), tmp_path, run=on_cpu)
    assert (found.finished, found.failed, found.complete) == (2, 2, False)
    assert "training has diverged" in found.index.read_text(encoding="utf-8")


@pytest.mark.slow
def test_unknown_strengths_are_searched_for_on_validation_data(tmp_path):
    preset, store = with_unknown_strength(), Store(tmp_path / "store")
    items = items_named(["table1"])
    left = reproduce(items, preset, store, tmp_path / "before", run=run_nothing)
    assert left.searches_left == 1
    assert "to be searched for" in left.index.read_text(encoding="utf-8")

    def only_l2(specs, store):
        return on_cpu([spec for spec in specs if spec.measure == "L2"], store)

    found = reproduce(items, preset, store, tmp_path / "after", run=only_l2)
    assert found.searches_left == 0
    searched = [result for result in store.results() if result.spec.judge_by == "validation"]
    assert len(searched) > 7 and not {result.spec.seed for result in searched} & {0, 1}
    best = max(searched, key=lambda result: (round(result.average_accuracy, 9), -result.spec.strength)).spec
    (line,) = (row for row in rows(tmp_path / "after" / "table1.csv") if row["algorithm"] == "L2")
    assert line["runs"] == "2"
    tested = {row["strength"] for row in rows(tmp_path / "after" / "runs.csv") if row["measure"] == "L2"}
    assert tested == {str(best.strength)}


@pytest.mark.slow
def test_on_digits_mas_is_close_to_the_fishers_root_as_the_paper_says(tmp_path):
    found = reproduce(items_named(["figure2"]), DIGITS, Store(tmp_path / "store"), tmp_path, run=on_cpu)
    assert found.complete and len(found.verdicts) == 6
    assert [verdict.name for verdict in found.verdicts if not verdict.holds] == []
