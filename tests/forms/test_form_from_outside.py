"""The form of examples/extending, one file and one registration, against its formula, in a guard, and in a file."""

import importlib.util
from pathlib import Path

import pytest
import torch

import anchorhold
from anchorhold.errors import StateError
from tests.forms.layer_networks import network_and_inputs, weighted_gradients

FILE = Path(__file__).parents[2] / "examples" / "extending" / "form.py"
STRENGTH = 2.0


@pytest.fixture(scope="module", autouse=True)
def _registered():
    specification = importlib.util.spec_from_file_location("extending_form", FILE)
    specification.loader.exec_module(importlib.util.module_from_spec(specification))


@pytest.fixture(params=["mlp", "convolutions"])
def guarded(request):
    model, x = network_and_inputs(request.param)
    guard = anchorhold.Guard(model, "EWC", strength=STRENGTH, form="units", decay=0.5)
    guard.consolidate([x])
    return model, x, guard


def mean_squares(model, x):
    """Return the mean over the weights of each unit of Σ p g², sample by sample and label by label."""
    totals = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for weight, gradients in weighted_gradients(model, x):
        for name, gradient in gradients.items():
            totals[name] += weight * gradient.square()
    return {name: total.flatten(1).mean(1) if total.ndim > 1 else total for name, total in totals.items()}


def moved(model):
    drawn = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=drawn, dtype=parameter.dtype))


def test_every_method_is_that_of_the_formula(guarded):
    model, x, guard = guarded
    for name, s in mean_squares(model, x).items():
        matrix, parameter = guard.held.matrices[name], dict(model.named_parameters())[name]
        torch.testing.assert_close(matrix.s, s, rtol=1e-10, atol=1e-14)
        q = s.repeat_interleave(parameter.numel() // len(s))
        d = torch.linspace(-1, 1, parameter.numel(), dtype=torch.float64)
        given = {name: d.view(parameter.shape)}
        for found, expected in (
            (matrix.apply(given), q * d),
            (matrix.shrink(given, 3.0), d / (1 + 3 * q)),
            (matrix.pull(given, 3.0), d - d / (1 + 3 * q)),
            (matrix.solve(given, 0.1), d / (q + 0.1)),
            (matrix.diagonal(), q),
            (matrix.add(matrix.scale(2.0), 0.5).apply(given), 2 * q * d),
        ):
            torch.testing.assert_close(found[name].flatten(), expected, rtol=1e-10, atol=1e-14)
        torch.testing.assert_close(matrix.value(given), (q * d * d).sum(), rtol=1e-10, atol=0)
        torch.testing.assert_close(matrix.trace(), q.sum(), rtol=1e-10, atol=0)
        torch.testing.assert_close(matrix.largest_eigenvalue(), q.max(), rtol=1e-10, atol=0)


def test_a_guard_sums_holds_saves_and_loads_it(guarded, tmp_path):
    model, x, guard = guarded
    first = mean_squares(model, x)
    moved(model)
    guard.consolidate([x + 0.3])
    expected = {name: s + 0.5 * first[name] for name, s in mean_squares(model, x + 0.3).items()}
    for name, s in expected.items():
        torch.testing.assert_close(guard.held.matrices[name].s, s, rtol=1e-10, atol=1e-14)
    guard.save(tmp_path / "state")
    loaded = anchorhold.Guard(model, "EWC", strength=STRENGTH, form="units", decay=0.5)
    loaded.load(tmp_path / "state")
    for name, matrix in guard.held.matrices.items():
        assert torch.equal(loaded.held.matrices[name].s, matrix.s) and loaded.held.matrices[name].shape == matrix.shape
    moved(model)
    penalty = sum(
        (expected[name].view(-1, *[1] * (p.ndim - 1)) * (p - guard.anchor[name]).square()).sum()
        for name, p in model.named_parameters()
    )
    torch.testing.assert_close(loaded.penalty(), STRENGTH * penalty, rtol=1e-10, atol=0)


def test_a_state_of_another_network_is_refused(guarded):
    _, _, guard = guarded
    matrix = next(iter(guard.held.matrices.values()))
    with pytest.raises(StateError, match="is of another model, or of another form"):
        guard.options.form.restore(matrix.block, {"s": torch.ones(99)}, dict(guard.parameters))


def test_moving_it_keeps_what_is_no_tensor(guarded):
    _, _, guard = guarded
    for matrix in guard.held.matrices.values():
        single = matrix.to(dtype=torch.float32)
        assert single.s.dtype == torch.float32 and isinstance(single.shape, torch.Size) and single.shape == matrix.shape
        assert matrix.to(dtype=torch.float64) is matrix and single.block == matrix.block
