import math

import pytest

from holdfast.experiments.averages import standard_error


def test_the_standard_error_takes_two_values():
    assert standard_error([1.0, 2.0, 3.0]) == pytest.approx(1 / math.sqrt(3))
    assert math.isnan(standard_error([1.0]))
