"""Rotated forms against their definition and against the dense matrix, in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import anchorhold
from anchorhold.engine.reductions import Basis, joined
from anchorhold.errors import ConfigurationError
from anchorhold.forms import Block, Rotated, RotatedMatrix, SumMatrix
from tests.forms.layer_networks import NETWORKS, block_gradients, dense_of, network_and_inputs, parts
from tests.helpers import grouped

PHI = {"EWC": torch.square, "MAS": torch.abs, "AF": torch.abs}


AS_MEASURED = Rotated(damping=0.0)


def guarded(model, x, measure="EWC", form=AS_MEASURED, **more):
    guard = anchorhold.Guard(model, measure, form=form, **grouped(**more))
    guard.consolidate([x[:4], x[4:]])
    return guard


def eye_or(u, size):
    return torch.eye(size, dtype=torch.float64) if u is None else u.contiguous()


def in_basis(matrix, gradient):
    outputs, inputs = matrix.block.size
    return eye_or(matrix.basis.outputs, outputs).T @ gradient @ eye_or(matrix.basis.inputs, inputs)


@pytest.mark.daily
@pytest.mark.parametrize("kind", NETWORKS)
def test_s_is_the_mean_square_in_coordinates_that_are_orthonormal(kind):
    model, x = network_and_inputs(kind)
    guard = guarded(model, x)
    layers = [matrix for matrix in guard.held.matrices.values() if matrix.block.is_matrix]
    assert layers
    for matrix in layers:
        gradients = block_gradients(model, x, matrix.block)
        expected = sum(weight * in_basis(matrix, gradient).square() for weight, gradient in gradients)
        torch.testing.assert_close(matrix.s, expected, rtol=1e-10, atol=1e-14)
        for u in filter(lambda u: u is not None, matrix.basis):
            torch.testing.assert_close(u.T @ u, torch.eye(len(u), dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", NETWORKS)
def test_what_is_no_matrix_is_the_diagonal(kind):
    model, x = network_and_inputs(kind)
    expected = guarded(model, x, form="diagonal").importance
    for name, matrix in guarded(model, x).held.matrices.items():
        if not matrix.block.is_matrix:
            torch.testing.assert_close(matrix.omega, expected[name], rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("kind", ["mlp", "attention", "convolutions", "recurrent"])
def test_the_coordinates_are_eigenvectors_of_the_factors(kind):
    """So that the matrix of squares there has nothing beside the diagonal in the mean over outputs, or inputs."""
    model, x = network_and_inputs(kind)
    kronecker = guarded(model, x, form="kronecker").held.matrices
    for name, matrix in guarded(model, x).held.matrices.items():
        if not matrix.block.is_matrix:
            continue
        for u, factor in zip(matrix.basis, (kronecker[name].g, kronecker[name].a), strict=True):
            if u is not None:
                turned = u.T @ factor @ u
                beside = turned - torch.diag(turned.diagonal())
                assert beside.abs().max() <= 1e-12 * turned.abs().max()


@pytest.mark.parametrize("measure", ["EWC-sampled", "EWC-empirical", "sqrtFisher", "AF", "MAS", "MAS-logits"])
def test_every_measure_from_data_has_the_diagonals_own_values_where_nothing_is_rotated(measure):
    model, x = network_and_inputs("mlp")
    batches = [(x, torch.zeros(len(x), dtype=torch.long))]
    form = Rotated(damping=0.0, outputs="identity", inputs="identity")
    plain, unrotated = (anchorhold.Guard(model, measure, form=f) for f in ("diagonal", form))
    for guard in (plain, unrotated):
        guard.consolidate(batches)
    for name, omega in plain.importance.items():
        torch.testing.assert_close(unrotated.importance[name], omega, rtol=1e-10, atol=1e-14)


def test_mas_takes_absolute_values_in_the_coordinates_of_its_own_delta():
    model, x = network_and_inputs("mlp")
    for matrix in guarded(model, x, "MAS").held.matrices.values():
        expected = torch.zeros(matrix.block.size, dtype=torch.float64)
        for sample in x:
            score = model(sample[None]).softmax(-1).square().sum()
            gradients = dict(
                zip(dict(model.named_parameters()), torch.autograd.grad(score, list(model.parameters())), strict=True)
            )
            expected += in_basis(matrix, joined(matrix.block, gradients)).abs() / len(x)
        torch.testing.assert_close(matrix.s, expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("kind", ["along a sequence", "attention"])
def test_expand_squares_the_gradient_of_each_position(kind):
    model, x = network_and_inputs(kind)
    matrices = guarded(model, x, form=Rotated(sharing="expand", damping=0.0)).held.matrices
    block = matrices["0.weight" if kind == "along a sequence" else "head.weight"].block
    layer = model[0] if kind == "along a sequence" else model.head
    kept = {}
    layer.register_forward_hook(lambda _, given, out: kept.update(a=given[0], out=out))
    matrix, expected = matrices[block.name], 0
    for sample in x:
        logits = model(sample[None])
        log_q = logits.log_softmax(-1).flatten(0, -2)
        ones = torch.cat([kept["a"][0], torch.ones(len(kept["a"][0]), 1, dtype=torch.float64)], 1).detach()
        for position in log_q:
            for score in position:
                (delta,) = torch.autograd.grad(score, kept["out"], retain_graph=True)
                for d, a in zip(delta[0], ones, strict=True):
                    expected = expected + score.exp().item() / len(x) * in_basis(matrix, torch.outer(d, a)).square()
    torch.testing.assert_close(matrix.s, expected, rtol=1e-10, atol=1e-14)


@st.composite
def random_matrices(draw):
    outputs, inputs = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    bias, inputs_first = draw(st.booleans()), draw(st.booleans())
    seed = draw(st.integers(0, 2**31 - 1))
    shape = (inputs, outputs) if inputs_first else (outputs, inputs)
    block = Block("w", ("w", "b") if bias else ("w",), shape, inputs_first)
    generator = torch.Generator().manual_seed(seed)

    def basis(size, rotated):
        square = torch.randn(size, size, generator=generator, dtype=torch.float64)
        return torch.linalg.qr(square)[0] if rotated else None

    s = torch.rand(block.size, generator=generator, dtype=torch.float64)
    s = torch.where(s < 0.2, 0.0, s)  # directions that are free
    pair = Basis(*(basis(size, draw(st.booleans())) for size in block.size))
    spectra = Basis(*(torch.rand(size, generator=generator, dtype=torch.float64) for size in block.size))
    return RotatedMatrix(block, s, pair, spectra), generator


@given(random_matrices(), st.floats(0, 1e3), st.just(0.0) | st.floats(0.01, 10))
@settings(max_examples=60, deadline=None)
def test_all_it_does_is_what_the_dense_matrix_does(made, strength, damping):
    matrix, generator = made
    flat = torch.randn(matrix.s.numel(), generator=generator, dtype=torch.float64)
    d, q = parts(matrix.block, flat), dense_of(matrix)
    eye = torch.eye(len(q), dtype=torch.float64)
    torch.testing.assert_close(q, q.T, rtol=0, atol=1e-12)
    torch.testing.assert_close(matrix.value(d), flat @ q @ flat, rtol=1e-10, atol=1e-12)
    shrunk = joined(matrix.block, matrix.shrink(d, strength)).flatten()
    torch.testing.assert_close(shrunk, torch.linalg.solve(eye + strength * q, flat), rtol=1e-10, atol=1e-10)
    within = q @ flat if damping == 0 else flat
    solved = joined(matrix.block, matrix.solve(parts(matrix.block, within), damping)).flatten()
    torch.testing.assert_close((q + damping * eye) @ solved, within, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(joined(matrix.block, matrix.diagonal()).flatten(), q.diagonal(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(matrix.trace(), q.trace(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(matrix.largest_eigenvalue(), torch.linalg.eigvalsh(q)[-1], rtol=1e-10, atol=1e-12)


@given(random_matrices(), st.floats(0, 2))
@settings(max_examples=30, deadline=None)
def test_a_sum_has_the_exact_sums_diagonal_in_its_own_coordinates(made, decay):
    one, generator = made
    other = RotatedMatrix(
        one.block,
        torch.rand(one.block.size, generator=generator, dtype=torch.float64),
        Basis(*(None if u is None else torch.linalg.qr(torch.randn_like(u))[0] for u in one.basis)),
        one.spectra,
    )
    found, exact = one.add(other, decay), dense_of(one) + decay * dense_of(other)
    outputs, inputs = one.block.size
    turn = torch.kron(eye_or(found.basis.outputs, outputs), eye_or(found.basis.inputs, inputs))
    torch.testing.assert_close(found.s.flatten(), (turn.T @ exact @ turn).diagonal(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(found.trace(), exact.trace(), rtol=1e-10, atol=1e-12)


def test_a_second_task_is_measured_in_the_coordinates_of_both():
    model, x = network_and_inputs("mlp")
    guard = guarded(model, x)
    first = guard.held.matrices
    other = torch.randn_like(x)
    guard.consolidate([other])
    for name, matrix in guard.held.matrices.items():
        gradients = block_gradients(model, other, matrix.block)
        new = sum(weight * in_basis(matrix, gradient).square() for weight, gradient in gradients)
        old = first[name].diagonal_in_basis(matrix.basis)
        torch.testing.assert_close(matrix.s, new + old, rtol=1e-10, atol=1e-14)
        # The basis is that of both tasks' factors, each balanced: in it their sum is diagonal.
        g, a = matrix.factors
        alone = guarded(model, other).held.matrices[name]
        for both, one, two in zip((g, a), first[name].factors, alone.factors, strict=True):
            torch.testing.assert_close(both, one + two, rtol=1e-8, atol=1e-12)


def test_the_same_task_twice_is_twice_the_importance():
    model, x = network_and_inputs("attention")
    guard = guarded(model, x)
    once = {name: dense_of(m) for name, m in guard.held.matrices.items() if m.block.is_matrix}
    with pytest.warns(anchorhold.AnchorholdWarning, match=r"consolidate\(\) again"):
        guard.consolidate([x])
    for name, q in once.items():
        torch.testing.assert_close(dense_of(guard.held.matrices[name]), 2 * q, rtol=1e-8, atol=1e-10)


def test_kept_sums_are_exact():
    model, x = network_and_inputs("mlp")
    other = torch.randn_like(x)
    guard = guarded(model, x, form=Rotated(sums="exact", damping=0.0), decay=0.5)
    guard.consolidate([other])
    for name, matrix in guard.held.matrices.items():
        assert isinstance(matrix, SumMatrix)
        expected = 0.5 * dense_of(guarded(model, x).held.matrices[name]) + dense_of(
            guarded(model, other).held.matrices[name]
        )
        torch.testing.assert_close(dense_of(matrix), expected, rtol=1e-9, atol=1e-12)


def test_damping_is_a_share_of_the_mean_for_every_direction():
    model, x = network_and_inputs("tied")
    plain = guarded(model, x).held.matrices
    for form, share in ((Rotated(damping=0.1), 0.1), ("rotated", 0.001)):  # the one, and what there is by default
        damped = guarded(model, x, form=form).held.matrices
        for name, matrix in plain.items():
            kept = (matrix.s, damped[name].s) if matrix.block.is_matrix else (matrix.omega, damped[name].omega)
            torch.testing.assert_close(kept[1], kept[0] + share * kept[0].mean(), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"outputs": "diagonal"},
        {"sharing": "reduce"},
        {"sums": "balanced"},
        {"precision": "bf16"},
        {"largest_side": 0},
        {"damping": -1},
        {"damping": "much"},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ConfigurationError, match=f"{next(iter(wrong))}=.*expected"):
        Rotated(**wrong)


@pytest.mark.parametrize("measure", ["SI", "SOS", "L2"])
def test_a_measure_without_samples_is_refused_with_those_that_have_it(measure):
    model, _ = network_and_inputs("mlp")
    with pytest.raises(ConfigurationError, match=f"{measure} has no importance.*EWC.*MAS"):
        anchorhold.Guard(model, measure, form="rotated")
