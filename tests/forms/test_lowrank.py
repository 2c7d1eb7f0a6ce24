"""The most important directions against the whole matrix, in float64."""

import numpy as np
import pytest
import torch
from torch import nn

import anchorhold
from anchorhold.errors import ConfigurationError, StateError
from anchorhold.forms import LowRank
from anchorhold.forms.lowrank import OVERSAMPLING, LowRankMatrix, nystrom, principal
from tests import oracles
from tests.forms.whole_network import (
    NETWORKS,
    assert_verbs_are_those_of,
    brute_force,
    data,
    dense,
    displacement,
    guarded,
    move,
    network,
)

CLOSE = {"rtol": 1e-10, "atol": 1e-12}


def wide():
    """A network of 218 weights, and inputs for which no eigenvalue is far from the next."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 14), nn.Tanh(), nn.Linear(14, 8)).double()
    return model, torch.randn(60, 6, dtype=torch.float64)


def exact_of(model, x):
    """Return H and its eigenvalues, the largest first, by brute force and numpy."""
    h = oracles.outer_products(model, oracles.one_by_one(x), oracles.every_label)
    return h, torch.from_numpy(np.linalg.eigvalsh(h.numpy())[::-1].copy())


def measured(model, x, **settings):
    guard = anchorhold.Guard(model, anchorhold.Fisher(), form=LowRank(**settings))
    guard.consolidate([x])
    return guard.held.matrices["network"]


def cut(h, rank):
    """Return the nearest matrix of a rank."""
    values, vectors = np.linalg.eigh(h.numpy())
    return torch.from_numpy((vectors[:, -rank:] * values[-rank:]) @ vectors[:, -rank:].T)


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("span", ["network", "layers"])
def test_with_as_many_directions_as_there_are_it_is_exact(kind, span):
    model = network(kind)
    for matrix in guarded(model, LowRank(rank=100, span=span)).held.matrices.values():
        h = brute_force(model, matrix.block.parameters)
        torch.testing.assert_close(dense(matrix), h, **CLOSE)
        torch.testing.assert_close(matrix.total_trace, h.trace(), **CLOSE)


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_with_as_many_directions_as_the_gradients_have_it_is_exact(iterations):
    """Five samples of three labels span ten directions of 43, since a sample's weighted gradients sum to 0."""
    model = network()
    x = data(n=5)[0][0]
    h, values = exact_of(model, x)
    assert float(values[10]) < 1e-12 * float(values[0]) < float(values[9])
    found = measured(model, x, rank=10, iterations=iterations)
    torch.testing.assert_close(dense(found), h, **CLOSE)
    torch.testing.assert_close(found.values, values[:10], rtol=1e-9, atol=1e-12)


def test_more_passes_come_nearer_to_the_largest_eigenvalues_from_below():
    model, x = wide()
    h, values = exact_of(model, x)
    nearest = float((h - cut(h, 20)).norm())
    errors, shares = [], []
    for iterations in (1, 2, 4, 8, 30):
        found = measured(model, x, rank=20, iterations=iterations)
        assert bool((found.values <= values[:20] * (1 + 1e-12)).all())
        assert float(torch.linalg.eigvalsh(h - dense(found))[0]) > -1e-12  # it lies below H
        errors.append(float((h - dense(found)).norm()) / nearest)
        shares.append(float(found.values.sum() / values[:20].sum()))
    assert errors == sorted(errors, reverse=True) and shares == sorted(shares)
    assert errors[1] < 1.2 and shares[1] > 0.93
    assert errors[-1] < 1 + 1e-6


