"""Sums over whole gradients, of networks of many kinds, against brute force."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from anchorhold.engine.accumulator import SampleAccumulator
from anchorhold.engine.reductions import Arrival, Block, OuterReduction, ProductReduction, as_vector, in_shapes
from tests import oracles
from tests.engine import networks
from tests.engine.agreement import FOR_POSITIONS, MEASURES
from tests.engine.networks import randomise
from tests.engine.test_compositions import image_networks, sequence_networks
from tests.engine.test_fallback import Recurrent

SQUARES = ["Fisher", "empirical Fisher", "custom"]
SQUARES_OF_POSITIONS = ["Fisher", "Fisher, separate", "empirical Fisher"]


def block_of(model):
    parameters = dict(model.named_parameters())
    names = tuple(sorted(parameters))
    return Block("all", names, shapes=tuple(tuple(parameters[name].shape) for name in names))


def summed(model, inputs, targets, measure, kind, budget=None, **more):
    """Return the means of a reduction, and what the engine had no rule for."""
    collector = SampleAccumulator(
        model,
        measure.score,
        measure.phi,
        budget=budget,
        reduction=lambda parameters: kind(measure.phi, [block_of(model)], parameters, **more),
    )
    result = collector.result_of([(inputs, targets)])
    return result.values, result.fallback


def assert_is_brute_force(model, inputs, targets, measure, budget=None, fallback=None):
    expected = oracles.outer_products(model, oracles.one_by_one(inputs, targets), measure.oracle)
    found, without_rule = summed(model, inputs, targets, measure, OuterReduction, budget)
    assert oracles.relative_error(found["all/H"], expected) < 1e-10
    if fallback is not None:
        assert bool(without_rule) == fallback
    v = torch.randn(len(expected), 5, dtype=torch.float64)
    products, _ = summed(model, inputs, targets, measure, ProductReduction, budget, directions={"all": v})
    assert oracles.relative_error(products["all/Y"], expected @ v) < 1e-10
    torch.testing.assert_close(products["all/trace"], expected.trace(), rtol=1e-10, atol=0)


budgets = st.sampled_from([None, 1, 30_000])


@settings(max_examples=25)
@given(sequence_networks(), budgets, st.integers(1, 3), st.integers(1, 3), st.sampled_from(SQUARES_OF_POSITIONS))
def test_sequences(model, budget, samples, length, measure):
    model = randomise(model).double()
    inputs, targets = torch.randint(6, (samples, length)), torch.randint(3, (samples, length))
    assert_is_brute_force(model, inputs, targets, FOR_POSITIONS[measure], budget)


@settings(max_examples=20)
@given(image_networks(), budgets, st.integers(1, 3), st.sampled_from(SQUARES))
def test_images(model, budget, samples, measure):
    model = randomise(model).double()
    inputs, targets = torch.randn(samples, 2, 8, 8, dtype=torch.float64), torch.randint(3, (samples,))
    assert_is_brute_force(model, inputs, targets, MEASURES[measure], budget)


@pytest.mark.parametrize("make", [networks.NanoGPT, networks.HuggingGPT2], ids=["tied head", "transposed layers"])
def test_decoders(make):
    model = randomise(make()).double()
    targets = torch.randint(7, (2, 3))
    targets[0, 1] = -100
    assert_is_brute_force(model, torch.randint(7, (2, 3)), targets, FOR_POSITIONS["Fisher"], fallback=False)


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_one_parameter_without_a_rule_takes_all_of_its_block_along(kind):
    model = randomise(Recurrent(kind)).double()
    inputs, targets = torch.randn(3, 2, 3, dtype=torch.float64), torch.randint(3, (3,))
    assert_is_brute_force(model, inputs, targets, MEASURES["Fisher"], fallback=True)


class Temperature(nn.Module):
    """Has a parameter of no dimension, and one that takes no part."""

    def __init__(self):
        super().__init__()
        self.body, self.unused = nn.Linear(3, 4), nn.Linear(2, 2)
        self.temperature = nn.Parameter(torch.tensor(0.7))

    def forward(self, x):
        return self.body(x) * self.temperature


def test_what_takes_no_part_has_a_gradient_of_zero():
    model = Temperature().double()
    inputs, targets = torch.randn(4, 3, dtype=torch.float64), torch.randint(4, (4,))
    assert_is_brute_force(model, inputs, targets, MEASURES["Fisher"])


def test_a_vector_is_taken_apart_as_it_was_joined():
    shapes = ((2, 3), (), (4,))
    block = Block("all", ("a", "b", "c"), shapes=shapes)
    given = {name: torch.randn(5, *shape) for name, shape in zip("abc", shapes, strict=True)}
    vectors = as_vector(block, given, lead=1)
    assert vectors.shape == (5, block.length) == (5, sum(map(math.prod, shapes)))
    for name, tensor in given.items():
        assert torch.equal(in_shapes(block, vectors[2])[name], tensor[2])
    without = as_vector(block, {"c": given["c"]}, lead=1)
    assert torch.equal(without[:, -4:], given["c"]) and not without[:, :-4].any()


def test_it_takes_no_use_by_itself():
    model = nn.Linear(2, 2)
    reduction = OuterReduction(MEASURES["Fisher"].phi, [block_of(model)], dict(model.named_parameters()))
    arrival = Arrival(None, {}, torch.zeros(1, 2), torch.zeros(1, 1, 2))
    assert not reduction.supports(arrival)
    with pytest.raises(TypeError, match="single uses"):
        reduction.add(arrival)
