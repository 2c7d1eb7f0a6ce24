"""The diagonal against the dense matrix."""

import pytest
import torch

from anchorhold.errors import StateError
from anchorhold.forms import Block, Diagonal, DiagonalMatrix

OMEGA = torch.tensor([[0.0, 1.0, 2.5], [4.0, 0.5, 3.0]], dtype=torch.float64)
D = torch.tensor([[1.0, -2.0, 0.3], [0.7, 5.0, -1.0]], dtype=torch.float64)
Q = OMEGA.flatten().diag()


def matrix():
    return DiagonalMatrix("weight", OMEGA.clone())


def test_every_verb_is_that_of_the_dense_matrix():
    m, d, one = matrix(), D.flatten(), torch.eye(6, dtype=torch.float64)
    torch.testing.assert_close(m.apply({"weight": D})["weight"].flatten(), Q @ d)
    torch.testing.assert_close(m.value({"weight": D}), d @ Q @ d)
    torch.testing.assert_close(m.shrink({"weight": D}, 2.0)["weight"].flatten(), torch.linalg.solve(one + 2 * Q, d))
    torch.testing.assert_close(m.solve({"weight": D}, 0.1)["weight"].flatten(), torch.linalg.solve(Q + 0.1 * one, d))
    torch.testing.assert_close(m.solve({"weight": D})["weight"].flatten(), torch.linalg.pinv(Q) @ d)
    torch.testing.assert_close(m.trace(), Q.trace())
    torch.testing.assert_close(m.largest_eigenvalue(), torch.linalg.eigvalsh(Q)[-1])
    torch.testing.assert_close(m.add(matrix(), 0.5).diagonal()["weight"], 1.5 * OMEGA)
    torch.testing.assert_close(m.scale(3.0).omega, 3 * OMEGA)


def test_the_value_of_every_matrix_is_what_applying_it_gives():
    m = matrix()
    torch.testing.assert_close(super(DiagonalMatrix, m).value({"weight": D}), m.value({"weight": D}))


def test_it_comes_back_from_its_tensors_and_not_from_others():
    form, block, parameters = Diagonal(), Block("weight", ("weight",)), {"weight": torch.zeros(2, 3)}
    assert torch.equal(form.restore(block, matrix().state(), parameters).omega, OMEGA)
    for wrong in ({}, {"": torch.ones(3)}, {"G": OMEGA}):
        with pytest.raises(StateError, match=r"expected one tensor of shape \(2, 3\)"):
            form.restore(block, wrong, parameters)


def test_what_is_no_number_is_seen():
    assert matrix().is_finite
    assert not matrix().map(lambda omega: omega / 0).is_finite
