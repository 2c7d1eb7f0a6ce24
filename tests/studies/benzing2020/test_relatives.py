"""The methods that the paper stands among, as a report on them."""

import dataclasses
import math

import pytest

from anchorhold.errors import ConfigurationError
from anchorhold_lab.analysis import Estimate
from anchorhold_lab.experiments import Store, execute
from studies.benzing2020 import PRESETS, items_named, reproduce
from studies.benzing2020.claims import check
from studies.benzing2020.claims.our_own.relatives import CLAIMS
from studies.benzing2020.drawing.tables.relatives_table import choice_of, left_to_run, relatives_table, verdict
from studies.benzing2020.findings import Results
from studies.benzing2020.relatives import Reported, Row, Study
from studies.benzing2020.relatives.narrowing import some_of
from studies.benzing2020.relatives.study import references, strengths, tried
from studies.benzing2020.reproduction import run_nothing
from studies.benzing2020.tried_settings import SHARES
from tests.studies.benzing2020.tiny import tiny_preset


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Results of the tiny studies, but for one of two runs of EWC."""
    preset, store = tiny_preset(), Store(tmp_path_factory.mktemp("relatives") / "store")
    study = preset.relatives[0]
    specs = [spec for each in preset.relatives for row in each.rows for spec in each.runs(row)]
    left = study.runs(study.row("EWC"))[1]
    execute([spec for spec in specs if spec != left], store, device="cpu")
    return Results(store, preset)


def test_ours_stand_beside_theirs_with_a_verdict(made):
    table = relatives_table(made, made.preset.relatives[0])
    cells = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert cells["fine-tuning"]["reported"] == "99.0 (remembered)"
    assert cells["fine-tuning"]["verdict"].startswith("below by ")
    assert cells["EWC"]["reported"] == "0.5" and cells["EWC"]["verdict"].startswith("above by ")
    assert cells["EWC"]["differs"] == "a little" and cells["EWC"]["runs"] == 1
    assert cells["VCL"]["reported"] is None and cells["VCL"]["accuracy"].mean > 0


def test_only_somebodys_protocol_can_differ_from_ours(made):
    study = dataclasses.replace(made.preset.relatives[0], source="Somebody", differs="One run.")
    assert "Ours differs: One run." in relatives_table(made, study).caption
    own = relatives_table(made, dataclasses.replace(study, source="")).caption
    assert "One run." in own and "differs" not in own


def test_a_verdict_counts_a_point_or_two_errors():
    reported = Reported(90.0, "a table")
    assert verdict(Estimate(89.1, math.nan, 1), reported) == "as reported"
    assert verdict(Estimate(88.9, 0.1, 3), reported) == "below by 1.1"
    assert verdict(Estimate(87.0, 1.6, 3), reported) == "as reported"
    assert verdict(Estimate(93.5, 1.6, 3), reported) == "above by 3.5"


def test_what_is_left_comes_with_its_command(made):
    (table,) = left_to_run(made, made.preset.relatives)
    ((study, method, count, why, command),) = table.rows
    assert (study, method, count, why) == ("Tiny", "EWC", 1, None)
    assert command.startswith("anchorhold-lab run permuted-digits -m EWC -c 1 --seed 1 ")


def test_what_has_failed_is_left_with_a_reason(tmp_path):
    rows = (Row("L2", "L2", {"strength": 1e9, "learning_rate": 1e9, "optimizer": "sgd"}),)
    usual = {"tasks": 2, "epochs": 1, "hidden": (5,), "batch_size": 64}
    study = Study("wild", "Wild", "permuted-digits", usual, rows, 1)
    preset = dataclasses.replace(tiny_preset(), relatives=(study,))
    store = Store(tmp_path / "store")
    execute(study.runs(study.rows[0]), store, device="cpu")
    (table,) = left_to_run(Results(store, preset), preset.relatives)
    ((*_, why, command),) = table.rows
    assert "diverged" in why and command.startswith("anchorhold-lab run ") and "--retry-failed" in table.caption


def test_claims_are_decided_where_their_runs_are(made, tmp_path):
    assert all(check(claim, made).answer != "not run" for claim in CLAIMS)
    empty = Results(Store(tmp_path / "empty"), made.preset)
    assert all("has finished" in check(claim, empty).note for claim in CLAIMS)
    without = Results(made.store, dataclasses.replace(made.preset, relatives=()))
    assert all("no study is about" in check(claim, without).note for claim in CLAIMS)


def test_the_item_goes_on_where_it_was_left(made, tmp_path):
    def run(specs, store):
        assert [spec.seed for spec in specs] == [1]
        return execute(specs, store, device="cpu")

    found = reproduce(items_named(["relatives"]), made.preset, made.store, tmp_path / "report", run=run)
    assert found.complete and "Not reached yet" not in found.index.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_each_run_once_and_each_about(name):
    preset = PRESETS[name]
    assert sum(study.runs_wanted(row) for study in preset.relatives for row in study.rows) >= 100
    for about in ("task", "domain", "class", "one pass", "distributions"):
        study = next(study for study in preset.relatives if study.about == about)
        anew = "training anew, told the task" if about in ("domain", "class") else "training anew"
        assert {"fine-tuning", "replay", "A-GEM", "DER++", "LwF", "GPM", "joint training", anew} <= {
            row.name for row in study.rows
        }


def test_what_is_tried_is_judged_on_validation_data_and_then_run(tmp_path):
    """Every method of a study has as many tries, by one seed that no run has; then the best one's runs are made."""
    usual = {"tasks": 2, "epochs": 2, "hidden": (6,), "batch_size": 64, "reinitialise": False}
    rows = (Row("EWC", "EWC", tried=strengths(1e-6, 1e6)), *tried(references(8, 8))[:1], Row("fine-tuning"))
    study = Study("tried", "Tried", "permuted-digits", usual, rows, 1, while_trying={"epochs": 1})
    preset = dataclasses.replace(tiny_preset(), relatives=(study,))
    made = []

    def run(specs, store):
        made.extend(specs)
        return execute(specs, store, device="cpu")

    item = items_named(["relatives"])
    unreached = reproduce(item, preset, Store(tmp_path / "empty"), tmp_path / "before", run=run_nothing)
    assert unreached.searches_left == 2 and not unreached.complete
    page = unreached.index.read_text(encoding="utf-8")
    assert "python -m studies.benzing2020 relatives --preset digits --study tried --method EWC" in page
    assert "What is best for it is to be found" in page

    store = Store(tmp_path / "store")
    found = reproduce(item, preset, store, tmp_path / "report", run=run)
    assert found.complete
    tries = [spec for spec in made if spec.judge_by == "validation"]
    assert [spec.strength for spec in tries[:2]] == [1e-6, 1e6]
    assert [dict(spec.hold_settings["replay"])["share"] for spec in tries[2:]] == list(SHARES)
    assert {(spec.seed, spec.settings.epochs) for spec in tries} == {(1000, 1)}
    best = max(tries[:2], key=lambda spec: store.get(spec.id).average_accuracy)
    runs = {spec.measure: spec for spec in made if spec.judge_by == "test" and not spec.holds}
    assert runs["EWC"].strength == best.strength and runs["EWC"].settings.epochs == 2
    size = "largest" if best.strength > 1 else "smallest"
    assert f"strength {best.strength:g}, the {size} of 2" in found.index.read_text(encoding="utf-8")


