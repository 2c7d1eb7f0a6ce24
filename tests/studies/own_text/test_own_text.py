"""Own text as data: how importances are compared, and the pieces of text that they are measured on."""

import pytest
import torch

from studies.own_text.study import compared, windows


def test_importances_are_compared_by_correlation_and_size():
    real = torch.rand(100, generator=torch.Generator().manual_seed(0)) + 0.1
    found = compared(real, 3 * real)
    assert found == {
        key: pytest.approx(value) for key, value in {"correlation": 1, "of logarithms": 1, "size": 3}.items()
    }
    rows = windows(torch.arange(50), 7, 5, 0)
    assert bool((rows[:, 1:] - rows[:, :-1] == 1).all()) and rows.shape == (7, 5)
