"""The mean over all pairs of several gradient estimates, without going through the pairs."""

import itertools

import pytest
import torch

import anchorhold
from anchorhold.measures.recurrences import add_pairs_to_second_moment_


def over_pairs(gradients, alpha):
    pairs = list(itertools.permutations(gradients, 2))
    return sum((g - alpha * h) ** 2 for g, h in pairs) / len(pairs)


def from_sums(gradients, alpha, beta2=0.0, state=None):
    stacked = torch.stack(list(gradients))
    state = torch.zeros_like(stacked[0]) if state is None else state.clone()
    add_pairs_to_second_moment_(state, stacked.mean(0), stacked.square().mean(0), len(stacked), alpha, beta2)
    return state


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0, anchorhold.measures.unbiased_alpha(8), -2.0])
@pytest.mark.parametrize("estimates", [2, 3, 7])
def test_two_sums_give_the_mean_over_all_pairs(estimates, alpha):
    torch.manual_seed(0)
    gradients = torch.randn(estimates, 50, dtype=torch.float64) + 1
    torch.testing.assert_close(from_sums(gradients, alpha), over_pairs(gradients, alpha), rtol=1e-12, atol=1e-14)
    state = torch.rand(50, dtype=torch.float64)
    expected = 0.9 * state + 0.1 * over_pairs(gradients, alpha)
    torch.testing.assert_close(from_sums(gradients, alpha, 0.9, state), expected, rtol=1e-12, atol=1e-14)


def test_little_noise_is_not_lost_in_rounding():
    """Gradients of large batches differ little; with the unbiased α single precision still leaves three digits."""
    torch.manual_seed(0)
    alpha = anchorhold.measures.unbiased_alpha(1000)
    exact = 1 + 0.03 * torch.randn(4, 1000, dtype=torch.float64)
    torch.testing.assert_close(from_sums(exact.float(), alpha).double(), over_pairs(exact, alpha), rtol=2e-3, atol=0)
    assert bool((from_sums(torch.full((2, 100), 0.1), 1.0) >= 0).all())


@pytest.mark.parametrize("estimates", [2, 3])
def test_its_mean_is_the_empirical_fisher_of_what_one_rank_sees(estimates):
    """Over every possible batch of two samples for every rank: without statistical noise."""
    torch.manual_seed(1)
    per_sample = torch.randn(3, 5, dtype=torch.float64) + 0.5
    batches = [per_sample[list(chosen)].mean(0) for chosen in itertools.product(range(3), repeat=2)]
    alpha = anchorhold.measures.unbiased_alpha(2)
    found = [from_sums(chosen, alpha) for chosen in itertools.product(batches, repeat=estimates)]
    fisher = per_sample.square().mean(0)
    torch.testing.assert_close(sum(found) / len(found), (1 - alpha) ** 2 * fisher, rtol=1e-10, atol=0)


def test_a_measure_knows_its_alpha():
    mean, square = torch.tensor([0.5]), torch.tensor([1.0])
    measure, state = anchorhold.SOS(alpha="unbiased", beta2=0.0), torch.zeros(1)
    measure.update_from_estimates_({"second_moment": state}, mean, square, 2, 8)
    expected = torch.zeros(1)
    add_pairs_to_second_moment_(expected, mean, square, 2, anchorhold.measures.unbiased_alpha(8), 0.0)
    assert torch.equal(state, expected)
    with pytest.raises(anchorhold.errors.ConfigurationError, match=r"gradients\.ranks"):
        measure.update_from_estimates_({"second_moment": state}, mean, square, 2, None)
