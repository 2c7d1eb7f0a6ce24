"""Drawing tokens, against the definitions."""

import pytest
import torch

from anchorhold.own_text.piece_batches import Choice, drawn


def by_hand(logits, temperature, top_k, top_p):
    """The probabilities of one row, token by token, most probable first."""
    weights = [float(w) for w in torch.exp(logits.double() / temperature)]
    q = [w / sum(weights) for w in weights]
    order = sorted(range(len(q)), key=lambda token: -q[token])
    kept, so_far = [], 0.0
    for token in order:
        if so_far >= top_p or (top_k and len(kept) == top_k):
            break
        kept.append(token)
        so_far += q[token]
    return [q[token] / sum(q[k] for k in kept) if token in kept else 0.0 for token in range(len(q))]


@pytest.mark.parametrize("top_k", [0, 1, 3, 50])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.4, 1e-9])
@pytest.mark.parametrize("temperature", [1.0, 0.3, 5.0])
def test_probabilities_are_those_of_the_definition(temperature, top_k, top_p):
    logits = torch.randn(5, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = Choice(temperature, top_k, top_p).probabilities(logits)
    expected = torch.tensor([by_hand(row, temperature, top_k, top_p) for row in logits], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_logits_in_16_bits_are_drawn_from_in_double():
    logits = torch.randn(2, 1000).to(torch.bfloat16)
    q = Choice().probabilities(logits)
    assert q.dtype == torch.float64
    torch.testing.assert_close(q.sum(-1), torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-12)


def test_a_token_is_drawn_where_the_sum_passes_the_number():
    q = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]], dtype=torch.float64)
    for number, token in [(0.0, 1), (0.2499, 1), (0.25, 3), (0.7499, 3), (0.75, 4), (1 - 2**-53, 4), (1.0, 4)]:
        assert drawn(q, torch.tensor([number], dtype=torch.float64)).item() == token, number


def test_no_token_without_a_probability_is_ever_drawn():
    generator = torch.Generator().manual_seed(0)
    q = torch.rand(500, 40, generator=generator, dtype=torch.float64)
    q[torch.rand(q.shape, generator=generator) < 0.5] = 0
    for number in (0.0, 0.5, 1 - 2**-53, 1.0):
        chosen = drawn(q, torch.full((500,), number, dtype=torch.float64))
        assert bool((q.gather(-1, chosen[:, None]) > 0).all())


def test_frequencies_are_the_probabilities():
    logits = torch.tensor([1.0, -2.0, 0.5, 3.0, float("-inf")])
    count = 20_000
    uniform = torch.rand(count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    q = Choice(temperature=2.0).probabilities(logits.expand(count, -1))
    seen = drawn(q, uniform).bincount(minlength=5)
    assert seen[4] == 0
    expected = q[0, :4] * count
    chi_square = float(((seen[:4] - expected) ** 2 / expected).sum())
    assert chi_square < 16.3  # three degrees of freedom; one seed in a thousand would pass it, and this one does not
