"""When the loss has settled, against the words of the definition."""

import random
import statistics

import pytest

import anchorhold
from anchorhold.errors import ConfigurationError, NotFiniteError, StateError


def by_hand(losses, window, mean, variance):
    """Return after which losses there is a plateau that follows a peak."""
    found, peak, last = [], True, None
    for i in range(window, len(losses) + 1):
        seen = losses[i - window : i]
        m, v = statistics.fmean(seen), statistics.pvariance(seen)
        if last is not None and m > last[0] + last[1]:
            peak = True
        if peak and m < mean and v < variance:
            found.append(i)
            peak, last = False, (m, v**0.5)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_plateaus_are_those_of_the_definition(seed):
    draws = random.Random(seed)
    losses = [max(0.0, (2.0 - 0.05 * (i % 60)) + draws.gauss(0, 0.1)) for i in range(300)]
    plateaus = anchorhold.task_free.Plateaus(window=6, mean=0.6, variance=0.03)
    found = [i + 1 for i, loss in enumerate(losses) if plateaus.is_reached(loss)]
    assert found == by_hand(losses, 6, 0.6, 0.03)
    assert 5 <= len(found) <= 10


def test_a_plateau_counts_once_until_there_is_a_peak():
    plateaus = anchorhold.task_free.Plateaus(window=3, mean=0.5, variance=0.1)
    assert [plateaus.is_reached(loss) for loss in [2.0, 0.1, 0.1, 0.1, 0.1, 0.1]] == [False] * 3 + [True, False, False]
    assert not any(plateaus.is_reached(0.1) for _ in range(20))
    state = plateaus.state_dict()
    reached = [plateaus.is_reached(loss) for loss in [3.0, 0.1, 0.1, 0.1]]
    assert reached == [False, False, False, True]
    again = anchorhold.task_free.Plateaus(window=3, mean=0.5, variance=0.1)
    again.load_state_dict(state)
    assert [again.is_reached(loss) for loss in [3.0, 0.1, 0.1, 0.1]] == reached


def test_what_makes_no_sense_is_refused():
    for settings in ({"window": 1}, {"variance": 0.0}, {"mean": float("nan")}):
        with pytest.raises(ConfigurationError, match=next(iter(settings))):
            anchorhold.task_free.Plateaus(**settings)
    plateaus = anchorhold.task_free.Plateaus()
    with pytest.raises(NotFiniteError, match="loss of nan"):
        plateaus.is_reached(float("nan"))
    assert not plateaus.losses
    with pytest.raises(StateError, match="no state of Plateaus"):
        plateaus.load_state_dict({"losses": 3})
