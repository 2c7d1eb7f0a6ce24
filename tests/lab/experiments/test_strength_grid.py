import pytest

from anchorhold.errors import ConfigurationError
from anchorhold_lab.experiments.strengths.strength_grid import (
    numbers_around,
    numbers_between,
    numbers_to_try,
    strength_of,
)


def strengths(numbers):
    return [strength_of(number) for number in numbers]


def test_strengths_are_1_2_and_5_times_powers_of_ten_and_exact():
    assert strengths(range(-4, 5)) == [0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0]
    assert strength_of(-27) == 1e-9


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.1, 1, [0.1, 0.2, 0.5, 1]),
        (0.3, 6, [0.5, 1, 2, 5]),
        (5, 5, [5]),
        (1e-5, 2e-5, [1e-5, 2e-5]),
        (1000, 5000, [1000, 2000, 5000]),
    ],
)
def test_a_range_includes_its_ends(low, high, expected):
    assert strengths(numbers_between(low, high)) == expected


def test_every_strength_is_found_between_itself_and_itself():
    for number in range(-90, 91):
        assert list(numbers_between(strength_of(number), strength_of(number))) == [number]


@pytest.mark.parametrize("ends", [(2, 1), (0, 1), (-1, 1), (1, float("inf")), (float("nan"), 1), (1e-38, 1)])
def test_a_range_that_makes_no_sense(ends):
    with pytest.raises(ConfigurationError, match="the smaller one first"):
        numbers_between(*ends)


def test_a_range_without_a_strength_names_those_beside_it():
    with pytest.raises(ConfigurationError, match=r"such as 0\.2 or 0\.5"):
        numbers_between(0.3, 0.4)


def test_a_decade_on_either_side():
    assert strengths(numbers_around(0.2)) == [0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0]
    assert numbers_around(0.3) == numbers_around(0.2)


def test_nothing_is_left_to_try_once_the_best_has_neighbours():
    assert numbers_to_try(range(5), 2, range(5)) == []


def test_the_grid_is_extended_by_a_decade_where_the_best_lies():
    assert numbers_to_try(range(5), 4, range(5)) == [5, 6, 7]
    assert numbers_to_try(range(5), 0, range(5)) == [-3, -2, -1]
    assert numbers_to_try([0], 0, range(1)) == [-3, -2, -1, 1, 2, 3]


def test_it_is_extended_by_three_decades_and_no_more():
    assert numbers_to_try(range(12), 11, range(5)) == [12, 13]
    assert numbers_to_try(range(14), 13, range(5)) == []
    assert numbers_to_try(range(-9, 5), -9, range(5)) == []


def test_powers_of_ten_are_filled_in_around_the_best():
    powers = range(-9, 10, 3)
    assert numbers_to_try(powers, 3, powers) == [1, 2, 4, 5]
    assert numbers_to_try(powers, 9, powers) == [7, 8, 10, 11, 12]
