"""The largest share that loses no more of the old outputs than is allowed."""

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn

import anchorhold
from anchorhold.merging import choose_share
from tests.merging.models import guarded, moved, network

X = torch.randn(50, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def lost(before, after, share, x=X, by=None):
    """KL(p_old‖p_new) from its formula."""
    merged = network()
    merged.load_state_dict(anchorhold.merge(before, after, share, by=by))
    p, q = (model(x).softmax(-1) for model in (before, merged))
    return (p * (p.log() - q.log())).sum(-1).mean().item()


def test_what_is_lost_is_as_its_formula_says():
    before, after = network(), moved(network())
    chosen = choose_share(before, after, [X[:20], (X[20:], torch.zeros(30, dtype=torch.long))], 0.01)
    assert [each.share for each in chosen.tried] == sorted(each.share for each in chosen.tried)
    for each in chosen.tried:
        assert each.lost == pytest.approx(lost(before, after, each.share), rel=1e-8, abs=1e-12)


@pytest.mark.parametrize("form", [None, "diagonal", "rotated"])
@pytest.mark.parametrize("tolerance", [0.005, 0.01, 0.05])
def test_the_largest_share_that_is_within_the_tolerance(form, tolerance):
    before, after = network(), moved(network())
    by = None if form is None else [guarded(before, form), guarded(after, form, 4)]
    chosen = choose_share(before, after, [X], tolerance, by=by)
    assert 0 < chosen.share < 1 and chosen.lost <= tolerance
    assert lost(before, after, chosen.share, by=by) <= tolerance * (1 + 1e-9)
    assert lost(before, after, chosen.share + 0.1 / 2**4, by=by) > tolerance
    expected = anchorhold.merge(before, after, chosen.share, by=by)
    assert all(torch.equal(chosen.weights[name], expected[name]) for name in expected)


def test_all_of_it_where_all_is_allowed():
    assert choose_share(network(), moved(network()), [X], 100.0).share == 1.0


def test_nothing_where_nothing_is_allowed():
    before = network()
    with pytest.warns(anchorhold.AnchorholdWarning, match="the result is the model before") as told:
        chosen = choose_share(before, moved(network()), [X], 0.0)
    assert [each.filename for each in told] == [__file__]
    assert chosen.share == 0.0 and chosen.lost == 0.0
    assert torch.equal(chosen.weights["0.weight"], before[0].weight)


def test_what_is_lost_need_not_rise_with_the_share():
    """Halfway between two models that compute the same with hidden units in another order, much is lost."""
    before, after = network(), network()
    order = torch.tensor([1, 2, 3, 4, 0])
    with torch.no_grad():
        for own in (after[0].weight, after[0].bias, after[2].weight, after[2].bias):
            own.copy_(own[order])
        after[3].weight.copy_(after[3].weight[:, order])
    chosen = choose_share(before, after, [X], 1e-6)
    assert chosen.share == 1.0
    assert max(each.lost for each in chosen.tried) > 0.01


def test_with_new_data_the_least_loss_is_taken():
    before, after = network(), moved(network(), 1.0)
    middle = network()
    middle.load_state_dict(anchorhold.merge(before, after, 0.5))
    y = middle(X).argmax(-1)
    chosen = choose_share(before, after, [X], 100.0, new=[(X, y)])
    losses = {each.share: each.new_loss for each in chosen.tried}
    merged = network()
    for share, loss in losses.items():
        merged.load_state_dict(anchorhold.merge(before, after, share))
        assert loss == pytest.approx(F.cross_entropy(merged(X), y).item(), rel=1e-8)
    assert losses[chosen.share] == min(losses.values()) and 0 < chosen.share < 1
    tight = choose_share(before, after, [X], 0.01, new=[(X, y)])
    assert tight.lost <= 0.01 and tight.share < chosen.share


def test_the_models_stay_as_they_are():
    torch.manual_seed(0)
    before = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3)).double()
    before.train()
    before[2].eval()
    kept = {name: tensor.clone() for name, tensor in before.state_dict().items()}
    after = moved(before)
    with pytest.warns(anchorhold.AnchorholdWarning, match="update_bn"):
        first, second = (choose_share(before, after, [X], 0.01) for _ in range(2))
    assert first.tried == second.tried  # dropout is off
    assert all(torch.equal(before.state_dict()[name], tensor) for name, tensor in kept.items())
    assert [module.training for module in before] == [True, True, False, True]
    assert all(parameter.grad is None for parameter in before.parameters())


def test_a_language_model_loses_nats_a_token():
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    before = transformers.GPT2LMHeadModel(config).eval()
    after = moved(before, 0.1)
    tokens = torch.randint(11, (4, 6))
    mask = torch.ones_like(tokens)
    mask[0, 4:] = 0
    chosen = choose_share(before, after, [{"input_ids": tokens, "attention_mask": mask}], 0.01, shares=(0.0, 0.5, 1.0))
    with torch.no_grad():
        p, q = (model(tokens, attention_mask=mask).logits[:, :-1].double().softmax(-1) for model in (before, after))
    scored = mask[:, 1:].bool()
    expected = (p * (p.log() - q.log())).sum(-1)[scored].mean()
    assert chosen.tried[-1].lost == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.daily
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tolerance": -1.0}, "tolerance="),
        ({"tolerance": float("nan")}, "tolerance="),
        ({"shares": [0.5, 1.5]}, "shares="),
        ({"halvings": -1}, "halvings="),
        ({"before": network().state_dict()}, "expected a module"),
        ({"kept": []}, "at least one"),
        ({"new": [X]}, "without labels"),
        ({"kept": X}, "expected an iterable of batches"),
        ({"forward": lambda model, x: model(x)[:, 0]}, "expected logits"),
    ],
)
def test_what_makes_no_sense(settings, said):
    given = {"before": network(), "after": moved(network()), "kept": [X], "tolerance": 0.01} | settings
    with pytest.raises(anchorhold.AnchorholdError, match=said):
        choose_share(**given)


def test_models_that_are_too_far_apart():
    before, after = network(), moved(network())
    with torch.no_grad():
        after[3].weight.mul_(1e308)
    with pytest.raises(anchorhold.errors.NotFiniteError, match="At share"):
        choose_share(before, after, [X], 0.01)
