"""One head that is taught classes which the guard has not seen is told, early where that can be known."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import anchorhold
from anchorhold.guard.task_classes import LOOKED_AT
from tests import helpers
from tests.helpers import grouped

ALL_NEW = r"classes of this task \(3 to 5\) are all new: none of those consolidated before \(0 to 2\)"
network = partial(helpers.network, 4, 16, 6, activation=nn.ReLU, dtype=torch.float32)


def samples(classes, count=32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    y = torch.tensor(classes)[torch.arange(count) % len(classes)]
    return torch.randn(count, 4, generator=generator) + y.unsqueeze(1), y


def train(model, optimizer, data, steps, loss=cross_entropy):
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(data[0]), data[1]).backward()
        optimizer.step()


def after_a_task(measure, classes=(0, 1, 2), steps=50, **options):
    model = network()
    guard = anchorhold.Guard(model, measure, strength=0.01, from_scratch=True, **grouped(**options))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    guard.attach(optimizer)
    data = samples(classes)
    train(model, optimizer, data, steps)
    guard.consolidate([data])
    return model, guard, optimizer


@pytest.mark.parametrize("measure", ["EWC", "SOS"])
def test_new_classes_alone_are_told_once_the_old_ones_are_gone(measure):
    model, _, optimizer = after_a_task(measure)
    data = samples((3, 4, 5))
    with pytest.warns(anchorhold.AnchorholdWarning, match=ALL_NEW) as told:
        train(model, optimizer, data, LOOKED_AT)
    assert len(told) == 1


@pytest.mark.parametrize("classes", [(0, 1, 2), (2, 3, 4), (0, 1, 2, 3, 4, 5)])
def test_classes_of_which_some_are_known_are_not(classes):
    model, guard, optimizer = after_a_task("SOS")
    data = samples(classes)
    train(model, optimizer, data, LOOKED_AT)
    guard.consolidate([data])


@pytest.mark.parametrize("old", [1, 8, 16])
@pytest.mark.parametrize("before", [20, 400])
def test_old_samples_among_the_new_are_what_was_advised(old, before):
    """At first their classes are pushed down as well, as long as new samples are taken for them."""
    model, _, optimizer = after_a_task("SOS", steps=before)
    for step in range(LOOKED_AT):
        new, kept = samples((3, 4, 5), 32, seed=step), samples((0, 1, 2), 16, seed=step % 3)
        data = tuple(torch.cat([a, b[:old]]) for a, b in zip(new, kept, strict=True))
        train(model, optimizer, data, 1)


def test_a_loss_that_compares_this_tasks_classes_alone_pushes_no_other_down():
    model, _, optimizer = after_a_task("SOS")
    train(model, optimizer, samples((3, 4, 5)), LOOKED_AT, lambda z, y: cross_entropy(z[:, 3:], y - 3))


def test_data_tell_where_no_step_was_seen():
    model = network()
    guard = anchorhold.Guard(model, anchorhold.Fisher())
    guard.consolidate([samples((0, 1, 2))])
    with pytest.warns(anchorhold.AnchorholdWarning, match=ALL_NEW):
        guard.rehearse([samples((3, 4, 5))])
    with pytest.warns(anchorhold.AnchorholdWarning, match=ALL_NEW):
        guard.consolidate([samples((3, 4, 5))])
    guard.consolidate([samples((3, 4, 5), seed=1)])  # known by now


def test_they_tell_after_a_state_was_loaded_too(tmp_path):
    guard = anchorhold.Guard(network(), anchorhold.Fisher())
    guard.consolidate([samples((0, 1, 2))])
    guard.save(tmp_path / "guard")
    again = anchorhold.Guard(network(), anchorhold.Fisher())
    again.load(tmp_path / "guard")
    with pytest.warns(anchorhold.AnchorholdWarning, match=ALL_NEW):
        again.consolidate([samples((3, 4, 5))])


def test_a_warning_that_is_an_error_changes_nothing():
    guard = anchorhold.Guard(network(), anchorhold.Fisher())
    guard.consolidate([samples((0, 1, 2))])
    before = {name: omega.clone() for name, omega in guard.importance.items()}
    with pytest.raises(anchorhold.AnchorholdWarning, match=ALL_NEW):  # the tests make errors of warnings
        guard.consolidate([samples((3, 4, 5))])
    assert guard.tasks == 1
    assert all(torch.equal(omega, guard.importance[name]) for name, omega in before.items())


def test_heads_of_their_own_are_no_such_case():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 16)
            self.heads = nn.ModuleList([nn.Linear(16, 3), nn.Linear(16, 3)])

        def forward(self, x, task):
            return self.heads[task](self.body(x).relu())

    torch.manual_seed(0)
    model = Heads()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=0.01, protect="body.*", from_scratch=True)
    optimizer = torch.optim.Adam(model.parameters())
    guard.attach(optimizer)
    for task, classes in enumerate([(0, 1, 2), (3, 4, 5)]):
        x, y = samples(classes)
        for _ in range(LOOKED_AT):
            optimizer.zero_grad()
            cross_entropy(model(x, task), y - 3 * task).backward()
            optimizer.step()
        guard.consolidate([(x, y)], forward=lambda model, x, task=task: model(x, task))  # labels as the data have them


def test_outputs_that_are_masked_are_no_such_case():
    model = network()
    guard = anchorhold.Guard(model, anchorhold.Fisher())
    masks = torch.zeros(6), torch.zeros(6)
    masks[0][3:], masks[1][:3] = -torch.inf, -torch.inf
    for mask, classes in zip(masks, [(0, 1, 2), (3, 4, 5)], strict=True):
        guard.consolidate([samples(classes)], forward=lambda model, x, mask=mask: model(x) + mask)


def test_few_labels_say_nothing():
    guard = anchorhold.Guard(network(), anchorhold.Fisher())
    guard.consolidate([samples((0, 1, 2))])
    guard.rehearse([samples((3, 4), count=2)])


def test_nothing_is_said_of_a_guard_that_holds_nothing():
    guard = anchorhold.Guard(network(), anchorhold.Fisher(), strength=0.0)
    guard.consolidate([samples((0, 1, 2))])
    guard.consolidate([samples((3, 4, 5))])
