"""A classifier is protected by old batches."""

import pytest
import torch
from torch import nn

from anchorhold import protect
from anchorhold.errors import BatchError
from anchorhold.protection import plan


def network(*, norm=False):
    torch.manual_seed(0)
    layers = [nn.Linear(6, 16), *([nn.BatchNorm1d(16)] if norm else []), nn.ReLU(), nn.Linear(16, 3)]
    return nn.Sequential(*layers)


def data(seed, rows=64):
    """Three classes, told apart by other directions in each task."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(6, 3, generator=generator)
    x = torch.randn(rows, 6, generator=generator)
    return x, (x @ directions).argmax(1)


def fit(model, x, y, steps=150, optimizer=None):
    optimizer = optimizer or torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def taught(**options):
    model = network(**options)
    fit(model, *data(0), 40)
    return model.eval()


def batches(x, *labels, size=16):
    return list(zip(x.split(size), *(each.split(size) for each in labels), strict=True))


@pytest.mark.parametrize("labelled", [True, False])
def test_it_is_protected_and_averaged(labelled):
    model, plain = taught(), taught()
    x, y = data(0)
    guard = protect(model, batches(x, y) if labelled else list(x.split(16)), progress=False)
    assert guard.report.scored == 1 and guard.report.per == "sample" and guard.strength == 0.5
    assert guard.samples.aside[0][0].shape == (2, 6)  # every eighth of 16
    assert torch.equal(guard.samples.aside[0][0], x[[7, 15]])
    assert guard.measures.keys() == {"EWC"}  # of few classes, exact
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    guard.attach(optimizer)
    fit(model, *data(1), 150, optimizer)
    report = guard.finish(batches(*data(1)))
    assert report.share < 1 and report.lost.kl < report.lost_before.kl and "nats a sample" in str(report)
    fit(plain, *data(1), 150)
    right = [(each(x).argmax(1) == y).float().mean() for each in (model, plain)]
    assert right[0] > right[1] + 0.1


def test_batch_norms_are_frozen():
    model = taught(norm=True)
    guard = protect(model, batches(*data(0)), progress=False)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    guard.attach(optimizer)
    before = model[1].running_mean.clone()
    fit(model.train(), *data(1), 3, optimizer)
    assert torch.equal(model[1].running_mean, before)


def test_positions_of_dense_outputs_are_counted():
    """A map of 4 × 4 classes: T is 16, less what no label counts."""
    model = nn.Sequential(nn.Conv2d(2, 5, 1), nn.Unflatten(1, (5,)))

    def last(model, inputs):
        return model(inputs).movedim(1, -1)

    x = torch.randn(16, 2, 4, 4)
    labels = torch.randint(0, 5, (16, 4, 4))
    labels[:, 0] = -100
    guard = protect(model, [(x, labels)], forward=last, progress=False)
    assert guard.report.scored == 12 and guard.report.per == "token"
    assert protect(model, [x], forward=last, progress=False).report.scored == 16


def test_too_few_samples_are_refused():
    with pytest.raises(BatchError, match="The old data has no batch"):
        protect(network(), [])
    with pytest.raises(BatchError, match="has 3 samples; expected 8 at least"):
        protect(network(), [torch.randn(3, 6)])


def test_the_first_samples_are_read_and_measured():
    x, y = data(0, rows=64)
    guard = protect(taught(), batches(x, y), samples=40, measured=20, progress=False)
    assert sum(len(batch[0]) for batch in guard.samples.measured) == 20
    assert sum(len(batch[0]) for batch in guard.samples.distilled) == 35
    assert sum(len(batch[0]) for batch in guard.samples.aside) == 5
    assert all(len(batch[0]) <= 4 for batch in guard.samples.distilled)
    assert guard.plan.source == "40 samples of old data"


def test_many_classes_are_drawn():
    model = nn.Linear(6, 50)
    assert protect(model, [torch.randn(32, 6)], progress=False).measures.keys() == {"EWC-sampled"}


def test_a_plan_without_doing_it():
    model = taught()
    before = [p.detach().clone() for p in model.parameters()]
    told = plan(model, batches(*data(0)))
    assert told.form.name == "rotated" and told.pieces == 0 and told.kept > 0
    assert "write nothing: 64 samples of old data" in repr(told)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