def test_the_largest_eigenpairs_are_those_of_numpy():
    model, x = wide()
    h, values = exact_of(model, x)
    found = measured(model, x, rank=20, iterations=40)
    torch.testing.assert_close(found.values[:8], values[:8], rtol=1e-10, atol=0)
    for u, value in zip(found.u.mT[:4], values, strict=False):
        torch.testing.assert_close(h @ u, value * u, rtol=0, atol=1e-6 * float(value))
    torch.testing.assert_close(found.u.mT @ found.u, torch.eye(20, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("damping", [0.0, 0.3])
def test_every_verb_is_that_of_the_matrix(damping):
    model = network("branches")
    h = brute_force(model)
    guard = guarded(model, LowRank(rank=6, damping=damping, iterations=60))
    move(model)
    q = cut(h, 6) + damping * h.trace() / len(h) * torch.eye(len(h), dtype=h.dtype)
    matrix = guard.held.matrices["network"]
    torch.testing.assert_close(dense(matrix), q, rtol=1e-8, atol=1e-9)
    assert_verbs_are_those_of(matrix, dense(matrix), *displacement(guard, model))


@pytest.mark.parametrize("decay", [1.0, 0.5, 0.0])
def test_a_sum_is_cut_to_what_is_nearest(decay):
    model = network()
    guard = guarded(model, LowRank(rank=7), decay=decay)
    first = dense(guard.held.matrices["network"])
    move(model)
    second = dense(guarded(model, LowRank(rank=7)).held.matrices["network"])
    traces = [float(brute_force(model).trace()), float(guard.held.matrices["network"].total_trace)]
    guard.consolidate(data())
    found = guard.held.matrices["network"]
    assert found.u.shape == (43, 7)
    torch.testing.assert_close(dense(found), cut(second + decay * first, 7), **CLOSE)
    assert float(found.total_trace) == pytest.approx(traces[0] + decay * traces[1], rel=1e-12)


def test_a_sum_that_is_exact_keeps_all_directions():
    model = network()
    guard = guarded(model, LowRank(rank=7, sums="exact", damping=0.1), decay=0.5)
    expected = dense(guard.held.matrices["network"])
    for seed in (5, 6):
        move(model, seed=seed)
        alone = guarded(model, LowRank(rank=7, sums="exact", damping=0.1)).held.matrices["network"]
        guard.consolidate(data())
        expected = dense(alone) + 0.5 * expected
        torch.testing.assert_close(dense(guard.held.matrices["network"]), expected, **CLOSE)
    assert guard.held.matrices["network"].u.shape == (43, 21)
    other = anchorhold.Guard(model, anchorhold.Fisher(), form=LowRank(rank=7, sums="exact", damping=0.1))
    other.load_state_dict(guard.state_dict())
    torch.testing.assert_close(dense(other.held.matrices["network"]), expected, **CLOSE)
    move(model)
    assert_verbs_are_those_of(guard.held.matrices["network"], expected, *displacement(guard, model))


def test_it_says_how_much_of_the_trace_it_has():
    model, x = wide()
    _, values = exact_of(model, x)
    found = measured(model, x, rank=20, iterations=40)
    share = 100 * values[:20].sum() / values.sum()
    assert found.description == f"low rank, 20 of 218 directions, {share:.0f} % of the trace"
    guard = anchorhold.Guard(model, anchorhold.Fisher(), form=LowRank(rank=20))
    assert "4 low rank, 20 of 218 directions, " in repr(guard.consolidate([x])["EWC"])
    form, parameters = LowRank(rank=20), dict(model.named_parameters())
    (block,) = form.blocks(model, parameters)
    columns = 20 + OVERSAMPLING
    said = "low rank, 20 of 218 directions"
    assert form.cost(block, parameters) == (218 * 20 + 21, 218 * columns + 1, 2 * 218 * 20, said)


def test_it_bears_sixteen_bits():
    model = network("branches")
    guard = guarded(model, LowRank(rank=9), state_dtype=torch.bfloat16)
    matrix = guard.held.matrices["network"]
    assert {tensor.dtype for tensor in matrix.state().values()} == {torch.bfloat16}
    q = dense(matrix.map(torch.Tensor.double))
    values = torch.linalg.eigvalsh((q + q.mT) / 2)
    assert float(values[0]) > -1e-12 * float(values[-1])
    guard.consolidate(data(seed=1))
    move(model)
    assert guard.penalty().item() > 0


def test_a_network_without_gradients_has_directions_of_nothing():
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    guard = guarded(model, LowRank(rank=4), protect="0.*")
    matrix = guard.held.matrices["network"]
    assert not matrix.values.any() and matrix.is_finite and matrix.description == "low rank, 4 of 25 directions"
    d = {name: torch.ones_like(p) for name, p in guard.parameters.items()}
    assert not any(part.any() for part in matrix.solve(d).values())
    guard.consolidate(data(seed=1))
    assert guard.held.matrices["network"].is_finite


def test_an_iterator_cannot_be_gone_through_twice():
    guard = anchorhold.Guard(network(), anchorhold.Fisher(), form="lowrank")
    with pytest.raises(anchorhold.errors.BatchError, match="'lowrank' goes through the samples 2 times"):
        guard.consolidate(iter(data()))
    once = anchorhold.Guard(network(), anchorhold.Fisher(), form=LowRank(iterations=1))
    once.consolidate(iter(data()))
    assert once.tasks == 1


def test_settings_that_make_no_sense_are_refused():
    for settings, message in (
        ({"rank": 0}, "rank=0"),
        ({"iterations": 0}, "iterations=0"),
        ({"iterations": True}, "iterations=True"),
        ({"sums": "rotated"}, "sums='rotated': expected one of 'cut', 'exact'"),
        ({"span": "layer"}, "span='layer'"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            LowRank(**settings)
    with pytest.raises(ConfigurationError, match="MAS has no importance in the form 'lowrank'"):
        anchorhold.Guard(network(), "MAS", form="lowrank")


def test_it_comes_back_from_its_tensors_and_not_from_others():
    model, form = network(), LowRank(rank=5)
    matrix, parameters = guarded(model, form).held.matrices["network"], dict(model.named_parameters())
    tensors = matrix.state()
    torch.testing.assert_close(dense(form.restore(matrix.block, tensors, parameters)), dense(matrix), rtol=0, atol=0)
    others = (
        {},
        {"H": tensors["U"]},
        tensors | {"U": tensors["U"][:, 1:]},
        tensors | {"L": tensors["L"].reshape(5, 1)},
    )
    for wrong in others:
        with pytest.raises(StateError, match=r"expected {'U': \(43, 5\), 'L': \(5,\), 'trace': \(\)}"):
            form.restore(matrix.block, wrong, parameters)
        with pytest.raises(StateError, match="another form"):
            LowRank(rank=5, sums="exact").restore(matrix.block, wrong, parameters)


def test_columns_that_say_nothing_are_no_directions_of_their_own():
    """Of a matrix of rank 3, most of the columns are rounding, and would be divided by it."""
    root = torch.randn(30, 3, dtype=torch.float64)
    v = torch.linalg.qr(torch.randn(30, 12, dtype=torch.float64))[0]
    h = root @ root.mT
    u, values = nystrom(v, h @ v)
    torch.testing.assert_close((u * values) @ u.mT, h, **CLOSE)
    assert float(values[3]) < 1e-20
    torch.testing.assert_close(u.mT @ u, torch.eye(12, dtype=torch.float64), rtol=0, atol=1e-12)


def test_the_principal_directions_are_those_of_the_product():
    root = torch.randn(6, 9, dtype=torch.float64)  # more columns than rows, as small networks' sums have
    u, values = principal(root, None)
    assert u.shape == (6, 6)
    torch.testing.assert_close((u * values) @ u.mT, root @ root.mT, **CLOSE)
    assert principal(root, 2)[1].tolist() == values[:2].tolist()


def test_a_block_without_weights_has_no_eigenvalue():
    (block,) = LowRank().blocks(network(), {"0.weight": torch.zeros(0, 4)})
    matrix = LowRankMatrix(block, torch.zeros(0, 0), torch.zeros(0), torch.zeros(()))
    assert float(matrix.largest_eigenvalue()) == 0.0