def test_what_was_chosen_is_told_with_where_it_lies_among_the_tries():
    def of(strength):
        row = Row("EWC", "EWC", tried=strengths(1.0, 10.0, 100.0))
        return choice_of(dataclasses.replace(row, chosen={"strength": strength}))

    told = [of(each) for each in (1.0, 10.0, 100.0)]
    assert told == ["strength 1, the smallest of 3", "strength 10, of 3", "strength 100, the largest of 3"]
    pairs = tuple({"hold_settings": {"DER++": {"alpha": a, "beta": a}}} for a in (0.1, 1.0))
    both = dataclasses.replace(Row("DER++", tried=pairs), chosen=pairs[1])
    assert choice_of(both) == "alpha 1, beta 1, of 2"


def test_a_part_of_the_studies_has_the_same_runs():
    studies = PRESETS["paper"].relatives
    (chosen,) = some_of(studies, ["One-Pass"], ["gpm", "A-GEM"])
    (whole,) = [study for study in studies if study.name == "one-pass"]
    assert [row.name for row in chosen.rows] == ["A-GEM", "GPM"]  # in the study's order
    assert chosen.runs(chosen.row("A-GEM")) == whole.runs(whole.row("A-GEM"))
    assert some_of(studies, [], []) == studies
    assert {study.name for study in some_of(studies, [], ["VCL with coresets"])} == {"vcl-split", "vcl-permuted"}
    with pytest.raises(ConfigurationError, match="No method is called 'GPM2'"):
        some_of(studies, ["one-pass"], ["GPM2"])
    with pytest.raises(ConfigurationError, match="has no studies"):
        some_of((), [], ["GPM"])
