import dataclasses

import numpy as np
import pytest

from studies.benzing2020 import ITEMS, PRESETS
from studies.benzing2020.claims import CLAIMS, OWN_CLAIMS, Claim, check, check_all
from studies.benzing2020.claims.differences import (
    FIRST,
    LAST,
    LATER,
    accuracy,
    difference,
    differences,
    on_each_task,
    over_tasks,
)
from studies.benzing2020.claims.of_the_paper.bias import bias_ratio
from studies.benzing2020.claims.on_digits import EXPECTED_ON_DIGITS
from studies.benzing2020.claims.rule import AtLeast, mean_of
from studies.benzing2020.drawing.task_columns import raw_sums
from studies.benzing2020.findings import Results

TABLE = np.array([[1.0, 4.0, 2.0], [3.0, 4.0, 6.0]])


def test_a_verdict_tells_statistic_interval_seeds_threshold_and_words(nothing):
    claim = Claim("x", ("table1",), "It is large.", "size", lambda _: [mean_of([3.0, 3.1, 3.2])], AtLeast(2.0), "large")
    verdict = check(claim, nothing)
    assert (verdict.answer, verdict.threshold, verdict.words, verdict.note) == ("holds", "≥ 2", "large", "")
    assert verdict.statistic == "size: 3.10, from 2.85 to 3.35 (3 seeds)"
    assert check(dataclasses.replace(claim, bound=AtLeast(4.0)), nothing).answer == "does not hold"
    undecided = check(dataclasses.replace(claim, bound=AtLeast(3.0), remark="Seen before."), nothing)
    assert (undecided.answer, undecided.note) == ("undecided", "The interval contains the limit. Seen before.")
    columns = [[5.0, 6.0, 7.0], [3.0, 3.1, 3.2]]
    tasks = [mean_of(column, f"task {place}") for place, column in enumerate(columns, 1)]
    on_tasks = check(dataclasses.replace(claim, statistic=lambda _: tasks), nothing)
    assert on_tasks.statistic == "size: 3.10, from 2.85 to 3.35 (task 2, the worst of 2; 3 seeds)"


def test_a_single_run_is_undecided_and_says_why(nothing):
    verdict = check(Claim("x", ("table1",), "It is so.", "size", lambda _: [mean_of([3.0])], AtLeast(2.0)), nothing)
    assert (verdict.answer, verdict.statistic) == ("undecided", "size: 3 (1 seed)")
    assert verdict.note == "Too few seeds: 1, where the rule asks for 3."


def test_the_statistics_of_tasks():
    assert [(each.mean, each.where) for each in on_each_task(lambda _: TABLE)(None)] == [
        (2.0, "task 1"),
        (4.0, "task 2"),
        (4.0, "task 3"),
    ]
    assert [each.where for each in on_each_task(lambda _: TABLE, tasks=LATER)(None)] == ["task 2", "task 3"]
    assert over_tasks(lambda _: TABLE, tasks=FIRST)(None) == [mean_of([1.0, 3.0])]
    assert over_tasks(lambda _: TABLE, tasks=LAST)(None) == [mean_of([2.0, 6.0])]
    assert over_tasks(lambda _: TABLE, tasks=LATER)(None) == [mean_of([3.0, 5.0])]


class Accuracies:
    def __init__(self, **found):
        self.found = found

    def accuracy_by_seed(self, benchmark, algorithm):
        return dict(enumerate(self.found[algorithm]))

    def accuracy(self, benchmark, algorithm):
        return mean_of(self.found[algorithm])


def test_the_statistics_of_accuracies():
    results = Accuracies(SI=(97.0, 97.5, 97.0), SIU=(96.0, 96.0, 95.0), AF=(96.0, 97.0, 98.0))
    assert accuracy("P-MNIST", "SI")(results) == [mean_of([97.0, 97.5, 97.0])]
    assert difference("P-MNIST", "SI", "SIU")(results) == [mean_of([1.0, 1.5, 2.0])]
    assert difference("P-MNIST", "SIU", "SI")(results)[0].mean == -1.5
    assert differences("P-MNIST", "SIU", "AF", "SI")(results) == [
        mean_of([0.0, -1.0, -3.0], "SIU less AF"),
        mean_of([-1.0, -1.5, -2.0], "SIU less SI"),
        mean_of([-1.0, -0.5, 1.0], "AF less SI"),
    ]


