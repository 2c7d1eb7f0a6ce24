"""A number by which tensors are told apart."""

import pytest
import torch

from anchorhold.tensors.summaries import checksum


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex128, torch.int8])
def test_what_lies_in_another_place_is_another(dtype):
    """Rows in another order, as a layer with permuted units has them, and what lies apart in a large tensor."""
    for size, (first, second) in ((12, (2, 4)), (12, (0, 11)), (200_000, (1, 65_537)), (200_000, (70_000, 135_536))):
        values = torch.arange(size).to(dtype)
        values[first], values[second] = 3, 5
        swapped = values.clone()
        swapped[first], swapped[second] = 5, 3
        assert checksum([values]) == checksum([values.view(2, -1)]) != checksum([swapped])
    assert checksum([values, swapped]) != checksum([swapped, values])
    assert checksum([values[:0]]) == 0
