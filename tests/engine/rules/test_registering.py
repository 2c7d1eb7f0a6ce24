"""Rules from outside: a registered one takes the place of the slower ways, and agrees with brute force."""

from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import anchorhold
from anchorhold.engine import SQUARE, LogLikelihood, Rule, register_rule, sample_importance
from anchorhold.engine.rules import RULES
from tests.engine.agreement import MEASURES, assert_agrees


class PReLU(Rule):
    """``y = max(0, x) + w·min(0, x)``: a sample's gradient is the sum of δ·min(0, x)."""

    def gradients(self, role, a, delta):
        return (delta * a.clamp(max=0)).flatten(2).sum(2, keepdim=True)


def one_slope(input, weight):
    return PReLU(input, {"weight": weight}) if weight.numel() == 1 else None


def network(slopes=1):
    return nn.Sequential(nn.Linear(4, 6), nn.PReLU(slopes), nn.Linear(6, 3)).double()


def ways(model, x):
    return sample_importance(model, [x], LogLikelihood(), SQUARE).fallback


@pytest.fixture(autouse=True)
def rules_as_they_were():
    with mock.patch.dict(RULES):
        yield


@pytest.mark.parametrize("measure", ["Fisher", "AF", "MAS"])
def test_a_rule_from_outside_agrees_with_brute_force(measure):
    model, x = network(), torch.randn(5, 4).double()
    assert set(ways(model, x)) == {"1.weight"}
    assert register_rule(F.prelu)(one_slope) is one_slope
    assert not ways(model, x)
    assert_agrees(model, x, None, MEASURES[measure])


def test_a_call_that_a_rule_does_not_cover_takes_the_slower_way():
    register_rule(F.prelu)(one_slope)
    assert set(ways(network(6), torch.randn(5, 4).double())) == {"1.weight"}


def test_the_last_rule_of_a_function_counts():
    register_rule(F.linear)(lambda *_: None)
    assert len(ways(network(), torch.randn(5, 4).double())) == 5


@pytest.mark.parametrize("given", [(), ("linear",), (F.linear, None)], ids=str)
def test_a_rule_is_of_functions(given):
    with pytest.raises(anchorhold.errors.ConfigurationError, match="expected the functions whose calls"):
        register_rule(*given)
