"""Protection that is not there is told at the first step, and what is meant to be so is not."""

import copy

import pytest
import torch
from torch import nn

import anchorhold
from tests.guard.helpers import batch, consolidated, loss, net, train
from tests.helpers import grouped

NOTHING_YET = "error:This guard holds nothing yet"
"""The tests ignore it, since most of them begin from scratch."""


def attached(model, *measure, **options):
    guard = anchorhold.Guard(model, *measure, **grouped(**options))
    optimizer = torch.optim.Adam(model.parameters())
    guard.attach(optimizer)
    return guard, optimizer


@pytest.mark.filterwarnings(NOTHING_YET)
@pytest.mark.parametrize("name", ["SOS", "SI", "EWC", "MAS"])
def test_a_guard_that_has_consolidated_nothing_says_so_at_its_first_step(name):
    model = net()
    guard, optimizer = attached(model, name, strength=500.0)
    loss(model, batch(0)).backward()
    told = r"holds nothing yet.*strength=500.*from_scratch=True.*Fisher\(\)"
    with pytest.warns(anchorhold.AnchorholdWarning, match=told) as told:
        optimizer.step()
    train(model, optimizer)
    assert len(told) == 1
    guard.consolidate([batch(0)])
    train(model, optimizer)


@pytest.mark.filterwarnings(NOTHING_YET)
def test_nor_a_baseline_that_is_to_hold_nothing():
    model = net()
    _, optimizer = attached(model, anchorhold.FineTune())
    train(model, optimizer)


@pytest.mark.filterwarnings(NOTHING_YET)
def test_one_line_switches_it_off():
    model = net()
    _, optimizer = attached(model, "SOS", from_scratch=True)
    train(model, optimizer)


@pytest.mark.filterwarnings(NOTHING_YET)
def test_nor_is_it_told_where_nothing_is_asked_for():
    observing = net()
    _, optimizer = attached(observing, "SOS", strength=0.0)
    train(observing, optimizer)
    by_hand = net()
    guard = anchorhold.Guard(by_hand, "SOS")
    guard.attach(optimizer := torch.optim.Adam(by_hand.parameters()), hold=False)
    train(by_hand, optimizer)
    pretrained = net()
    consolidated(pretrained).attach(optimizer := torch.optim.Adam(pretrained.parameters()))
    train(pretrained, optimizer)


def two_layers(frozen):
    model = net()
    model[0].requires_grad_(not frozen)
    return model


def test_a_backbone_that_thaws_has_no_anchor_and_that_is_told():
    model = two_layers(frozen=True)
    guard, optimizer = attached(model, anchorhold.Fisher())
    train(model, optimizer)
    guard.consolidate([batch(0)])
    train(model, optimizer)
    model[0].requires_grad_(True)  # in the middle of a task
    with pytest.warns(
        anchorhold.AnchorholdWarning, match=r"Frozen until .*'0.weight' and 1 other .* is not known"
    ) as told:
        train(model, optimizer)
    assert len(told) == 1


def test_it_is_told_after_a_state_was_loaded_too(tmp_path):
    model = two_layers(frozen=True)
    guard = anchorhold.Guard(model, anchorhold.Fisher())
    guard.consolidate([batch(0)])
    guard.save(tmp_path / "guard")
    thawed = two_layers(frozen=False)
    again = anchorhold.Guard(thawed, anchorhold.Fisher())
    again.load(tmp_path / "guard")
    again.attach(optimizer := torch.optim.Adam(thawed.parameters()))
    with pytest.warns(anchorhold.AnchorholdWarning, match="Frozen until"):
        train(thawed, optimizer)


