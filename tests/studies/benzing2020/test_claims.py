import dataclasses
import math

import numpy as np
import pytest

from anchorhold_lab.analysis import Estimate
from studies.benzing2020 import ITEMS, PRESETS
from studies.benzing2020.claims import CLAIMS, OWN_CLAIMS, Claim, check, check_all
from studies.benzing2020.claims.claim import AtLeast, AtMost, Between
from studies.benzing2020.claims.differences import (
    FIRST,
    LAST,
    LATER,
    OnTask,
    difference,
    farthest_from_zero,
    highest,
    lowest,
    over_tasks,
    spread,
)
from studies.benzing2020.claims.of_the_paper.bias import bias_ratio
from studies.benzing2020.claims.on_digits import EXPECTED_ON_DIGITS
from studies.benzing2020.drawing.task_columns import raw_sums
from studies.benzing2020.findings import Results

TABLE = np.array([[1.0, 4.0, 2.0], [3.0, 4.0, 6.0]])


@pytest.mark.parametrize(
    ("bound", "mean", "error", "holds"),
    [
        (AtLeast(1.0), 1.0, 9.0, True),
        (AtLeast(1.0), 0.9, 9.0, False),
        (AtLeast(0.0, errors=2), 2.1, 1.0, True),
        (AtLeast(0.0, errors=2), 1.9, 1.0, False),
        (AtMost(1.0), 1.1, 9.0, False),
        (AtMost(0.0, errors=2), 1.9, 1.0, True),
        (AtMost(0.0, errors=2), 2.1, 1.0, False),
        (Between(1.0, 2.0), 2.0, 0.0, True),
        (Between(1.0, 2.0), 2.1, 0.0, False),
    ],
)
def test_bounds(bound, mean, error, holds):
    assert bound.holds(Estimate(mean, error, 3)) is holds


def test_a_verdict_tells_statistic_uncertainty_and_threshold(nothing):
    claim = Claim("x", ("table1",), "It is large.", "size", lambda _: Estimate(3.14159, 0.25, 4), AtLeast(3.0))
    verdict = check(claim, nothing)
    assert (verdict.holds, verdict.statistic, verdict.threshold) == (True, "size: 3.14 ± 0.25 (4 runs)", "≥ 3")
    assert check(dataclasses.replace(claim, bound=AtLeast(4.0)), nothing).holds is False
    on_task = dataclasses.replace(claim, statistic=lambda _: OnTask(3.14159, 0.25, 4, 2))
    assert check(on_task, nothing).statistic == "size: 3.14 ± 0.25 (task 2, 4 runs)"


@pytest.mark.parametrize("bound", [AtLeast(0.0, errors=2), AtMost(9.0, errors=2)])
def test_a_single_run_proves_nothing_where_its_error_matters(bound, nothing):
    claim = Claim("x", ("table1",), "It is so.", "size", lambda _: Estimate(3.0, math.nan, 1), bound)
    verdict = check(claim, nothing)
    assert verdict.holds is None
    assert verdict.note == "Not checked: a single run has no standard error."
    assert check(dataclasses.replace(claim, bound=AtLeast(2.0)), nothing).holds is True


def test_the_statistics_of_tasks():
    assert lowest(lambda _: TABLE)(None).mean == 2.0
    assert highest(lambda _: TABLE)(None).mean == 4.0
    assert lowest(lambda _: TABLE, tasks=LATER)(None).mean == 4.0
    assert lowest(lambda _: TABLE, tasks=LATER)(None).task == 2
    assert lowest(lambda _: TABLE)(None) == OnTask(2.0, 1.0, 2, 1)
    assert farthest_from_zero(TABLE - 5.0) == OnTask(3.0, 1.0, 2, 1)
    assert over_tasks(lambda _: TABLE, tasks=FIRST)(None) == Estimate(2.0, 1.0, 2)
    assert over_tasks(lambda _: TABLE, tasks=LAST)(None) == Estimate(4.0, 2.0, 2)
    assert over_tasks(lambda _: TABLE, tasks=LATER)(None) == Estimate(4.0, 1.0, 2)


class Accuracies:
    def __init__(self, **found):
        self.found = found

    def accuracy(self, benchmark, algorithm):
        return Estimate(*self.found[algorithm], 3)


def test_the_statistics_of_accuracies():
    results = Accuracies(SI=(97.0, 0.3), SIU=(96.0, 0.4), AF=(96.5, 9.0))
    assert difference("P-MNIST", "SI", "SIU")(results) == Estimate(1.0, 0.5, 3)
    assert difference("P-MNIST", "SIU", "SI")(results).mean == -1.0
    assert spread("P-MNIST", "SIU", "AF", "SI")(results) == Estimate(1.0, 0.5, 3)


def test_every_claim_without_runs_is_not_checked_and_says_why(nothing):
    for claim in (*CLAIMS.values(), *OWN_CLAIMS.values()):
        verdict = check(claim, nothing)
        assert verdict.holds is None
        assert verdict.note.startswith("Not checked: no")


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


def test_the_better_of_two_forms_is_compared_with_the_diagonal():
    many = {"rotated EWC, many tasks": (91.0, 0.3), "Kronecker EWC, many tasks": (92.0, 0.4)}
    results = Accuracies(**many, **{"diagonal EWC, many tasks": (80.0, 0.3)})
    assert OWN_CLAIMS["own-many-tasks"].statistic(results) == Estimate(92.0, 0.4, 3)
    assert OWN_CLAIMS["own-many-tasks-beat-diagonal"].statistic(results) == Estimate(12.0, 0.5, 3)


def test_what_is_said_of_digits_names_no_other_data():
    for says, _ in EXPECTED_ON_DIGITS.values():
        assert "MNIST" not in says, says
        assert "CIFAR" not in says, says


def test_the_quick_preset_decides_no_claim(nothing):
    quick = Results(nothing.store, PRESETS["quick"])
    assert check_all(quick, set(ITEMS)) == []
    assert check_all(Results(nothing.store, PRESETS["paper"]), {"batch-size"}) != []


@pytest.mark.nightly
def test_every_claim_can_be_decided_from_runs(results):
    undecided = {claim.name: check(claim, results) for claim in (*CLAIMS.values(), *OWN_CLAIMS.values())}
    # The tiny runs can be so alike that a t-test has nothing to compare.
    assert [name for name, verdict in undecided.items() if verdict.holds is None and "mas-logits" not in name] == []


@pytest.mark.nightly
def test_the_bias_is_what_si_has_beyond_siu(results):
    si, siu = (raw_sums(results, "CIFAR", name) for name in ("SI", "SIU"))
    np.testing.assert_allclose(bias_ratio(results, "CIFAR"), si / siu - 1, rtol=1e-12)


@pytest.mark.nightly
def test_only_the_claims_of_the_chosen_items_are_checked(results):
    found = [verdict.name for verdict in check_all(results, {"figure2"})]
    assert found == [name for name in CLAIMS if CLAIMS[name].items == ("figure2",) and name in EXPECTED_ON_DIGITS]
