"""The whole matrix against brute force, from its definition, in float64."""

import copy

import pytest
import torch
from torch import nn

import anchorhold
from anchorhold.errors import ConfigurationError, StateError
from anchorhold.forms import Block, Dense, DenseMatrix
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


@pytest.mark.parametrize("kind", NETWORKS)
def test_it_is_the_mean_of_outer_products_over_samples_and_labels(kind):
    model = network(kind)
    expected = brute_force(model)
    matrices = guarded(model, "dense").held.matrices
    assert matrices.keys() == {"network"}
    torch.testing.assert_close(matrices["network"].h, expected, **CLOSE)


@pytest.mark.parametrize("kind", NETWORKS)
def test_one_matrix_a_layer_is_a_block_of_it(kind):
    model = network(kind)
    matrices = guarded(model, Dense(span="layers")).held.matrices
    assert sorted(n for m in matrices.values() for n in m.block.parameters) == sorted(dict(model.named_parameters()))
    assert len(matrices) > 1
    for matrix in matrices.values():
        torch.testing.assert_close(matrix.h, brute_force(model, matrix.block.parameters), **CLOSE)


def test_biases_and_norms_alone_are_blocks_of_their_own():
    matrices = guarded(
        network("branches"), Dense(span="layers"), protect=["*.weight", "norm.bias", "scale"]
    ).held.matrices
    assert {name: matrix.block.parameters for name, matrix in matrices.items()} == {
        name: (name,) for name in ("scale", "first.weight", "norm.weight", "norm.bias", "shared.weight", "head.weight")
    }


def test_the_empirical_one_takes_the_true_labels():
    model = network()
    matrices = guarded(model, "dense", anchorhold.Fisher(labels="true")).held.matrices
    torch.testing.assert_close(matrices["network"].h, brute_force(model, scores=oracles.true_label), **CLOSE)


@pytest.mark.parametrize("damping", [0.0, 0.3])
def test_every_verb_is_that_of_the_matrix(damping):
    model = network("branches")
    h = brute_force(model)
    h += damping * h.trace() / len(h) * torch.eye(len(h), dtype=h.dtype)
    guard = guarded(model, Dense(damping=damping))
    move(model)
    assert_verbs_are_those_of(guard.held.matrices["network"], h, *displacement(guard, model))


def test_tasks_are_added_exactly():
    model = network()
    guard = guarded(model, "dense", decay=0.5)
    first = brute_force(model)
    move(model)
    second = brute_force(model)
    guard.consolidate(data())
    torch.testing.assert_close(dense(guard.held.matrices["network"]), second + 0.5 * first, **CLOSE)


def test_of_a_linear_regression_it_is_that_of_its_inputs():
    model = nn.Linear(4, 1, bias=False).double()
    x = torch.randn(30, 4, dtype=torch.float64)
    guard = anchorhold.Guard(model, anchorhold.Fisher(likelihood="gaussian"), form="dense")
    guard.consolidate([(x, x.sum(1, keepdim=True))])
    torch.testing.assert_close(guard.held.matrices["network"].h, x.T @ x / 30, **CLOSE)


