"""The control of a strength: on plants whose answer is known, and at its bounds."""

import math
import random

import pytest

from anchorhold import Tolerance
from anchorhold.retention.controller import AT_FIRST, ERROR, GAIN, RANGE, TRACED, Control, TracePoint

TAU = 0.02


def controlled(kl_of, looks, start=1.0, most=math.inf, tau=TAU, every=20):
    """Return a control after some looks at a plant, and the strengths on the way."""
    control = Control(every=every)
    control.begin(start)
    strengths = [start]
    for _ in range(looks):
        control.latest = {"old": kl_of(strengths[-1])}
        control.looks += 1
        strengths.append(control.follow(tau, most))
    return control, strengths


def test_one_look_is_the_formula():
    control, strengths = controlled(lambda c: 0.05, 2, start=3.0, every=7)
    expected = math.log(3.0) + 7 / (AT_FIRST + 3.5) * math.log(0.05 / TAU)
    assert math.log(strengths[1]) == pytest.approx(expected, rel=1e-12)
    expected += 7 / (AT_FIRST + 7) * math.log(0.05 / TAU)
    assert math.log(strengths[2]) == control.log_c == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("start", [1e-3, 1.0, 1e3])
def test_a_loss_that_falls_as_a_power_of_the_strength_comes_to_what_is_aimed_at(power, start):
    _, strengths = controlled(lambda c: 0.3 * c**-power, 2000, start)
    assert 0.3 * strengths[-1] ** -power == pytest.approx(TAU, rel=0.06)


def test_the_more_often_it_looks_the_less_it_does_each_time():
    _, often = controlled(lambda c: 0.05, 100, every=2)
    _, seldom = controlled(lambda c: 0.05, 20, every=10)
    assert math.log(seldom[1]) > 4 * math.log(often[1])
    assert math.log(seldom[-1]) == pytest.approx(math.log(often[-1]), rel=0.05)


def test_a_loss_that_has_yet_to_come_lets_the_strength_go_far_less_than_at_a_steady_pace():
    """Weights travel for hundreds of steps before the strength has any say: D' = (1 − cD)/300, and KL = τD²."""

    def travelling():
        state = [0.0]

        def kl_of(c):
            for _ in range(10):
                state[0] += (1 - c * state[0]) / 300
            return TAU * state[0] ** 2

        return kl_of

    _, strengths = controlled(travelling(), 60, every=10)
    steady, kl_of = [0.0], travelling()
    for _ in range(60):
        error = math.log(kl_of(math.exp(steady[-1])) / TAU)
        steady.append(steady[-1] + 10 / AT_FIRST * min(max(error, -ERROR), ERROR))
    assert min(strengths) > 10 * math.exp(min(steady))


def test_a_loss_that_follows_late_comes_there_too():
    """The distance is that of weights which go a tenth of the way to their rest between two looks."""
    state = [0.0]

    def late(c):
        state[0] += 0.1 * (1 / c - state[0])
        return 0.3 * state[0] ** 2

    _, strengths = controlled(late, 600)
    assert 0.3 * strengths[-1] ** -2 == pytest.approx(TAU, rel=0.05)


def test_noise_is_averaged():
    draws = random.Random(0)
    _, strengths = controlled(lambda c: 0.3 * c**-2 * math.exp(draws.gauss(0, 0.5)), 2000)
    logs = [math.log(c) for c in strengths[500:]]
    assert sum(logs) / len(logs) == pytest.approx(math.log((0.3 / (TAU)) ** 0.5), abs=0.05)


def test_the_worst_of_several_sets_counts():
    control = Control(every=20)
    control.begin(1.0)
    control.latest = {"a": 0.001, "b": 0.5}
    assert control.follow(TAU) > 1
    control.latest = {"a": 0.001, "b": 0.002}
    assert control.follow(TAU) < 1.5


def test_no_single_look_moves_it_far():
    _, strengths = controlled(lambda c: 0.0, 1)
    assert strengths[1] == pytest.approx(math.exp(-GAIN * ERROR))
    _, strengths = controlled(lambda c: 1e30, 1)
    assert strengths[1] == pytest.approx(math.exp(GAIN * ERROR))


@pytest.mark.parametrize(("kl", "sign"), [(0.0, -1), (10.0, 1)])
def test_what_no_strength_changes_does_not_wind_up(kl, sign):
    """After thousands of looks in vain, one that says otherwise moves it as far as any at that time does."""
    control, strengths = controlled(lambda c: kl, 5000)
    assert math.log(strengths[-1]) == pytest.approx(sign * RANGE, rel=1e-12)
    control.latest = {"old": 0.0 if kl else 10.0}
    share = 20 / (AT_FIRST + 5000 * 20 / 2)
    assert math.log(control.follow(TAU)) == pytest.approx(sign * (RANGE - share * ERROR), rel=1e-9)


def test_what_an_optimizer_bears_bounds_it_without_winding_up():
    control, strengths = controlled(lambda c: 10.0, 100, most=5.0)
    assert max(strengths) == pytest.approx(5.0)
    control.latest = {"old": 1e-9}
    share = 20 / (AT_FIRST + 100 * 20 / 2)
    assert control.follow(TAU, 5.0) == pytest.approx(5.0 * math.exp(-share * ERROR))
    assert control.bounded(1e-30) == pytest.approx(1e-30)


def test_a_next_task_begins_where_the_last_one_ended():
    control, strengths = controlled(lambda c: 0.3 / c, 50)
    control.every = 7
    control.begin_task()
    control.begin(123.0)
    assert math.exp(control.log_c) == pytest.approx(strengths[-1])
    assert (control.latest, control.trace, control.every) == ({}, [], 7)


def test_traces_are_thinned_and_states_are_exact():
    control, _ = controlled(lambda c: 0.3 / c, 3)
    control.cursors = {"old": 2}
    for step in range(TRACED + 5):
        control.note(TracePoint(step, 0.1 / (step + 1), 1 / 3, None if step % 2 else 0.7))
    assert TRACED / 2 < len(control.trace) <= TRACED
    assert [point.step for point in control.trace[:3]] == [0, 2, 4]
    assert Control.restored(control.plain()) == control


def test_a_tolerance_has_settings_that_are_plain_numbers():
    given = Tolerance(1, every=3)
    assert (given.nats, type(given.nats), given.every) == (1.0, float, 3)
