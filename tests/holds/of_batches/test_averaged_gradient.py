"""A-GEM from its formula (Chaudhry et al. 2019), in float64."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import anchorhold
from anchorhold.holds import AveragedGradient, Reservoir, Ring
from tests import helpers
from tests.helpers import grouped

X = torch.linspace(-1, 1, 80, dtype=torch.float64).reshape(20, 4).sin()
Y = torch.arange(20) % 3
RATE = 0.1
network = partial(helpers.network, 4, 6, 3)


def gradient(model, x, y):
    found = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
    return torch.cat([g.flatten() for g in found])


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def projected(g, reference):
    along = g @ reference
    return g - along / (reference @ reference) * reference if along < 0 else g


def started(hold, measure="fine-tune", strength=0.0, **options):
    model = network()
    guard = anchorhold.Guard(model, measure, strength=strength, holds=[hold], from_scratch=True, **grouped(**options))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    guard.attach(optimizer)
    for _ in range(20):
        optimizer.zero_grad()
        F.cross_entropy(model(X), Y).backward()
        optimizer.step()
    guard.consolidate([(X, Y)])
    return model, optimizer, guard


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize("labels", [(Y + 1) % 3, Y], ids=["conflict", "none"])
def test_a_gradient_that_conflicts_is_projected_and_no_other(labels, closure):
    hold = AveragedGradient([(X[:10], Y[:10])])
    model, optimizer, guard = started(hold)
    x = X.flip(1)
    g, reference = gradient(model, x, labels), gradient(model, X[:10], Y[:10])
    expected = flat(model) - RATE * projected(g, reference)
    assert (g @ reference < 0) == (labels is not Y)

    def evaluate():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), labels)
        loss.backward()
        return loss

    if closure:
        loss = F.cross_entropy(model(x), labels).detach()
        torch.testing.assert_close(optimizer.step(evaluate), loss)  # to project is no loss
    else:
        evaluate()
        optimizer.step()
    torch.testing.assert_close(flat(model), expected, rtol=0, atol=1e-12)
    assert (float(hold.coefficient) > 0) == (labels is not Y)
    assert guard.penalty() == 0


def test_the_reference_is_of_all_tasks_and_other_holds_stay_whole():
    hold, c = AveragedGradient(Reservoir(1000), size=1000), 2.0
    model, optimizer, guard = started(hold, "EWC", c, implicit=False)
    second = -X
    for _ in range(5):
        optimizer.zero_grad()
        F.cross_entropy(model(second), Y).backward()
        optimizer.step()
    guard.consolidate([(second, Y)])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02)
    labels = (Y + 1) % 3
    g, reference = gradient(model, X, labels), gradient(model, torch.cat([X, second]), torch.cat([Y, Y]))
    assert g @ reference < 0
    names = [name for name, _ in model.named_parameters()]
    distance = {name: dict(model.named_parameters())[name].detach() - guard.anchor[name] for name in names}
    pull = torch.cat([(2 * c * guard.importance[name] * distance[name]).flatten() for name in names])
    expected = flat(model) - RATE * (projected(g, reference) + pull)
    optimizer.zero_grad()
    F.cross_entropy(model(X), labels).backward()
    optimizer.step()
    torch.testing.assert_close(flat(model), expected, rtol=0, atol=1e-12)


def test_a_loss_scale_makes_no_difference():
    model, _, guard = started(AveragedGradient([(X[:10], Y[:10])]))
    guard.detach()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, fused=True)  # which is handed scaled gradients
    guard.attach(optimizer)
    scaler, labels = torch.amp.GradScaler("cpu", init_scale=1024.0), (Y + 1) % 3
    expected = flat(model) - RATE * projected(gradient(model, X, labels), gradient(model, X[:10], Y[:10]))
    optimizer.zero_grad()
    scaler.scale(F.cross_entropy(model(X), labels)).backward()
    scaler.step(optimizer)
    torch.testing.assert_close(flat(model), expected, rtol=0, atol=1e-12)


def test_measures_see_the_gradient_as_it_was():
    model, optimizer, guard = started(AveragedGradient([(X[:10], Y[:10])]), "SI", 0.0)
    labels = (Y + 1) % 3
    g, before = gradient(model, X, labels), flat(model)
    optimizer.zero_grad()
    F.cross_entropy(model(X), labels).backward()
    optimizer.step()
    moved = flat(model) - before
    path = guard.gradients.path.running["SI"]["path"]
    found = torch.cat([path[name].flatten() for name, _ in model.named_parameters()])
    torch.testing.assert_close(found, -g * moved)
    assert not torch.allclose(moved, -RATE * g)


def test_a_draw_is_of_all_kinds_and_the_same_for_the_same_step():
    ring = Ring(4)
    ring.fill([(X, Y)], 0)
    ring.fill([(-X, Y)], 1)
    one, other = ring.draw_from_all(10, step=3), ring.draw_from_all(10, step=3)
    assert sum(count for _, count in one) == 10 and {part.task for part, _ in one} == {0, 1}
    for (part, _), (again, _) in zip(one, other, strict=True):
        assert torch.equal(part.batch[0], again.batch[0])
    assert sum(count for _, count in ring.draw_from_all(1000, step=0)) == len(ring)


def test_it_keeps_what_fine_tuning_loses():
    left = {}
    for holds in ((), ("A-GEM",)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
        guard = anchorhold.Guard(model, "fine-tune", holds=holds, from_scratch=True)
        first, second = (torch.randn(200, 10), torch.randn(200, 10))
        rules = torch.randn(2, 10, 3)
        for x, rule in ((first, rules[0]), (second, rules[1])):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            guard.attach(optimizer)
            y = (x @ rule).argmax(1)
            for _ in range(100):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            guard.consolidate([(x, y)])
            guard.detach()
        left[holds] = float((model(first).argmax(1) == (first @ rules[0]).argmax(1)).float().mean())
    assert left["A-GEM",] > left[()] + 0.05


def test_several_optimizers_are_told_of():
    model = network()
    guard = anchorhold.Guard(model, "fine-tune", strength=0.0, holds=[AveragedGradient(Ring(2))], from_scratch=True)
    first, second = (torch.optim.SGD(layer.parameters(), lr=RATE) for layer in (model[0], model[2]))
    with pytest.warns(anchorhold.AnchorholdWarning, match="'A-GEM' with 2 optimizers"):
        guard.attach(first, second)