def test_a_state_whose_model_was_not_loaded_is_told_of_at_the_first_step(tmp_path):
    model = net()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=0.5)
    guard.consolidate([batch(9)])
    guard.save(tmp_path / "guard")
    other = copy.deepcopy(model)
    other[0].reset_parameters()
    again = anchorhold.Guard(other, anchorhold.Fisher())
    again.load(tmp_path / "guard")
    again.attach(optimizer := torch.optim.Adam(other.parameters()))
    with pytest.warns(
        anchorhold.AnchorholdWarning, match=r"weights are \d+ % away .*guard' was saved with.*checkpoint"
    ):
        train(other, optimizer)
    train(other, optimizer)  # once
    again.load(tmp_path / "guard")
    other.load_state_dict(model.state_dict())  # in whichever order
    train(other, optimizer)


def test_a_state_of_the_middle_of_a_task_is_not_compared(tmp_path):
    model = net()
    guard, optimizer = attached(model, anchorhold.SOS(), strength=1.0, from_scratch=True)
    train(model, optimizer)
    guard.consolidate()
    train(model, optimizer)
    guard.save(tmp_path / "guard")
    guard.load(tmp_path / "guard")
    train(model, optimizer)
    guard.consolidate()
    train(model, optimizer)


def test_a_measure_along_the_path_knows_nothing_of_what_was_frozen():
    model = two_layers(frozen=True)
    guard, optimizer = attached(model, anchorhold.SOS(), protect="*", from_scratch=True)
    train(model, optimizer)
    guard.consolidate()
    model[0].requires_grad_(True)
    with pytest.warns(anchorhold.AnchorholdWarning, match="Frozen until"):
        train(model, optimizer)


def test_one_that_was_named_is_held_from_the_start():
    model = two_layers(frozen=True)
    guard = anchorhold.Guard(model, anchorhold.Fisher(), protect="*")
    guard.consolidate([batch(0)])
    model[0].requires_grad_(True)
    guard.attach(optimizer := torch.optim.Adam(model.parameters()))
    train(model, optimizer)
    assert "0.weight" in guard.anchor


def test_a_new_head_is_no_oversight():
    class Growing(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = net()
            self.heads = nn.ModuleList([nn.Linear(3, 3).double()])

        def forward(self, x):
            return self.heads[-1](self.body(x))

    model = Growing()
    guard, optimizer = attached(model, anchorhold.Fisher())
    train(model, optimizer)
    guard.consolidate([batch(0)])
    model.heads.append(nn.Linear(3, 3).double())
    optimizer.add_param_group({"params": model.heads[-1].parameters()})
    train(model, optimizer)


def test_a_module_that_was_renamed_after_consolidation_is_told():
    class Renamed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 5).double(), nn.Linear(5, 3).double()

        def forward(self, x):
            return self.last((self.first if hasattr(self, "first") else self.encoder)(x))

    model = Renamed()
    guard, optimizer = attached(model, anchorhold.Fisher())
    train(model, optimizer)
    guard.consolidate([batch(0)])
    model.encoder = model.first
    del model.first
    with pytest.warns(anchorhold.AnchorholdWarning, match=r"no longer has 'first.weight' and 1 other .* not held"):
        train(model, optimizer)


def test_importances_that_are_all_zero_are_told():
    model = net()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), protect="0.*")
    with torch.no_grad():
        model[2].weight.zero_()  # so that no output depends on what is before it
    guard.consolidate([batch(0)])
    guard.attach(optimizer := torch.optim.Adam(model.parameters()))
    with pytest.warns(anchorhold.AnchorholdWarning, match="every weight has importance 0"):
        train(model, optimizer)


def test_those_of_the_baseline_that_holds_nothing_are_meant():
    model = net()
    guard = anchorhold.Guard(model, anchorhold.FineTune())
    guard.consolidate()
    guard.attach(optimizer := torch.optim.Adam(model.parameters()))
    train(model, optimizer)


@pytest.mark.filterwarnings(NOTHING_YET)
def test_a_strength_that_is_set_later_is_looked_at_then():
    model = net()
    guard, optimizer = attached(model, "SOS", strength=0.0)
    train(model, optimizer)
    with pytest.warns(anchorhold.AnchorholdWarning, match="holds nothing yet"):
        guard.strength = 10.0
    guard.strength = 20.0  # told once


