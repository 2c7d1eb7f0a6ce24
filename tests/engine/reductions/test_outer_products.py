"""Sums of vvᵀ against the formula, whichever way the vectors lie in memory."""

import pytest
import torch

from anchorhold.engine.reductions.factors import PANEL, add_outer_, as_rows, mirror_

SIZES = [1, 3, PANEL, PANEL + 1, 2 * PANEL + 7]


def laid_out(order, size, positions=5):
    """Return vectors ``[2, 3, positions, size]`` that lie in memory in the order given."""
    shape = (2, 3, positions, size)
    lying = torch.randn([shape[i] for i in order], dtype=torch.float64)
    return lying.permute([order.index(i) for i in range(4)])


def expected(vectors):
    return torch.einsum("vnti,vntj->ij", vectors, vectors)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 2, 3), (1, 0, 3, 2), (3, 0, 1, 2), (2, 3, 1, 0)])
@pytest.mark.parametrize("positions", [1, 5, 300])
def test_the_sum_is_that_of_all_vectors(order, size, positions):
    vectors = laid_out(order, size, positions)
    total = torch.eye(size, dtype=torch.float64)
    add_outer_(total, vectors)
    mirror_(total)
    torch.testing.assert_close(total, torch.eye(size, dtype=torch.float64) + expected(vectors), rtol=1e-10, atol=1e-10)
    diagonal = torch.ones(size, dtype=torch.float64)
    add_outer_(diagonal, vectors)
    torch.testing.assert_close(diagonal, total.diagonal(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("size", SIZES)
def test_it_is_added_to_a_part_of_a_larger_sum(size):
    total, vectors = torch.zeros(size + 1, size + 1, dtype=torch.float64), laid_out((1, 0, 2, 3), size)
    add_outer_(total[:size, :size], vectors)
    mirror_(total)
    torch.testing.assert_close(total[:size, :size], expected(vectors), rtol=1e-10, atol=1e-10)
    assert not total[-1].any() and not total[:, -1].any()


def test_half_of_a_large_sum_is_left_to_the_mirror():
    total = torch.zeros(3 * PANEL, 3 * PANEL, dtype=torch.float64)
    add_outer_(total, torch.ones(4, 3 * PANEL, dtype=torch.float64))
    assert not total[:PANEL, PANEL:].any()
    mirror_(total)
    assert bool((total == 4).all())


def test_vectors_stay_where_they_lie():
    for order in [(0, 1, 2, 3), (1, 0, 2, 3), (3, 1, 0, 2)]:
        vectors = laid_out(order, 6)
        assert as_rows(vectors).data_ptr() == vectors.data_ptr()
