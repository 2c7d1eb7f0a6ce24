import csv
import dataclasses
import re
import statistics
from collections import Counter
from pathlib import Path

import pytest

from anchorhold.errors import ConfigurationError
from anchorhold_lab.experiments import Result, Spec, Store, Summary
from anchorhold_lab.experiments.store.nested_files import read_nested
from studies.benzing2020 import ITEMS, items_named, reproduce, run_nothing
from studies.benzing2020.drawing.tables.run_tables import (
    AVERAGE_COLUMNS,
    FORM_COLUMNS,
    HOLD_COLUMNS,
    KIND_COLUMNS,
    RATE_COLUMNS,
    RUNS_COLUMNS,
    csv_files,
)
from studies.benzing2020.findings import Results
from studies.benzing2020.needed_runs import accuracy_runs
from studies.benzing2020.presets import BENCHMARKS, DIGITS
from tests.lab.report.browser import Browser
from tests.studies.benzing2020.conftest import on_cpu
from tests.studies.benzing2020.tiny import tiny_preset, with_unknown_strength

RESULTS = ("status", "average_accuracy", "accuracies", "seconds", "side_by_side", "device", "commit")
"""The columns that say what came out of a run, rather than which one it is."""


def rows(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def counted_report(results, tmp_path_factory):
    """All items: what came out, the report's folder, and how often each spec was made and each file was read for it."""
    folder, preset = tmp_path_factory.mktemp("report"), dataclasses.replace(results.preset)  # without specs it has made
    with pytest.MonkeyPatch.context() as patch:
        made, read = count_specs(patch), count_files(patch)
        found = reproduce(items_named(["all"]), preset, results.store, folder, run=refuse)
    return found, folder, Counter(spec.id for spec in made), Counter(read)


@pytest.fixture(scope="module")
def reproduced(counted_report):
    """All items: what came out, and the report's folder."""
    return counted_report[:2]


def test_items_come_in_the_order_of_their_value():
    assert [item.name for item in items_named(["figure2", "table1"])] == ["table1", "figure2"]
    assert [item.name for item in items_named(["all"])] == list(ITEMS)
    with pytest.raises(ConfigurationError, match="'table7'; there are all, forgetting, table1"):
        items_named(["table7"])


@pytest.mark.nightly
def test_everything_is_reported_and_nothing_run_twice(reproduced):
    found, folder = reproduced
    assert found.complete and not found.interrupted
    assert found.index == folder / "index.html"
    page = found.index.read_text(encoding="utf-8")
    for item in ITEMS.values():
        assert item.title in page
    assert "Runs without a result" not in page
    assert (
        "paper, Split CIFAR" not in page and "beside the paper's" not in page
    )  # none of its numbers stands beside digits
    assert {path.suffix for path in (folder / "figures").iterdir()} == {".png", ".pdf", ".svg"}


@pytest.mark.nightly
def test_what_is_forgotten_is_told_first(reproduced, results):
    found, folder = reproduced
    assert found.index.read_text(encoding="utf-8").index(ITEMS["forgetting"].title) > 0
    told = {row["method"]: row for row in rows(folder / "data" / "forgetting-after-all.csv")}
    for algorithm, name in (("fine-tune", "fine-tuning"), ("rotated EWC", "rotated EWC")):
        runs = results.finished(accuracy_runs(results.preset, "CIFAR", algorithm))
        for what, figure in (("forgotten", "forgetting"), ("accuracy", "average_accuracy")):
            mean = statistics.mean(100 * getattr(run, figure) for run in runs)
            assert float(told[name][f"Split digits: {what}"]) == pytest.approx(mean)


@pytest.mark.nightly
def test_table1_csv(reproduced, results):
    _, folder = reproduced
    found = rows(folder / "table1.csv")
    columns = "benchmark algorithm mean stderr runs paper_mean paper_stderr seconds_per_run authors_data"
    assert list(found[0]) == columns.split()
    names = [(row["benchmark"], row["algorithm"]) for row in found]
    assert names[:3] == [("Permuted digits", "SI"), ("Permuted digits", "SIB"), ("Permuted digits", "SIU")]
    assert ("Split digits", "SOS(2048)") in names and ("Permuted digits", "L2-growing") in names
    runs = results.finished(accuracy_runs(results.preset, "P-MNIST", "SI"))
    accuracies = [100 * run.average_accuracy for run in runs]
    assert float(found[0]["mean"]) == pytest.approx(statistics.mean(accuracies), abs=6e-4)
    assert float(found[0]["stderr"]) == pytest.approx(statistics.stdev(accuracies) / 2**0.5, abs=6e-4)
    assert (found[0]["runs"], found[0]["paper_mean"], found[0]["paper_stderr"]) == ("2", "", "")
    assert found[0]["authors_data"] == ""
    assert float(found[0]["seconds_per_run"]) == pytest.approx(statistics.mean(run.seconds for run in runs), abs=6e-3)


@pytest.mark.nightly
def test_the_papers_numbers_stand_beside_runs_that_follow_it_alone(results, tmp_path):
    """There the benchmarks have the paper's names too; a bound is no mean."""
    following = Results(results.store, dataclasses.replace(results.preset, follows_the_paper=True))
    (tmp_path / "table1.csv").write_bytes(csv_files(following, [])["table1.csv"])
    found = {(row["benchmark"], row["algorithm"]): row for row in rows(tmp_path / "table1.csv")}
    published = {key: (row["paper_mean"], row["paper_stderr"]) for key, row in found.items()}
    assert found["P-MNIST", "SI"]["authors_data"] == "97.24" and found["P-MNIST", "SOS"]["authors_data"] == ""
    assert published["P-MNIST", "SI"] == ("97.2", "0.1")
    assert published["CIFAR", "SOS(2048)"] == ("74.4", "0.1")
    assert published["P-MNIST", "L2-growing"] == ("88.0", "")
    assert published["P-MNIST", "magnitude"] == ("", "")


@pytest.mark.nightly
def test_runs_csv_has_every_run_with_the_accuracy_on_each_task(reproduced):
    found, folder = reproduced
    lines = rows(folder / "runs.csv")
    every = (*RUNS_COLUMNS, *FORM_COLUMNS, *HOLD_COLUMNS, *KIND_COLUMNS, *AVERAGE_COLUMNS, *RATE_COLUMNS)
    assert tuple(lines[0]) == every
    assert [line["id"] for line in lines] == [spec.id for spec in found.specs]
    for line in lines:
        single = [float(accuracy) for accuracy in line["accuracies"].split()]
        assert len(single) == int(line["tasks"])
        assert statistics.mean(single) == pytest.approx(float(line["average_accuracy"]), abs=2e-3)
    described = [tuple(value for name, value in line.items() if name not in ("id", *RESULTS)) for line in lines]
    assert len(set(described)) == len(lines)  # no two runs look the same


@pytest.mark.nightly
def test_the_report_in_a_browser(reproduced, tmp_path):
    """Every figure decodes, in the page as it comes out of real runs, and no cell says that it is not a number."""
    found, folder = reproduced
    with Browser(tmp_path) as browser:
        browser.open(found.index, width=1600)
        widths = browser.evaluate(
            "Promise.all([...document.images].map(async image => { await image.decode(); return image.naturalWidth; }))"
        )
        assert len(widths) == len(list((folder / "figures").glob("*.png"))) >= 12
        assert all(width > 100 for width in widths)
        text = browser.evaluate("document.body.innerText")
        assert not re.search(r"\bnan\b|not measured|None", text)
        links = browser.evaluate("[...document.querySelectorAll('a[href$=\"csv\"]')].map(a => a.getAttribute('href'))")
        assert {"table1.csv", "runs.csv"} <= set(links)
        assert all((found.index.parent / link).exists() for link in links)


def test_without_runs_the_report_says_what_is_missing(tmp_path):
    found = reproduce(items_named(["long-training"]), tiny_preset(), Store(tmp_path / "s"), tmp_path, run=run_nothing)
    assert (found.finished, len(found.specs), found.complete) == (0, 4, False)
    assert "Runs without a result" in found.index.read_text(encoding="utf-8")
    missing = rows(tmp_path / "data" / "runs-without-result.csv")
    assert [(line["seeds"], line["status"]) for line in missing] == [("0–1", "not begun")] * 2
    assert rows(tmp_path / "table1.csv") == []
    assert {line["status"] for line in rows(tmp_path / "runs.csv")} == {"unknown"}


def count_specs(patch):
    """Return what comes to hold every spec that is made from now on, by hand or from a file."""
    made, check = [], Spec.__post_init__

    def counted(spec):
        made.append(spec)
        check(spec)

    patch.setattr(Spec, "__post_init__", counted)
    return made


def count_files(patch):
    """Return what comes to hold the run of every result and every file of observations that is read from now on."""
    read, parse = [], Result.from_dict

    def parsed(content):
        result = parse(content)
        read.append(f"result of {result.spec.id}")
        return result

    def nested(path):
        read.append(f"observations of {path.parent.name}")
        return read_nested(path)

    patch.setattr(Result, "from_dict", parsed)
    patch.setattr("anchorhold_lab.experiments.store.run_files.read_nested", nested)
    return read


def of_two_rows(preset):
    """Return the runs of EWC, in Table 1 and among the ways of keeping, and of SOS(2048), there and searched for.

    Each is one run where both chose the same.
    """
    kept = [spec for benchmark in BENCHMARKS for spec in accuracy_runs(preset, benchmark, "EWC, tried alike")]
    return {spec.id for spec in (*kept, *accuracy_runs(preset, "P-MNIST", "SOS(2048), long window"))}


@pytest.mark.nightly
def test_however_many_items_and_claims_ask_for_a_run_its_spec_is_made_once(counted_report, results):
    found, _, made, _ = counted_report
    assert len(found.verdicts) > 10 and {spec.id for spec in found.specs} <= set(made)
    of_two = of_two_rows(results.preset)
    assert all(count <= 2 + (run in of_two) for run, count in made.items())  # once more by its result


@pytest.mark.nightly
def test_every_file_is_read_once_however_many_look_at_it(counted_report):
    found, _, _, read = counted_report
    observed = [f"observations of {spec.id}" for spec in found.specs if spec.probes]
    assert observed
    assert {*(f"result of {spec.id}" for spec in found.specs), *observed} <= set(read)
    assert max(read.values()) == 1


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


@pytest.mark.nightly
def test_unknown_strengths_are_searched_for_on_validation_data(tmp_path, monkeypatch):
    files_read = count_files(monkeypatch)
    preset, store = with_unknown_strength(), Store(tmp_path / "store")
    items = items_named(["table1"])
    left = reproduce(items, preset, store, tmp_path / "before", run=run_nothing)
    assert left.searches_left == 1
    assert "to be searched for" in left.index.read_text(encoding="utf-8")

    def only_l2(specs, store):
        return on_cpu([spec for spec in specs if spec.measure == "L2"], store)

    reproduce(items, preset, store, tmp_path / "first", run=only_l2)
    files_read.clear()
    found = reproduce(items, preset, store, tmp_path / "after", run=run_nothing)
    assert found.searches_left == 0
    assert Counter(files_read).most_common(1)[0][1] == 1  # by the search, and by the report on what it has found
    searched = {}
    for result in store.results():
        if result.spec.judge_by == "validation":
            point = (result.spec.strength, result.spec.settings.reinitialise)
            searched.setdefault(point, {})[result.spec.seed] = result.average_accuracy
    assert len(searched) > 7 and all(not {0, 1} & set(seeds) for seeds in searched.values())
    finalists = {point: statistics.mean(seeds.values()) for point, seeds in searched.items() if len(seeds) == 3}
    assert len(finalists) == 4
    best = max(finalists, key=lambda point: (round(finalists[point], 9), -point[0], not point[1]))
    (line,) = (row for row in rows(tmp_path / "after" / "table1.csv") if row["algorithm"] == "L2")
    assert line["runs"] == "2"
    tested = {row["strength"] for row in rows(tmp_path / "after" / "runs.csv") if row["measure"] == "L2"}
    assert tested == {str(best[0])}
    how = ", re-initialised," if best[1] else ""
    assert (
        f"Found by search: c = {best[0]:g}{how} for L2 on {preset.stages['P-MNIST'].title}."
        in found.index.read_text(encoding="utf-8")
    )
    assert "Found by search" not in left.index.read_text(encoding="utf-8")


def refuse(specs, store):
    raise AssertionError(f"{len(specs)} runs were asked for")


@pytest.mark.parametrize("run", [refuse, run_nothing], ids=["with runs", "only the report"])
@pytest.mark.parametrize("where", ["a file", "below a file", "a folder for the system alone"])
def test_a_folder_that_cannot_be_written_is_refused_before_the_first_run(tmp_path, where, run):
    (tmp_path / "file").write_text("something of value")
    folder = {
        "a file": tmp_path / "file",
        "below a file": tmp_path / "file" / "report",
        "a folder for the system alone": Path("/proc/self/report"),
    }[where]
    with pytest.raises(ConfigurationError) as error:
        reproduce(items_named(["long-training"]), tiny_preset(), Store(tmp_path / "store"), folder, run=run)
    assert f"cannot be written to {folder}: " in str(error.value) and "Name another one" in str(error.value)
    assert (tmp_path / "file").read_text() == "something of value"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_a_folder_that_cannot_be_written_any_more_is_named_and_the_runs_are_kept(tmp_path):
    store, folder = Store(tmp_path / "store"), tmp_path / "report"

    def then_in_the_way(specs, store):
        (folder / "figures").write_text("a file where a folder goes")
        return on_cpu(specs, store)

    items = items_named(["long-training"])
    with pytest.raises(ConfigurationError, match="in the store, and not made again"):
        reproduce(items, tiny_preset(), store, folder, run=then_in_the_way)
    assert reproduce(items, tiny_preset(), store, tmp_path / "another", run=refuse).complete


@pytest.fixture
def long_training(tmp_path):
    """A store with the four runs of an item, and where their results are."""
    store = Store(tmp_path / "store")
    found = reproduce(items_named(["long-training"]), tiny_preset(), store, tmp_path / "whole", run=on_cpu)
    return store, [store.run_folder(spec.id) / "result.json" for spec in found.specs]


@pytest.mark.parametrize("content", ["{", "[]", '{"matrix": 1}'], ids=["cut short", "no object", "other fields"])
@pytest.mark.parametrize("run", [refuse, run_nothing], ids=["with runs", "only the report"])
def test_a_damaged_result_is_listed_with_its_remedy_and_the_others_are_reported(tmp_path, long_training, content, run):
    store, paths = long_training
    paths[1].write_text(content)
    found = reproduce(items_named(["long-training"]), tiny_preset(), store, tmp_path, run=run)
    assert (found.finished, found.failed, len(found.specs), found.complete) == (3, 0, 4, False)
    (damage,) = found.damaged
    assert damage.startswith(f"{paths[1]} is damaged (") and damage.endswith("Restore or remove it.")
    (line,) = rows(tmp_path / "data" / "runs-without-result.csv")
    assert (line["status"], line["reason"]) == ("damaged", damage)
    assert [line["status"] for line in rows(tmp_path / "runs.csv")] == ["finished", "damaged", "finished", "finished"]
    assert paths[1].read_text() == content


def test_once_a_damaged_result_is_removed_the_run_is_made_again(tmp_path, long_training):
    store, paths = long_training
    paths[1].write_text("{")
    paths[1].unlink()
    assert reproduce(items_named(["long-training"]), tiny_preset(), store, tmp_path, run=on_cpu).complete


@pytest.mark.nightly
def test_damaged_observations_are_listed_too(tmp_path):
    store, items = Store(tmp_path / "store"), items_named(["gradient-noise"])
    whole = reproduce(items, tiny_preset(), store, tmp_path / "whole", run=on_cpu)
    path = store.run_folder(whole.specs[0].id) / "observations.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    found = reproduce(items, tiny_preset(), store, tmp_path, run=run_nothing)
    assert (found.finished, len(found.damaged)) == (whole.finished - 1, 1)
    (line,) = rows(tmp_path / "data" / "runs-without-result.csv")
    assert line["status"] == "damaged" and f"Remove the folder {path.parent}" in line["reason"]


def test_a_search_that_needs_a_damaged_run_leaves_its_place_open(tmp_path):
    preset, store, items = with_unknown_strength(), Store(tmp_path / "store"), items_named(["table1"])

    def first_of_the_search(specs, store):
        on_cpu([spec for spec in specs if spec.judge_by == "validation"][:1], store)
        return Summary(interrupted=True)

    reproduce(items, preset, store, tmp_path / "before", run=first_of_the_search)
    (spec,) = (result.spec for result in store.results())
    path = store.run_folder(spec.id) / "result.json"
    path.write_text("{")
    found = reproduce(items, preset, store, tmp_path, run=run_nothing)
    assert found.searches_left == 1 and len(found.damaged) == 1 and str(path) in found.damaged[0]
    *_, line = rows(tmp_path / "data" / "runs-without-result.csv")
    assert (line["run"], line["status"], line["reason"]) == ("L2 on P-MNIST", "damaged", found.damaged[0])


@pytest.mark.nightly
def test_on_digits_mas_is_close_to_the_fishers_root_as_the_paper_says(tmp_path):
    found = reproduce(items_named(["figure2"]), DIGITS, Store(tmp_path / "store"), tmp_path, run=on_cpu)
    assert found.complete and len(found.verdicts) == 6
    assert {verdict.name: verdict.answer for verdict in found.verdicts if verdict.answer != "holds"} == {}
