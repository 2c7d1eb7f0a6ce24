"""Where searches begin, by which seeds they judge, and what they leave open."""

import pytest

from anchorhold_lab.experiments import Store, Summary
from studies.benzing2020.algorithms import ALGORITHMS
from studies.benzing2020.presets import Chosen, SearchPlan
from studies.benzing2020.searched_strengths import find_strengths, unknown_strengths
from tests.lab.experiments.helpers import result_of
from tests.studies.benzing2020.tiny import tiny_preset

ROTATED, FEW, MANY = (ALGORITHMS[f"rotated EWC{what}"] for what in ("", ", few samples", ", many tasks"))


def preset_with(chosen=None, seeds_of=None, **plans):
    """Return the tiny preset with some variants of EWC to be searched for, and what is chosen already."""
    searched = {("EWC", ALGORITHMS[name].variant): plan for name, plan in plans.items()}
    return tiny_preset(searched=searched, chosen=chosen or {}, seeds_of=seeds_of or {})


@pytest.fixture
def made(tmp_path):
    """What makes runs without training, the best at c = 20, and the specs that it was asked for."""
    asked = []

    def run(specs, store):
        for spec in specs:
            asked.append(spec)
            claim = store.claim(spec)
            claim.finish(result_of(spec, 0.5 - abs(spec.strength - 20) / 1e4))
            claim.release()
        return Summary()

    return run, asked, Store(tmp_path / "store")


def test_a_search_begins_with_its_own_range_in_its_form_and_tests_as_many_seeds_as_its_row_has(made):
    run, asked, store = made
    preset = preset_with(**{"rotated EWC": SearchPlan(5.0, 50.0)}, seeds_of={"rotated": 4})
    found, _ = find_strengths(preset, [ROTATED], store, run)
    judged = [spec for spec in asked if spec.judge_by == "validation"]
    assert sorted({spec.strength for spec in judged}) == [5, 10, 20, 50]
    assert {spec.seed for spec in judged} == {1000, 1001, 1002}
    assert {(spec.form, spec.settings.reinitialise) for spec in asked} == {("rotated", False)}
    tested = [spec for spec in asked if spec.judge_by == "test"]
    assert [(spec.strength, spec.seed) for spec in tested] == [(20, 0), (20, 1), (20, 2), (20, 3)]
    assert [found.spec("P-MNIST", "EWC", "rotated", seed=seed) for seed in range(4)] == tested


def test_a_search_around_another_begins_with_its_choice_and_two_neighbours_and_one_seed(made):
    run, asked, store = made
    plans = {
        "rotated EWC": SearchPlan(5.0, 50.0),
        "rotated EWC, few samples": SearchPlan(around="rotated", seeds=range(1000, 1001)),
    }
    find_strengths(preset_with(**plans), [ROTATED, FEW], store, run)
    judged = [spec for spec in asked if spec.settings.samples == 5 and spec.judge_by == "validation"]
    assert [(spec.strength, spec.seed) for spec in judged] == [(10, 1000), (20, 1000), (50, 1000)]


@pytest.mark.parametrize(("choice", "begins"), [(10, [5, 10, 20]), (20, [10, 20, 50]), (0.05, [0.02, 0.05, 0.1])])
def test_neighbours_are_those_of_the_grid(made, choice, begins):
    _, _, store = made
    chosen = {("EWC", "rotated"): Chosen(choice, reinitialise=False)}
    asked = []

    def stop(specs, store):
        asked.extend(spec.strength for spec in specs)
        return Summary(interrupted=True)

    find_strengths(
        preset_with(chosen, **{"rotated EWC, few samples": SearchPlan(around="rotated")}), [FEW], store, stop
    )
    assert asked == begins


def test_a_search_around_a_strength_that_is_not_known_is_left_open(made):
    run, asked, store = made
    plans = {"rotated EWC": SearchPlan(), "rotated EWC, few samples": SearchPlan(around="rotated")}
    preset, damaged = find_strengths(preset_with(**plans), [FEW], store, run)
    assert (asked, damaged) == ([], {})
    assert unknown_strengths(preset, [ROTATED, FEW]) == [("P-MNIST", ROTATED), ("P-MNIST", FEW)]


def test_a_coarse_search_begins_with_powers_of_ten(made):
    run, asked, store = made
    plan = SearchPlan(1.0, 1000.0, coarse=True, seeds=range(1000, 1001))
    find_strengths(preset_with(**{"rotated EWC, many tasks": plan}), [MANY], store, run)
    assert [spec.strength for spec in asked[:4]] == [1, 10, 100, 1000]
