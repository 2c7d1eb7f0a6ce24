"""Computations side by side: their results, in order, whether a device has streams or not."""

from functools import partial

import pytest
import torch

from anchorhold.tensors.side_by_side import side_by_side


def squared(number):
    return torch.tensor(float(number)).square()


def refused():
    raise ValueError("of a task")


def test_results_come_in_the_tasks_order():
    found = side_by_side([partial(squared, number) for number in range(9)], torch.device("cpu"))
    assert [float(each) for each in found] == [float(number * number) for number in range(9)]
    assert side_by_side([], torch.device("cpu")) == []


def test_an_error_of_a_task_is_raised():
    with pytest.raises(ValueError, match="of a task"):
        side_by_side([partial(squared, 1), refused], torch.device("cpu"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_bits_are_those_of_one_after_the_other():
    device = torch.device("cuda")
    factors = [rows @ rows.mT for rows in torch.randn(9, 300, 400, device=device)]
    tasks = [partial(torch.linalg.eigh, factor) for factor in factors]
    for found, expected in zip(side_by_side(tasks, device), [task() for task in tasks], strict=True):
        assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
    with pytest.raises(ValueError, match="of a task"):
        side_by_side([*tasks, refused], device)
