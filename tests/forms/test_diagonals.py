"""Small diagonals that are pulled together are pulled as each by itself."""

import torch
from torch import nn

import anchorhold
from anchorhold.forms.diagonals import SMALL, pulls_of_diagonals
from anchorhold.holds.of_weights import quadratic


def held(dtype=torch.float64, **options):
    """What holds see of a network with norms, away from its anchor."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, 3), nn.LayerNorm(3)).to(dtype)
    options = anchorhold.GuardOptions(**options)
    guard = anchorhold.Guard(model, "EWC", strength=0.7, form="rotated", from_scratch=True, options=options)
    guard.consolidate([torch.randn(16, 4, dtype=dtype)])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    return guard._core.held(guard._core.runtime.parameters)


def together(seen, parameters=None):
    return pulls_of_diagonals(seen.importance.values(), parameters or seen.parameters, seen.anchor, 1.4)


def test_they_have_the_bits_that_each_has_alone_and_the_order_stays(monkeypatch):
    for dtype in (torch.float32, torch.float64):
        seen = held(dtype)
        assert set(together(seen)) == {"1.weight", "1.bias", "4.weight", "4.bias"}
        fast = quadratic.Quadratic().gradient(seen)
        monkeypatch.setattr(quadratic, "pulls_of_diagonals", lambda *_: {})
        plain = quadratic.Quadratic().gradient(seen)
        monkeypatch.undo()
        assert list(fast) == list(plain)
        assert all(torch.equal(fast[name], plain[name]) for name in plain)
        for name, found in together(seen).items():
            d = (seen.parameters[name] - seen.anchor[name]).detach()
            torch.testing.assert_close(found, 1.4 * seen.importance[name].omega * d)


def test_only_those_that_are_asked_for_are_made():
    seen = held()
    parts = list(quadratic.Quadratic().parts(seen, {"1.bias"}))
    assert [set(part) for part in parts if part] == [{"1.bias"}]


def test_those_that_are_kept_otherwise_or_large_are_pulled_one_by_one():
    assert not together(held(state_dtype=torch.bfloat16))
    seen = held()
    large = {**seen.parameters, "4.bias": nn.Parameter(torch.zeros(SMALL + 1, dtype=torch.float64))}
    assert set(together(seen, large)) == {"1.weight", "1.bias", "4.weight"}
