"""All matrices: every tensor is reached by map(), moves by to(), and is never changed in place."""

import pytest
import torch

import anchorhold
from anchorhold.forms import Dense, Diagonal, Kronecker, Kronecker16, LowRank, Rotated, SumMatrix
from anchorhold.forms.damped import add_damping
from tests.forms.layer_networks import network_and_inputs

FORMS = {
    "diagonal": Diagonal(),
    "rotated": Rotated(),
    "rotated in blocks": Rotated(outputs="blocks", inputs="blocks", largest_block=2),
    "rotated at low rank": Rotated(outputs="lowrank", inputs="lowrank", rank=2),
    "rotated, exact": Rotated(sums="exact"),
    "kronecker": Kronecker(),
    "kronecker of one side": Kronecker(outputs="identity"),
    "kronecker, spectra": Kronecker16(),
    "kronecker, exact": Kronecker(sums="exact"),
    "low rank": LowRank(rank=3, damping=0.1),
    "dense": Dense(),
}


@pytest.fixture(params=FORMS)
def matrices(request):
    """Return matrices of a form, damped ones and sums of two among them."""
    model, x = network_and_inputs("mlp")
    guard = anchorhold.Guard(model, "EWC", strength=1.0, form=FORMS[request.param])
    guard.consolidate([x])
    own = [matrix.to(dtype=torch.float64) for matrix in guard.held.matrices.values()]
    return own + [add_damping(m, 0.3) for m in own] + [SumMatrix([m, m.scale(2.0)]) for m in own]


def ones(matrix):
    return {name: torch.ones_like(omega) for name, omega in matrix.diagonal().items()}


def test_map_reaches_every_tensor_that_is_saved_and_nothing_else(matrices):
    for matrix in matrices:
        seen = []
        changed = matrix.map(lambda tensor, seen=seen: seen.append(tensor) or tensor + 1)
        before, after = matrix.state(), changed.state()
        assert type(changed) is type(matrix) and changed.block == matrix.block and after.keys() == before.keys()
        assert {id(t) for t in seen} == {id(t) for t in before.values()}
        assert all(torch.equal(after[name], tensor + 1) for name, tensor in before.items())
        assert changed.description and changed.compute_dtype(torch.float32) == matrix.compute_dtype(torch.float32)


def test_to_moves_all_of_it_and_leaves_what_is_there_already(matrices):
    for matrix in matrices:
        assert matrix.to() is matrix and matrix.to(torch.device("cpu"), torch.float64) is matrix
        for changed in (matrix.to(dtype=torch.float32), matrix.to(torch.device("meta"))):
            same = changed.to(dtype=torch.float32).state()
            assert {t.dtype for t in same.values()} == {torch.float32}
            assert {t.device for t in same.values()} == {t.device for t in changed.state().values()}
        assert {t.device.type for t in matrix.to(torch.device("meta")).state().values()} == {"meta"}


def test_what_is_computed_with_has_the_products_dtype(matrices):
    for matrix in matrices:
        d = {name: one.float() for name, one in ones(matrix).items()}
        inner = next(iter(getattr(matrix, "parts", [getattr(matrix, "matrix", matrix)])))
        inner = getattr(inner, "parts", [inner])[0]
        expected = inner.compute_dtype(torch.float32)
        assert {t.dtype for t in matrix.to_compute(d).state().values()} == {expected}


def test_no_method_changes_a_matrix_in_place(matrices):
    for matrix in matrices:
        before = {name: tensor.clone() for name, tensor in matrix.state().items()}
        d = ones(matrix)
        given = {name: one.clone() for name, one in d.items()}
        matrix.apply(d), matrix.value(d), matrix.shrink(d, 2.0), matrix.pull(d, 2.0), matrix.solve(d, 0.1)
        matrix.scale(3.0), matrix.diagonal(), matrix.trace(), matrix.largest_eigenvalue()
        matrix.add(matrix.scale(0.5), 0.7)
        if matrix.block.is_matrix:
            outputs, inputs = matrix.block.size
            matrix.apply_to_product(torch.ones(outputs, 1).double(), torch.ones(1, inputs).double())
        assert all(torch.equal(tensor, before[name]) for name, tensor in matrix.state().items())
        assert all(torch.equal(one, given[name]) for name, one in d.items())
