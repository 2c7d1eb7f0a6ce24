"""What ranks must agree on when they measure together."""

import pytest

from holdfast.errors import BatchError
from holdfast.guard.measuring import _check_read_alike
from holdfast.persample.scores import OutputReading


class Several:
    """Ranks whose readings are known."""

    def __init__(self, *readings):
        self.size = len(readings)
        self._readings = [[reading] for reading in readings]

    def each(self, work):
        return self._readings


VALUES = OutputReading("gaussian", None, "targets of 3.7")
LABELS = OutputReading("bernoulli", None, "targets of 0 and 1")


@pytest.mark.parametrize(
    "readings",
    [
        (VALUES, VALUES),
        (None, VALUES),
        (None, None),
        (OutputReading("categorical", -1, "labels"), OutputReading("categorical", -1, "the lack of targets")),
        (OutputReading(None, 1, ""), OutputReading(None, None, "")),
    ],
)
def test_ranks_that_read_alike_or_have_read_nothing(readings):
    _check_read_alike(Several(*readings), [])


def test_ranks_that_read_different_likelihoods_are_refused():
    message = r"Rank 1 of 3 .* 'bernoulli', by targets of 0 and 1, and rank 2 as 'gaussian', by targets of 3.7"
    with pytest.raises(BatchError, match=message + ".*likelihood= on every rank"):
        _check_read_alike(Several(None, LABELS, VALUES), [])


def test_ranks_that_find_classes_in_different_dimensions_are_refused():
    readings = OutputReading("categorical", 1, "labels"), OutputReading("categorical", -1, "labels")
    with pytest.raises(BatchError, match=r"Rank 0 of 2 found .* dimension 1, and rank 1 in dimension -1.*class_dim="):
        _check_read_alike(Several(*readings), [])
