"""Student's t against scipy."""

import math

import pytest
from scipy import stats

from anchorhold_lab.analysis.student_t import two_sided_p, two_sided_quantile

FREEDOMS = [0.3, 1, 2.5, 4, 9, 17.3, 120, 5e3, 1e6]


@pytest.mark.parametrize("freedom", FREEDOMS)
@pytest.mark.parametrize("t", [1e-9, 1e-3, 0.2, 1, -1.7, 3, 12, 200])
def test_p_values(t, freedom):
    expected = 2 * stats.t.sf(abs(t), freedom)
    # Far out with many degrees of freedom, the logarithms of huge gamma functions leave fewer digits.
    assert two_sided_p(t, freedom) == pytest.approx(expected, rel=1e-8, abs=1e-300)


def test_the_ends():
    assert two_sided_p(0.0, 3) == 1
    assert two_sided_p(-math.inf, 3) == 0
    assert math.isnan(two_sided_p(math.nan, 3))
    assert math.isnan(two_sided_p(1.0, math.nan))


@pytest.mark.parametrize("freedom", FREEDOMS[1:])
@pytest.mark.parametrize("level", [0.01, 0.5, 0.95, 0.999])
def test_quantiles(level, freedom):
    assert two_sided_quantile(level, freedom) == pytest.approx(stats.t.ppf((1 + level) / 2, freedom), rel=1e-7)
