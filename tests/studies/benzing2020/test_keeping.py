"""The item of other ways of keeping: what it asks for, how settings are tried, and what its tables show."""

import dataclasses

import pytest

from anchorhold_lab.experiments import Store, Summary, best_tried, paper_spec
from anchorhold_lab.experiments.store.run_results import Failure
from studies.benzing2020 import ITEMS, PRESETS
from studies.benzing2020.algorithms import ALGORITHMS, BOUNDS, KEEPING
from studies.benzing2020.findings import Results
from studies.benzing2020.needed_runs import accuracy_runs
from studies.benzing2020.presets import BENCHMARKS, DIGITS, PAPER
from studies.benzing2020.presets.keeping_variants import choices, keeping, tries
from studies.benzing2020.presets.miniature import PERMUTED_TRIES, SPLIT_TRIES
from studies.benzing2020.searched_strengths import find_strengths, unknown_strengths
from tests.lab.experiments.helpers import result_of
from tests.studies.benzing2020.tiny import tiny_preset

KEEP = ITEMS["keeping"]
REPLAY = dataclasses.replace(ALGORITHMS["replay, one a class"], benchmarks=("P-MNIST",))
VARIANTS = keeping(4, 8, 3, {})
PLANS = tries(VARIANTS, (1.0, 2.0, 3.0, 4.0, 5.0), {"epochs": 2}, seeds=(7, 8))


def maker(accuracy_of, *, failing=(), silent=()):
    """Return what makes runs without training, and the specs that it was asked for."""
    asked = []

    def run(specs, store):
        for spec in specs:
            asked.append(spec)
            share = spec.hold_settings["replay"].get("share")
            if share in silent:
                continue
            claim = store.claim(spec)
            if share in failing:
                claim.fail(failure())
            else:
                claim.finish(result_of(spec, accuracy_of(spec)))
            claim.release()
        return Summary()

    return run, asked


def failure():
    return Failure("It diverged.", "2026-01-01T00:00:00", "a device", None, {"torch": "2"})


def best_at_07(spec):
    return 0.9 - abs(spec.hold_settings["replay"]["share"] - 0.7) - 0.01 * (spec.seed == 8)


@pytest.fixture
def unknown():
    """The tiny preset with the share of replay to be found."""
    row = ("fine-tune", "replay, one a class")
    stage = tiny_preset().stages["P-MNIST"]
    chosen = {key: value for key, value in stage.chosen.items() if key != row}
    return tiny_preset(variants={**stage.variants, **VARIANTS}, searched={row: PLANS[row]}, chosen=chosen)


def test_every_way_has_as_many_tries():
    for plans in (PLANS, PERMUTED_TRIES, SPLIT_TRIES):
        assert {len(plan.tried) for plan in plans.values()} == {5}
    for benchmark in BENCHMARKS:
        plans = {row: plan for row, plan in PAPER.stages[benchmark].searched.items() if plan.tried}
        assert set(plans) == {(way.measure, way.variant) for way in KEEPING}
        assert {len(plan.tried) for plan in plans.values()} == {5}
        assert len({tuple(plan.seeds) for plan in plans.values()}) == 1


def test_the_paper_preset_searches_for_all_that_can_be_chosen():
    unknown = unknown_strengths(PAPER, KEEP.algorithms)
    assert {(benchmark, row.name) for benchmark, row in unknown} == {
        (b, way.name) for b in BENCHMARKS for way in KEEPING
    }
    known = {spec.settings.trains for spec in KEEP.runs(PAPER)}
    assert known == {"sequentially", "jointly", "anew"}  # fine-tuning and the bounds need no search


@pytest.mark.parametrize("name", ["quick", "digits"])
def test_the_other_presets_have_chosen(name):
    assert not unknown_strengths(PRESETS[name], KEEP.algorithms)