def test_it_sees_what_the_diagonal_does_not():
    """Two layers in a row: what one takes away the other can give back, along which outputs stay as they are."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False)).double()
    x = torch.randn(9, 1, dtype=torch.float64)
    guard = anchorhold.Guard(model, anchorhold.Fisher(), form="dense")
    guard.consolidate([x])
    diagonal = anchorhold.Guard(model, anchorhold.Fisher())
    diagonal.consolidate([x])
    step = 1e-4
    with torch.no_grad():
        model[0].weight.mul_(1 + step)
        model[1].weight.div_(1 + step)
    assert guard.penalty().item() < 1e-6 * diagonal.penalty().item()


def test_what_is_too_large_is_refused_before_anything_is_measured():
    model = nn.Sequential(nn.Linear(100, 180), nn.Tanh(), nn.Linear(180, 20))
    with pytest.raises(ConfigurationError, match=r"21,800 × 21,800 .* 1,900,960,000 bytes \(1\.8 GiB\)") as error:
        anchorhold.Guard(model, anchorhold.Fisher(), form="dense")
    assert all(word in str(error.value) for word in ("'lowrank'", "'rotated'", "span='layers'"))
    anchorhold.Guard(model, anchorhold.Fisher(), form=Dense(span="layers"))
    anchorhold.Guard(model, anchorhold.Fisher(), protect="0.*", form="dense")
    anchorhold.Guard(model, anchorhold.Fisher(), form=Dense(largest=21_800))
    with pytest.raises(ConfigurationError, match="18,180 × 18,180") as error:
        anchorhold.Guard(model, anchorhold.Fisher(), form=Dense(span="layers", largest=10_000))
    assert "span='layers'" not in str(error.value)


def test_a_model_that_grows_too_large_is_refused_and_the_guard_stays_as_it_was():
    model = network()
    guard = guarded(model, Dense(largest=50))
    model.append(nn.Linear(3, 3).double())
    with pytest.raises(ConfigurationError, match="55 × 55"):
        guard.refresh()
    assert guard.parameters.keys() == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert guard.held.matrices["network"].block.length == 43


def test_settings_that_make_no_sense_are_refused():
    for settings, message in (
        ({"span": "all"}, "span='all': expected one of 'network', 'layers'"),
        ({"damping": -1}, "damping=-1"),
        ({"largest": 0}, "largest=0"),
        ({"largest": 2.5}, r"largest=2\.5"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            Dense(**settings)


@pytest.mark.parametrize("measure", ["MAS", "AF", "sqrtFisher", "SI", "SOS", "L2"])
def test_measures_that_are_no_mean_of_squares_have_none(measure):
    with pytest.raises(ConfigurationError, match=f"{measure} has no importance in the form 'dense'.*EWC"):
        anchorhold.Guard(network(), measure, form="dense")


def test_sixteen_bits_would_push_weights_away():
    h = guarded(network("branches"), "dense").held.matrices["network"].h
    rounded = torch.linalg.eigvalsh(h.bfloat16().double())
    assert float(rounded[0]) < -1e-4 * float(rounded[-1])
    with pytest.raises(ConfigurationError, match=r"bfloat16 with form='dense'.*'lowrank'"):
        anchorhold.Guard(
            network(), anchorhold.Fisher(), form="dense", options=anchorhold.GuardOptions(state_dtype=torch.bfloat16)
        )


def test_it_comes_back_from_its_tensors_and_not_from_others():
    model, form = network(), Dense()
    guard = guarded(model, form)
    matrix, parameters = guard.held.matrices["network"], dict(model.named_parameters())
    assert torch.equal(form.restore(matrix.block, matrix.state(), parameters).h, matrix.h)
    for wrong in ({}, {"H": matrix.h[1:]}, {"U": matrix.h}):
        with pytest.raises(StateError, match=r"expected {'H': \(43, 43\)}"):
            form.restore(matrix.block, wrong, parameters)


def test_what_it_takes_is_said_before():
    model = network()
    (told,) = anchorhold.Guard(model, anchorhold.Fisher(), form="dense").cost().blocks
    assert (told.name, told.weights, told.form, told.kept) == ("network", 43, "dense", 8 * (43**2 + 43))
    (block,) = Dense().blocks(model, dict(model.named_parameters()))
    assert Dense().cost(block, dict(model.named_parameters())) == (43**2, 43**2, 43**2, "dense")
    assert guarded(model, "dense").held.matrices["network"].description == "dense"


def test_it_is_the_same_whatever_order_a_model_has_its_layers_in():
    class Reversed(nn.Module):
        def __init__(self, layers):
            super().__init__()
            self.add_module("2", layers[2])
            self.add_module("0", layers[0])

        def forward(self, x):
            return self._modules["2"](self._modules["0"](x).tanh())

    model = network()
    guard = guarded(model, "dense")
    other = anchorhold.Guard(Reversed(copy.deepcopy(model)), anchorhold.Fisher(), form="dense")
    other.load_state_dict(guard.state_dict())
    move(model)
    other._core.runtime.model.load_state_dict(model.state_dict())
    torch.testing.assert_close(other.penalty(), guard.penalty(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("rank", [0, 1, 3, 40, 400])
def test_the_largest_eigenvalue_is_found_without_the_others(rank):
    root = torch.randn(400, rank, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))
    block = Block("network", ("weight",), shapes=((400,),))
    for dtype, close in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
        h = (root @ root.mT).to(dtype)
        expected = torch.linalg.eigvalsh(h.double())[-1].clamp(min=0)
        torch.testing.assert_close(
            DenseMatrix(block, h).largest_eigenvalue().double(), expected, rtol=close, atol=1e-12
        )


def test_a_block_without_weights_has_no_eigenvalue():
    model = network()
    (block,) = Dense().blocks(model, {"0.weight": torch.zeros(0, 4)})
    assert float(DenseMatrix(block, torch.zeros(0, 0)).largest_eigenvalue()) == 0.0
