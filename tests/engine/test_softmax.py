"""The derivatives of a softmax, and the oracle's scores, against arithmetic with 400 digits."""

import itertools

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anchorhold.engine.scores.outputs import Softmax
from tests import oracles

mpmath.mp.dps = 400

LOGITS = {
    "fresh": [0.3, -0.2, 0.1, 0.0],
    "certain to 1e-15": [0.0, 34.5, -1.0, 0.5],
    "certain to 1e-60": [140.0, 1.0, 0.0, 2.0],
    "certain to 1e-160, the rest tiny": [-2.0, 0.0, 1.0, 370.0],
    "certain first, then tiny tails": [400.0, 3.0, 2.0, 1.0],
    "tie at the top": [20.0, 20.0, -20.0, 0.0],
    "two classes": [40.0, 0.0],
    "a class masked out": [1.0, -float("inf"), 0.0],
}


def _exact(z):
    powers = [mpmath.exp(mpmath.mpf(x)) for x in z]
    total = mpmath.fsum(powers)
    return [power / total for power in powers]


def _error(found, exact):
    """The largest relative error of any one element."""
    pairs = zip(torch.as_tensor(found).flatten().tolist(), exact, strict=True)
    return max(float(abs(mpmath.mpf(a) - b) / abs(b)) if b else abs(a) for a, b in pairs)


@pytest.mark.parametrize("name", LOGITS)
def test_label_gradients_to_the_last_digit(name):
    z = torch.tensor(LOGITS[name], dtype=torch.float64)
    q = _exact(LOGITS[name])
    found = Softmax(z).label_gradients(torch.arange(len(z)))
    exact = [(j == y) - q[j] for y in range(len(q)) for j in range(len(q))]
    assert _error(found, exact) < 1e-14 * max(10, float(z[z.isfinite()].abs().max()))


@pytest.mark.parametrize("name", LOGITS)
def test_norm_gradients_to_the_last_digit(name):
    z = torch.tensor(LOGITS[name], dtype=torch.float64)
    q = _exact(LOGITS[name])
    norm = mpmath.fsum(x * x for x in q)
    tolerance = 1e-14 * max(10, float(z[z.isfinite()].abs().max()))
    top = int(z.argmax())
    assert _error(Softmax(z).squared_norm_gradient(), [2 * x * (x - norm) for x in q]) < tolerance
    exact = [2 * q[top] ** 2 * ((j == top) - q[j]) for j in range(len(q))]
    assert _error(Softmax(z).squared_maximum_gradient(), exact) < tolerance


@pytest.mark.parametrize("name", LOGITS)
def test_factor_gives_the_fisher_information_of_the_logits(name):
    z = torch.tensor(LOGITS[name], dtype=torch.float64)
    q = _exact(LOGITS[name])
    columns = Softmax(z).factor(0, len(z) - 1)
    assert columns.isfinite().all()
    found = columns.T @ columns
    tolerance = 1e-14 * max(10, float(z[z.isfinite()].abs().max()))
    diagonal = [x - x * x for x in q]
    for i, j in itertools.product(range(len(q)), repeat=2):
        # Relative to what the two logits have on their own: ω is a sum of squares, so that is what its digits need.
        scale = mpmath.sqrt(diagonal[i] * diagonal[j])
        exact = diagonal[i] if i == j else -q[i] * q[j]
        assert abs(mpmath.mpf(float(found[i, j])) - exact) <= tolerance * scale


@given(st.lists(st.floats(-30, 30), min_size=2, max_size=6), st.data())
def test_factor_by_blocks(z, data):
    softmax = Softmax(torch.tensor(z))
    whole = softmax.factor(0, len(z) - 1)
    cut = data.draw(st.integers(0, len(z) - 1))
    torch.testing.assert_close(torch.cat([softmax.factor(0, cut), softmax.factor(cut, len(z) - 1)]), whole)


# At an exact tie ‖q‖² is flat and autograd's terms cancel; the oracle is not asked about that.
@pytest.mark.parametrize("name", [name for name in LOGITS if "masked" not in name and "tie" not in name])
def test_the_oracle_itself(name):
    """Its scores' gradients, by autograd, have all digits too: otherwise it could not judge."""
    z = torch.tensor(LOGITS[name], dtype=torch.float64, requires_grad=True)
    q = _exact(LOGITS[name])
    norm, top = mpmath.fsum(x * x for x in q), int(z.argmax())
    exact = {
        "norm": (oracles.squared_norm, [2 * x * (x - norm) for x in q]),
        "top": (oracles.squared_maximum, [2 * q[top] ** 2 * ((j == top) - q[j]) for j in range(len(q))]),
    }
    for y in range(len(q)):
        label = torch.tensor(y)
        exact[f"label {y}"] = (
            lambda z, _, label=label: oracles.true_label(z, label),
            [(j == y) - q[j] for j in range(len(q))],
        )
        assert abs(mpmath.mpf(oracles.q(z, y)) - q[y]) <= q[y] * 1e-12
    for scores, expected in exact.values():
        [[(_, score)]] = scores(z, None)
        (found,) = torch.autograd.grad(score, z)
        size = max(abs(x) for x in expected)
        gap = max(abs(mpmath.mpf(a) - b) for a, b in zip(found.tolist(), expected, strict=True))
        assert gap <= 1e-12 * size