def test_runs_are_those_of_the_protocol_but_for_what_keeps():
    memory = {"source": 30, "size": 32}
    spec = DIGITS.spec("P-MNIST", "fine-tune", "replay, one a class")
    settings = dict(spec.hold_settings["replay"])
    share = settings.pop("share")
    assert settings == memory and 0 < share < 1
    usual = DIGITS.stages["P-MNIST"].usual
    given = {"holds": ("replay",), "hold_settings": {"replay": {**memory, "share": share}}}
    assert spec == paper_spec("permuted-digits", "fine-tune", **usual, **given)
    for row in BOUNDS:
        assert DIGITS.spec("CIFAR", "fine-tune", row.variant).settings.trains == row.variant
    lwf = DIGITS.spec("CIFAR", "fine-tune", "LwF")
    assert lwf.holds == ("distillation",) and lwf.hold_settings["distillation"]["temperature"] == 2.0


def test_settings_are_tried_on_validation_data_and_the_best_is_taken(unknown, tmp_path):
    run, asked = maker(best_at_07)
    found, damaged = find_strengths(unknown, [REPLAY], Store(tmp_path), run)
    assert not damaged and len(asked) == 5 * 2
    assert {(spec.judge_by, spec.settings.epochs) for spec in asked} == {("validation", 2)}
    assert {spec.seed for spec in asked} == {7, 8}
    for spec in accuracy_runs(found, "P-MNIST", REPLAY):
        assert dict(spec.hold_settings["replay"]) == {"source": 4, "size": 3, "share": 0.7}
        assert (spec.judge_by, spec.settings.epochs) == ("test", 1)


def test_a_try_that_fails_is_not_taken_and_one_that_is_missing_leaves_all_open(unknown, tmp_path):
    failing, _ = maker(best_at_07, failing=(0.7,))
    found, _ = find_strengths(unknown, [REPLAY], Store(tmp_path / "failing"), failing)
    (share,) = {spec.hold_settings["replay"]["share"] for spec in accuracy_runs(found, "P-MNIST", REPLAY)}
    assert share in (0.5, 0.9)
    missing, _ = maker(best_at_07, silent=(0.1,))
    left, _ = find_strengths(unknown, [REPLAY], Store(tmp_path / "missing"), missing)
    assert not left.is_known("P-MNIST", "fine-tune", "replay, one a class")
    assert accuracy_runs(left, "P-MNIST", REPLAY) == []


def test_where_all_fail_nothing_is_taken(tmp_path):
    plan = PLANS["fine-tune", "replay, one a class"]

    def make(**changes):
        return paper_spec("permuted-digits", "fine-tune", holds=("replay",), **changes)

    run, asked = maker(best_at_07, failing=(0.1, 0.3, 0.5, 0.7, 0.9))
    assert best_tried(plan.tried, make, plan.seeds, Store(tmp_path), run) is None
    assert len(asked) == 10


def test_what_was_chosen_can_be_said_by_its_number():
    chosen = choices(PLANS, 2, 0, 0, 0, 0)
    assert chosen["EWC", "tried alike"].strength == 3.0
    assert chosen["fine-tune", "DER++"].changes == {
        "hold_settings": {"DER++": {"source": 8, "size": 3, "alpha": 0.1, "beta": 0.5}}
    }


def test_the_table_says_what_is_stored_and_what_was_found(tmp_path):
    store, preset = Store(tmp_path / "store"), tiny_preset()
    names = ("replay, one a class", "DER++", "LwF", "EWC, tried alike", "joint training", "training anew")
    for name in names:
        for spec in accuracy_runs(preset, "P-MNIST", name):
            claim = store.claim(spec)
            claim.finish(result_of(spec, 0.75))
            claim.release()
    table, other = KEEP.draw(Results(store, preset))
    rows = {row[0]: row for row in table.rows}
    assert rows["fine-tune"][1:] == (None,) * 6
    assert [cell.mean for cell in rows["DER++"][1:4]] == [75.0, 75.0, 75.0]
    assert rows["replay, one a class"][4] == "30 samples" and rows["replay, one a class"][5].startswith("share 0.")
    assert rows["DER++"][4] == "150 samples with outputs" and "alpha" in rows["DER++"][5]
    assert rows["EWC, tried alike"][4:6] == ("importances, old weights", "c = 50")
    assert rows["joint training"][4:6] == ("all data", None)
    assert rows["training anew"][4:6] == ("a network a task", None)
    assert rows["best of Table 1"][1:] == (None,) * 6
    assert all(cell is None for row in other.rows for cell in row[1:])
