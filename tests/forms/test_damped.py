"""Q + λ, in every form, against the dense matrix."""

import pytest
import torch

import anchorhold
from anchorhold.forms.damped import DampedMatrix, add_damping
from anchorhold.forms.diagonal import DiagonalMatrix
from tests.guard.helpers import batch, net

FORMS = ["diagonal", "rotated", "kronecker", "dense"]


def matrices(form):
    guard = anchorhold.Guard(net(), anchorhold.Fisher(), form=form)
    guard.consolidate([batch(0)])
    return guard.held.matrices


def as_dense(apply, shapes):
    """The matrix of a linear map of a block, column by column."""
    total = sum(shape.numel() for shape in shapes.values())
    columns = []
    for unit in torch.eye(total, dtype=torch.float64):
        parts = unit.split([shape.numel() for shape in shapes.values()])
        d = {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        found = apply(d)
        columns.append(torch.cat([found[name].reshape(-1) for name in shapes]))
    return torch.stack(columns, 1)


@pytest.mark.parametrize("form", FORMS)
def test_all_that_a_matrix_can_is_that_of_the_sum(form):
    for matrix in matrices(form).values():
        shapes = {name: omega.shape for name, omega in matrix.diagonal().items()}
        damped = add_damping(matrix, 0.3)
        assert isinstance(damped, DiagonalMatrix if form == "diagonal" else DampedMatrix)
        q = as_dense(matrix.apply, shapes) + 0.3 * torch.eye(
            sum(s.numel() for s in shapes.values()), dtype=torch.float64
        )
        identity = torch.eye(len(q), dtype=q.dtype)
        close = {"rtol": 1e-9, "atol": 1e-10}
        torch.testing.assert_close(as_dense(damped.apply, shapes), q, **close)
        torch.testing.assert_close(
            as_dense(lambda d, m=damped: m.shrink(d, 2.0), shapes), torch.linalg.inv(identity + 2 * q), **close
        )
        torch.testing.assert_close(
            as_dense(lambda d, m=damped: m.pull(d, 2.0), shapes),
            identity - torch.linalg.inv(identity + 2 * q),
            **close,
        )
        torch.testing.assert_close(
            as_dense(lambda d, m=damped: m.solve(d, 0.1), shapes), torch.linalg.inv(q + 0.1 * identity), **close
        )
        torch.testing.assert_close(damped.trace(), q.trace(), **close)
        torch.testing.assert_close(damped.largest_eigenvalue(), torch.linalg.eigvalsh(q).max(), rtol=1e-6, atol=0)
        diagonal = torch.cat([omega.reshape(-1) for omega in damped.diagonal().values()])
        torch.testing.assert_close(diagonal, q.diagonal(), **close)
        torch.testing.assert_close(as_dense(damped.scale(3.0).apply, shapes), 3 * q, **close)
        torch.testing.assert_close(as_dense(damped.add(damped, 0.5).apply, shapes), 1.5 * q, **close)
        torch.testing.assert_close(as_dense(damped.map(torch.clone).apply, shapes), q, **close)
        assert damped.description == matrix.description
        assert damped.is_finite


def test_many_weak_pulls_let_nothing_grow_where_coordinates_are_not_quite_orthonormal():
    """As eigenvectors of single precision may be: what nothing holds went through them, there and back, every step."""
    for matrix in matrices("rotated").values():
        damped = add_damping(matrix.map(lambda tensor: 1.01 * tensor if tensor.ndim == 2 else tensor), 1e-3)
        d = {name: torch.ones_like(omega) for name, omega in matrix.diagonal().items()}
        for _ in range(200):
            d = {name: d[name] - pull for name, pull in damped.pull(d, 1e-6).items()}
        assert all((each.abs() < 1.001).all() for each in d.values())
