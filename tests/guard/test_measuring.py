"""What ranks must agree on when they measure together, and what measuring leaves alone."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import anchorhold
from anchorhold.engine.scores import OutputReading
from anchorhold.errors import BatchError
from anchorhold.guard.batches import check_read_alike
from tests.guard.helpers import batch, net


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
    check_read_alike(Several(*readings), [])


def test_ranks_that_read_different_likelihoods_are_refused():
    message = r"Rank 1 of 3 .* 'bernoulli', by targets of 0 and 1, and rank 2 as 'gaussian', by targets of 3.7"
    with pytest.raises(BatchError, match=message + ".*likelihood= on every rank"):
        check_read_alike(Several(None, LABELS, VALUES), [])


def test_ranks_that_find_classes_in_different_dimensions_are_refused():
    readings = OutputReading("categorical", 1, "labels"), OutputReading("categorical", -1, "labels")
    with pytest.raises(BatchError, match=r"Rank 0 of 2 found .* dimension 1, and rank 1 in dimension -1.*class_dim="):
        check_read_alike(Several(*readings), [])


def test_asking_how_often_batches_can_be_read_draws_nothing():
    """A shuffling loader draws a seed for each iterator: as many as there are passes, and no more."""
    x, y = batch(0)
    loader = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True)
    guard = anchorhold.Guard(net(), "EWC", form="rotated")
    torch.manual_seed(3)
    guard.consolidate(loader)
    drawn = torch.get_rng_state()
    torch.manual_seed(3)
    for _ in range(guard.options.form.passes):
        for _ in loader:
            pass
    assert torch.equal(drawn, torch.get_rng_state())
    with pytest.raises(BatchError, match="goes through the samples"):
        guard.consolidate(iter([(x, y)]))
