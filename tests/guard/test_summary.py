"""A guard, and what it found, in a few lines."""

import copy

import pytest
import torch
from torch import nn

import anchorhold
from tests.guard.helpers import batch, net, train


def lines(thing):
    return str(thing).splitlines()


def test_before_anything_is_held():
    guard = anchorhold.Guard(net(), anchorhold.SOS(), strength=500.0, protect="0.*")
    assert lines(guard) == [
        "Guard of Sequential: SOS(), strength 500, pulling after steps if they are SGD's",
        "  holds nothing yet; protects 2 parameters (25 weights), from the first consolidation on",
        "  attached to no optimizer; 0 steps of task 1 seen",
    ]


def test_what_is_held_by_what_since_when_how_strongly_and_how_far_it_has_moved():
    model = nn.Linear(2, 2, bias=False).double()
    guard = anchorhold.Guard(model, anchorhold.L2(), strength=3.0, watch=["SI"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    guard.attach(optimizer)
    guard.consolidate()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    guard.consolidate()
    assert "no weight has moved since" in str(guard)
    model.weight.grad = torch.zeros_like(model.weight)
    optimizer.step()
    with torch.no_grad():
        model.weight.add_(torch.tensor([[0.0, 0.5], [0.0, 0.0]]))
    assert lines(guard) == [
        "Guard of Linear: L2(), strength 3, pulling after steps",
        "  holds 1 parameter (4 weights) to what they were after task 2",
        "  importance 1 on average, 1 at most",
        "  moved since by 0.5, 10 % of their length; the penalty is 0.75",
        "  watched by SI",
        "  attached to SGD; 1 step of task 3 seen",
    ]
    assert guard.penalty().item() == pytest.approx(0.75)


def test_the_measure_by_its_name_and_what_is_unusual_about_it():
    guard = anchorhold.Guard(net(), anchorhold.Fisher(samples=5, labels="sampled"))
    assert lines(guard)[0] == (
        "Guard of Sequential: EWC-sampled, Fisher(samples=5, labels='sampled'), exchange rate 1, of which the "
        "first consolidation makes a strength, pulling after steps if they are SGD's"
    )


def test_weights_that_are_lost_and_strengths_of_nothing():
    model = net()
    guard = anchorhold.Guard(model, anchorhold.L2(), strength=0.0)
    guard.consolidate()
    assert "at strength 0 does not hold 4 parameters" in str(guard)
    with torch.no_grad():
        model[0].weight.fill_(torch.inf)
    assert "some weights are not finite any more: training has diverged" in str(guard)


def test_what_is_not_held_is_named():
    model = net()
    model[0].requires_grad_(False)
    guard = anchorhold.Guard(model, anchorhold.Fisher())
    guard.consolidate([batch(0)])
    model[0].requires_grad_(True)
    guard.refresh()
    assert "not held: 2 protected parameters that came or thawed later, or forgotten" in str(guard)
    model[2] = nn.Identity()
    assert "no longer in the model: 2.weight and 1 more" in str(anchorhold_refreshed(guard))


def anchorhold_refreshed(guard):
    guard.refresh()
    return guard


@pytest.mark.parametrize("name", sorted(anchorhold.measures.default_measures()))
def test_all_of_it_is_short_for_every_measure(name):
    model = nn.Sequential(nn.Linear(64, 500), nn.ReLU(), nn.Linear(500, 10))
    guard = anchorhold.Guard(model, name, watch=[] if name == "SI" else ["SI"], strength=1e-3)
    optimizer = torch.optim.Adam(model.parameters())
    guard.attach(optimizer)
    data = torch.randn(8, 64), torch.randint(0, 10, (8,))
    loss = nn.functional.cross_entropy(model(data[0]), data[1])
    loss.backward()
    if guard.measures[name].needs.independent:
        guard.gradients.independent(nn.functional.cross_entropy(model(data[0] + 1), data[1]), samples=8)
    guard.gradients.samples([data])
    optimizer.step()
    found = guard.consolidate([data])
    for thing in (guard, found, found[name], guard.gradients.path):
        assert len(lines(thing)) <= 10
        assert len(str(thing)) < 900
    assert "2 parameters" not in str(found[name])
    assert "4 parameters (37,510 weights)" in str(found[name])


def test_what_was_found_says_from_how_many_samples_and_which_way():
    model = nn.Sequential(nn.Linear(4, 5), nn.PReLU(), nn.Linear(5, 3)).double()
    guard = anchorhold.Guard(model, anchorhold.Fisher())
    found = guard.consolidate([batch(0)])["EWC"]
    assert "from 8 samples; outputs read as categorical (integer labels" in str(found)
    assert "; 1 by" in str(found)
    unlabelled = anchorhold.Guard(model, anchorhold.Fisher()).consolidate([batch(0)[0]])["EWC"]
    assert "outputs read as categorical (default, as no targets say otherwise)" in str(unlabelled)


def test_the_form_and_other_holds_are_named():
    class Pull(anchorhold.holds.Hold):
        name = "pull"

    guard = anchorhold.Guard(net(), "EWC", holds=[Pull(2.0)])
    assert "beside it holds pull: strength 2" in str(guard)


def test_a_copy_says_what_it_is(recwarn):
    model = net()
    guard = anchorhold.Guard(model, anchorhold.Fisher())
    guard.attach(optimizer := torch.optim.Adam(model.parameters()))
    train(model, optimizer)
    guard.consolidate([batch(0)])
    copied = copy.deepcopy(guard)
    assert "attached to no optimizer" in str(copied)
    assert lines(guard)[0] == lines(copied)[0] + " with Adam"
    assert lines(copied)[1:3] == lines(guard)[1:3]


def test_a_layer_of_another_shape_does_not_stop_it():
    model = net()
    guard = anchorhold.Guard(model, anchorhold.Fisher())
    guard.consolidate([batch(0)])
    model[2] = nn.Linear(5, 7).double()
    with pytest.raises(anchorhold.errors.ProtectError):
        guard.attach(torch.optim.Adam(model.parameters()))
    assert "holds 2 parameters" in str(guard)
    assert "consolidated with another shape, which attach() refuses: 2.weight and 1 more" in str(guard)


def test_what_was_forgotten_what_is_lazy_and_what_is_huge():
    model = net()
    guard = anchorhold.Guard(model, anchorhold.Fisher())
    guard.consolidate([batch(0)])
    guard.forget("0.weight")
    assert "not held: 1 protected parameter" in str(guard)
    guard.forget("0.bias", "2.weight", "2.bias")
    assert "holds nothing: what was consolidated was forgotten" in str(guard)
    assert "holds nothing yet; protects 2 parameters" in str(
        anchorhold.Guard(nn.Sequential(nn.Linear(3, 2), nn.LazyLinear(2)), "SOS")
    )
    model = nn.Linear(2, 2)
    guard = anchorhold.Guard(model, anchorhold.L2())
    guard.consolidate()
    with torch.no_grad():
        model.weight.fill_(1e30)
    assert "moved since by 2e+30" in str(guard)