def test_every_claim_without_runs_is_not_run_and_says_why(nothing):
    for claim in (*CLAIMS.values(), *OWN_CLAIMS.values()):
        verdict = check(claim, nothing)
        assert verdict.answer == "not run"
        assert verdict.note.startswith("Not run: no")


def test_claims_belong_to_items_and_those_on_digits_to_claims():
    assert {item for claim in (*CLAIMS.values(), *OWN_CLAIMS.values()) for item in claim.items} <= set(ITEMS)
    assert set(EXPECTED_ON_DIGITS) <= set(CLAIMS) | set(OWN_CLAIMS)
    assert len(EXPECTED_ON_DIGITS) >= 10


def test_our_own_claims_say_so_and_are_not_counted_among_the_papers(nothing):
    assert len(CLAIMS) == 72 and not any(claim.own for claim in CLAIMS.values())
    assert all(claim.own and not {"figure1", "figure2", "sgd"} & set(claim.items) for claim in OWN_CLAIMS.values())
    found = check_all(Results(nothing.store, PRESETS["paper"]), set(ITEMS))
    assert [verdict.name for verdict in found] == [*CLAIMS, *OWN_CLAIMS]
    for verdict in found:
        assert verdict.own is verdict.claim.endswith("(Of our own, not the paper's.)")


def test_every_claim_of_the_paper_names_the_words_that_its_limit_comes_from():
    assert [claim.name for claim in CLAIMS.values() if not claim.words] == []
    assert not any(claim.words for claim in OWN_CLAIMS.values())


def test_the_better_of_two_forms_is_compared_with_the_diagonal():
    many = {"rotated EWC, many tasks": (91.0, 91.5, 91.0), "Kronecker EWC, many tasks": (92.0, 92.5, 93.0)}
    results = Accuracies(**many, **{"diagonal EWC, many tasks": (80.0, 81.0, 82.0)})
    assert OWN_CLAIMS["own-many-tasks"].statistic(results) == [mean_of([92.0, 92.5, 93.0])]
    assert OWN_CLAIMS["own-many-tasks-beat-diagonal"].statistic(results) == [mean_of([12.0, 11.5, 11.0])]


def test_what_is_said_of_digits_names_no_other_data():
    for says, _ in EXPECTED_ON_DIGITS.values():
        assert "MNIST" not in says, says
        assert "CIFAR" not in says, says


def test_the_quick_preset_decides_no_claim(nothing):
    quick = Results(nothing.store, PRESETS["quick"])
    assert check_all(quick, set(ITEMS)) == []
    assert check_all(Results(nothing.store, PRESETS["paper"]), {"batch-size"}) != []


@pytest.mark.nightly
def test_every_claim_is_measured_from_runs(results):
    found = {claim.name: check(claim, results) for claim in (*CLAIMS.values(), *OWN_CLAIMS.values())}
    assert [name for name, verdict in found.items() if verdict.answer == "not run"] == []
    # The tiny preset has two runs of each row, which decide nothing by the rule.
    of_two = {name for name, verdict in found.items() if "Too few seeds" in verdict.note}
    assert set(found) - of_two == {"own-samples-decide-mas-with-af"}  # which is about sets of samples


@pytest.mark.nightly
def test_the_bias_is_what_si_has_beyond_siu(results):
    si, siu = (raw_sums(results, "CIFAR", name) for name in ("SI", "SIU"))
    np.testing.assert_allclose(bias_ratio(results, "CIFAR"), si / siu - 1, rtol=1e-12)


@pytest.mark.nightly
def test_only_the_claims_of_the_chosen_items_are_checked(results):
    found = [verdict.name for verdict in check_all(results, {"figure2"})]
    assert found == [name for name in CLAIMS if CLAIMS[name].items == ("figure2",) and name in EXPECTED_ON_DIGITS]
