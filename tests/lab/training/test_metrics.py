import math

import pytest

from anchorhold_lab.training import metrics

MATRIX = [
    [0.9, 0.2, 0.1],
    [0.7, 0.8, 0.3],
    [0.8, 0.6, 0.7],
]


def test_the_figures_by_hand():
    assert metrics.average_accuracy(MATRIX) == pytest.approx(0.7)
    assert metrics.average_accuracies(MATRIX) == pytest.approx([0.9, 0.75, 0.7])
    assert metrics.forgetting(MATRIX) == pytest.approx(((0.9 - 0.8) + (0.8 - 0.6)) / 2)
    assert metrics.backward_transfer(MATRIX) == pytest.approx(((0.8 - 0.9) + (0.6 - 0.8)) / 2)
    assert metrics.forward_transfer(MATRIX, [0.1, 0.1, 0.1]) == pytest.approx((0.1 + 0.2) / 2)
    assert metrics.task_curve(MATRIX, 1) == [0.8, 0.6]


def test_a_single_task_has_nothing_to_forget():
    assert metrics.average_accuracy([[0.5]]) == 0.5
    assert math.isnan(metrics.forgetting([[0.5]]))
    assert math.isnan(metrics.backward_transfer([[0.5]]))
    assert math.isnan(metrics.forward_transfer([[0.5]], [0.1]))
