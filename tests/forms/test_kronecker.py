"""Kronecker forms against the dense matrix, their sums against the exact sum, and their factors against curvlinops."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import anchorhold
from anchorhold.engine.reductions import joined
from anchorhold.errors import ConfigurationError
from anchorhold.forms import Block, Kronecker, KroneckerMatrix, SumMatrix
from tests.forms.layer_networks import block_gradients, dense_of, network_and_inputs, parts
from tests.helpers import grouped

with warnings.catch_warnings():  # one of its libraries uses what torch has deprecated
    warnings.simplefilter("ignore")
    from curvlinops import KFACLinearOperator

SUMS = ("balanced", "nearest", "factors")


AS_MEASURED = Kronecker(damping=0.0)


def guarded(model, x, form=AS_MEASURED, **more):
    guard = anchorhold.Guard(model, "EWC", form=form, **grouped(**more))
    guard.consolidate([x[:4], x[4:]])
    return guard


@st.composite
def random_matrices(draw, sums="balanced"):
    outputs, inputs = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    bias, inputs_first = draw(st.booleans()), draw(st.booleans())
    shape = (inputs, outputs) if inputs_first else (outputs, inputs)
    block = Block("w", ("w", "b") if bias else ("w",), shape, inputs_first)
    sides = draw(st.sampled_from([(g, a) for g in (2, 1, 0) for a in (2, 1, 0) if g or a]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31 - 1)))
    return [KroneckerMatrix(block, *_factors(block, sides, generator), sums) for _ in range(2)], generator


def _factors(block, sides, generator):
    found = []
    for size, kind in zip(block.size, sides, strict=True):
        vectors = torch.randn(size, size + 1, generator=generator, dtype=torch.float64)
        factor = vectors @ vectors.T
        found.append({2: factor, 1: factor.diagonal().clone(), 0: None}[kind])
    return found


@given(random_matrices(), st.floats(0, 1e3), st.just(0.0) | st.floats(0.01, 10))
@settings(max_examples=60, deadline=None)
def test_all_it_does_is_what_the_dense_matrix_does(made, strength, damping):
    (matrix, _), generator = made
    outputs, inputs = matrix.block.size
    flat = torch.randn(outputs * inputs, generator=generator, dtype=torch.float64)
    d, q = parts(matrix.block, flat), dense_of(matrix)
    eye = torch.eye(len(q), dtype=torch.float64)
    scale = float(q.abs().max())
    sides = [
        torch.eye(size, dtype=torch.float64) if f is None else torch.diag(f) if f.ndim == 1 else f
        for f, size in zip((matrix.g, matrix.a), matrix.block.size, strict=True)
    ]
    torch.testing.assert_close(q, torch.kron(*sides), rtol=1e-10, atol=1e-10 * scale)
    torch.testing.assert_close(matrix.value(d), flat @ q @ flat, rtol=1e-10, atol=1e-10 * scale)
    shrunk = joined(matrix.block, matrix.shrink(d, strength)).flatten()
    torch.testing.assert_close(shrunk, torch.linalg.solve(eye + strength * q, flat), rtol=1e-8, atol=1e-9)
    within = q @ flat if damping == 0 else flat
    solved = joined(matrix.block, matrix.solve(parts(matrix.block, within), damping)).flatten()
    torch.testing.assert_close((q + damping * eye) @ solved, within, rtol=1e-7, atol=1e-7 * max(1.0, scale))
    torch.testing.assert_close(
        joined(matrix.block, matrix.diagonal()).flatten(), q.diagonal(), rtol=1e-10, atol=1e-12 * scale
    )
    torch.testing.assert_close(matrix.trace(), q.trace(), rtol=1e-10, atol=0)
    torch.testing.assert_close(matrix.largest_eigenvalue(), torch.linalg.eigvalsh(q)[-1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("sums", SUMS)
@given(data=st.data(), decay=st.floats(0.01, 2))
@settings(max_examples=20, deadline=None)
def test_one_product_for_two_has_their_trace_and_is_positive(sums, data, decay):
    (one, other), _ = data.draw(random_matrices(sums))
    found, exact = dense_of(one.add(other, decay)), dense_of(one) + decay * dense_of(other)
    torch.testing.assert_close(found.trace(), exact.trace(), rtol=1e-10, atol=0)
    assert torch.linalg.eigvalsh(found)[0] >= -1e-10 * found.trace()
    if one.g is None or one.a is None:  # then the sum is one product
        torch.testing.assert_close(found, exact, rtol=1e-10, atol=1e-12)


def test_a_layer_with_the_same_factors_twice_is_twice_the_product():
    model, x = network_and_inputs("mlp")
    for sums in SUMS:
        guard = guarded(model, x, Kronecker(sums=sums))
        once = {name: dense_of(matrix) for name, matrix in guard.held.matrices.items()}
        with pytest.warns(anchorhold.AnchorholdWarning, match=r"consolidate\(\) again"):
            guard.consolidate([x])
        for name, q in once.items():
            torch.testing.assert_close(dense_of(guard.held.matrices[name]), 2 * q, rtol=1e-10, atol=1e-14)


@given(random_matrices("nearest"), st.floats(0.1, 2))
@settings(max_examples=30, deadline=None)
def test_the_nearest_product_is_the_largest_singular_pair_of_the_rearranged_sum(made, decay):
    (one, other), _ = made
    if one.g is None or one.a is None:
        return
    exact = sum(
        c * np.outer(m.g.numpy().ravel(), m.a.numpy().ravel()) for c, m in ((1.0, one), (decay, other))
    )  # a row for each entry of G and a column for each of A
    u, s, v = np.linalg.svd(exact)
    if len(s) > 1 and s[1] > 0.9 * s[0]:
        return  # two that are nearly as good
    found = one.add(other, decay)
    product = np.outer(found.g.numpy().ravel(), found.a.numpy().ravel())
    best = s[0] * np.outer(u[:, 0], v[0])
    cosine = (product * best).sum() / np.linalg.norm(product) / np.linalg.norm(best)
    assert cosine == pytest.approx(1, abs=1e-9)


def test_damping_is_the_root_of_a_share_of_each_factors_mean():
    model, x = network_and_inputs("mlp")
    plain = guarded(model, x).held.matrices
    for form, share in ((Kronecker(damping=0.1), 0.1), ("kronecker", 0.001)):  # the one, and what there is by default
        damped = guarded(model, x, form).held.matrices
        for name, matrix in plain.items():
            factors = zip((matrix.g, matrix.a), (damped[name].g, damped[name].a), strict=True)
            for factor, found in factors:
                added = share**0.5 * factor.trace() / len(factor) * torch.eye(len(factor), dtype=torch.float64)
                torch.testing.assert_close(found, factor + added, rtol=1e-12, atol=1e-16)


def test_kept_sums_are_exact_and_others_say_how_far_they_are():
    model, x = network_and_inputs("mlp")
    others = [torch.randn_like(x) for _ in range(3)]
    exact = {}
    far = {}
    for sums in ("exact", *SUMS):
        guard = guarded(model, x, Kronecker(sums=sums, damping=0.0))
        for other in others:
            guard.consolidate([other])
        for name, matrix in guard.held.matrices.items():
            if sums == "exact":
                assert isinstance(matrix, SumMatrix)
                tasks = [dense_of(guarded(model, task).held.matrices[name]) for task in (x, *others)]
                exact[name] = sum(tasks)
                torch.testing.assert_close(dense_of(matrix), exact[name], rtol=1e-10, atol=1e-14)
            else:
                far[sums, name] = float((dense_of(matrix) - exact[name]).norm() / exact[name].norm())
    assert all(0 < distance < 0.5 for distance in far.values()), far


@pytest.mark.parametrize("kind", ["mlp", "along a sequence", "convolutions"])
def test_the_factors_are_those_of_curvlinops(kind):
    model, x = network_and_inputs(kind)
    matrices = guarded(model, x).held.matrices
    model.requires_grad_(True)
    logits = model(x)
    labels = torch.zeros(logits.shape[:-1], dtype=torch.long)
    flat = model if logits.ndim == 2 else nn.Sequential(model, nn.Flatten(0, 1))
    operator = KFACLinearOperator(
        flat,
        nn.CrossEntropyLoss(reduction="sum"),
        list(model.parameters()),
        [(x, labels.flatten())],
        fisher_type="type-2",
        separate_weight_and_bias=False,
        check_deterministic=False,
        num_per_example_loss_terms=labels[0].numel(),
        num_data=len(x),
    )
    theirs = dense_by_blocks(operator, model, matrices)
    for name, q in theirs.items():
        # Theirs is of the sum of all losses, ours of the mean over samples.
        torch.testing.assert_close(dense_of(matrices[name]), q / len(x), rtol=1e-9, atol=1e-12)


def dense_by_blocks(operator, model, matrices):
    """Return the blocks of an operator over all parameters, each over the entries of [W b]."""
    names = [name for name, _ in model.named_parameters()]
    shapes = [parameter.shape for parameter in model.parameters()]
    found = {}
    for block_name, matrix in matrices.items():
        outputs, inputs = matrix.block.size
        columns = []
        for entry in range(outputs * inputs):
            one = torch.zeros(outputs * inputs, dtype=torch.float64)
            one[entry] = 1
            given = parts(matrix.block, one)
            vector = [
                given.get(name, torch.zeros(shape, dtype=torch.float64))
                for name, shape in zip(names, shapes, strict=True)
            ]
            applied = dict(zip(names, operator @ vector, strict=True))
            columns.append(joined(matrix.block, {name: applied[name] for name in matrix.block.parameters}).flatten())
        found[block_name] = torch.stack(columns, 1)
    return found


def test_gradients_without_rule_give_a_product_with_the_exact_trace():
    model, x = network_and_inputs("recurrent")
    for matrix in guarded(model, x).held.matrices.values():
        if matrix.block.name.startswith("lstm.weight"):
            gradients = block_gradients(model, x, matrix.block)
            outer = sum(weight * gradient @ gradient.T for weight, gradient in gradients)
            inner = sum(weight * gradient.T @ gradient for weight, gradient in gradients)
            torch.testing.assert_close(matrix.g, outer, rtol=1e-10, atol=1e-14)
            torch.testing.assert_close(matrix.a, inner / inner.trace(), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("measure", ["MAS", "AF", "sqrtFisher", "SI"])
def test_what_is_no_mean_of_squares_is_refused_with_those_that_are(measure):
    model, _ = network_and_inputs("mlp")
    with pytest.raises(ConfigurationError, match=f"{measure} has no importance.*: EWC, EWC-sampled, EWC-empirical;"):
        anchorhold.Guard(model, measure, form="kronecker")


def test_two_sides_of_one_hold_nothing():
    with pytest.raises(ConfigurationError, match="identity"):
        Kronecker(outputs="identity", inputs="identity")


def test_the_largest_eigenvalue_of_a_sum_is_found_where_its_vector_has_both_signs():
    block = Block("w", ("w",), (1, 2))
    part = KroneckerMatrix(block, torch.ones(1, 1).double(), torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).double())
    assert float(SumMatrix([part, part]).largest_eigenvalue()) == pytest.approx(4, rel=1e-10)


@pytest.mark.parametrize("strength", [1e-12, 1e-6, 1.0, 1e4, 1e8])
def test_what_a_sum_takes_off_is_as_precise_as_single_precision_has_it(strength):
    """Q is singular: there, from 1e4 on, conjugate gradients in single precision lose all digits of X."""
    block, drawn = Block("w", ("w",), (4, 5)), torch.Generator().manual_seed(1)
    sides = [[torch.randint(-3, 4, (n, 2), generator=drawn).float() for n in (4, 5)] for _ in range(2)]
    total = SumMatrix([KroneckerMatrix(block, g @ g.T, a @ a.T) for g, a in sides])
    d = torch.randn(4, 5, generator=drawn)
    eigenvalues, u = torch.linalg.eigh(sum(torch.kron(part.g.double(), part.a.double()) for part in total.parts))
    pull = strength * torch.where(eigenvalues < 1e-9 * eigenvalues.max(), 0.0, eigenvalues)
    expected = u @ (pull / (1 + pull) * (u.T @ d.double().flatten()))
    found = total.pull({"w": d}, strength)["w"].double().flatten()
    assert float((found - expected).norm() / expected.norm()) < 3e-6
    left = total.shrink({"w": d}, strength)["w"].double().flatten()
    assert float((left - (d.double().flatten() - expected)).norm() / d.norm()) < 1e-6


def test_a_sum_that_cannot_be_solved_says_so():
    """Factors of single precision have eigenvalues below 0 by rounding, and the strength makes them large."""
    block, drawn = Block("w", ("w",), (30, 20)), torch.Generator().manual_seed(1)
    sides = [[torch.randn(n, 2, generator=drawn) for n in (30, 20)] for _ in range(2)]
    total = SumMatrix([KroneckerMatrix(block, g @ g.T, a @ a.T) for g, a in sides])
    with pytest.warns(anchorhold.AnchorholdWarning, match=r"sum of 2 tasks' importance of 'w' .* larger damping="):
        total.shrink({"w": torch.randn(30, 20, generator=drawn)}, 1e8)