@pytest.mark.filterwarnings(NOTHING_YET)
def test_a_tolerance_that_has_nothing_to_follow_yet_is_named():
    model = net()
    guard, optimizer = attached(model, anchorhold.Fisher(), tolerance=0.05)
    guard.keep([batch(0, 16)[0]])
    loss(model, batch(0)).backward()
    with pytest.warns(anchorhold.AnchorholdWarning, match=r"so tolerance=0\.05 has nothing to pull at"):
        optimizer.step()


UNSAID = "No strength was given to this guard, and .* holds with 1"
"""The tests ignore it, since most of them ask what is held and not how strongly."""
unsaid_is_an_error = pytest.mark.filterwarnings(f"error:{UNSAID}")


def held(measure, **options):
    model = net()
    guard, optimizer = attached(model, measure, from_scratch=True, **options)
    guard.consolidate([batch(9)])
    return model, guard, optimizer


@unsaid_is_an_error
@pytest.mark.parametrize("name", ["EWC", "MAS", "L2"])
def test_that_nobody_has_said_how_strongly_is_told_once_at_the_first_step_that_is_held(name):
    model = net()
    guard, optimizer = attached(model, name, from_scratch=True)
    train(model, optimizer)  # in which nothing is held
    guard.consolidate([batch(0)])
    what_to_give = rf"given to this guard, and {name} holds with 1\..*relative_strength=.*tolerance=.*how-strong\.md"
    with pytest.warns(anchorhold.AnchorholdWarning, match=what_to_give) as told:
        train(model, optimizer)
    assert len(told) == 1
    guard.consolidate([batch(0)])
    train(model, optimizer)
    assert guard.strength == 1.0


def test_it_is_told_beside_other_holds_too():
    model, _, optimizer = held("EWC", holds=[anchorhold.Replay([batch(1)])])
    with pytest.warns(anchorhold.AnchorholdWarning, match=UNSAID):
        train(model, optimizer)


@unsaid_is_an_error
def test_and_of_a_penalty_that_goes_into_the_loss():
    model = net()
    guard = anchorhold.Guard(model, "EWC")
    guard.penalty()  # of nothing
    guard.consolidate([batch(9)])
    with pytest.warns(anchorhold.AnchorholdWarning, match=UNSAID):
        guard.penalty()
    guard.penalty()


@unsaid_is_an_error
@pytest.mark.parametrize(
    "given",
    [{"strength": 1.0}, {"strength": {"*": 1.0}}, {"relative_strength": 0.03}, {"tolerance": 0.1}, {"strength": 0.0}],
    ids=str,
)
def test_whoever_has_said_it_is_told_nothing(given):
    model, guard, optimizer = held("EWC", **given)
    guard.keep([batch(3, 16)[0]])
    train(model, optimizer)
    guard.penalty()


@unsaid_is_an_error
def test_nor_of_a_strength_that_was_set_before_the_first_step():
    model, guard, optimizer = held("EWC")
    guard.strength = 1.0
    train(model, optimizer)


@unsaid_is_an_error
def test_nor_where_there_is_nothing_to_hold_strongly():
    model, guard, optimizer = held(anchorhold.FineTune())
    train(model, optimizer)
    guard.penalty()


@unsaid_is_an_error
def test_a_state_brings_its_strength_and_a_1_in_it_may_be_nobodys():
    _, stronger, _ = held("EWC", strength=2.0)
    model, guard, optimizer = held("EWC")
    guard.load_state_dict(stronger.state_dict())
    train(model, optimizer)
    _, unsaid, _ = held("EWC")
    model, guard, optimizer = held("EWC", strength=1.0)
    guard.load_state_dict(unsaid.state_dict())
    train(model, optimizer)
    model, guard, optimizer = held("EWC")
    guard.load_state_dict(unsaid.state_dict())
    with pytest.warns(anchorhold.AnchorholdWarning, match=UNSAID):
        train(model, optimizer)
