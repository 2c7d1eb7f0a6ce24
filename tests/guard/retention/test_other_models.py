"""Kept sets from a file that were kept with another model: told where that can be known, and nowhere else."""

import warnings

import pytest
import torch
from torch import nn

import anchorhold
from anchorhold.retention.diagnosis import is_of_another
from tests.guard.helpers import batch, loss, net
from tests.helpers import grouped

KEPT = [batch(20, 40)]


def nudged(by):
    """The same network elsewhere: another model of the same shape."""
    model = net()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(by * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def kept_with(model, path):
    """A file of inputs that were kept with a model."""
    guard = anchorhold.Guard(model, "L2")
    guard.keep(KEPT, "old")
    guard.kept.save(path)
    return path


def guarded(model, path, **options):
    guard = anchorhold.Guard(model, "EWC", **grouped(**options or {"tolerance": 0.1}))
    guard.kept.load(path)
    guard.consolidate([batch(9, dtype=next(model.parameters()).dtype)])
    return guard


def step(model, guard):
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    guard.attach(optimizer)
    loss(model, batch(1, dtype=next(model.parameters()).dtype)).backward()
    optimizer.step()


def messages(told):
    return [str(each.message) for each in told if issubclass(each.category, anchorhold.AnchorholdWarning)]


@pytest.mark.daily
@pytest.mark.parametrize("options", [{"tolerance": 1.0}, {"tolerance": 0.1}, {"tolerance": 0.02}, {"strength": 5.0}])
@pytest.mark.parametrize("at", ["step", "retention"])
def test_a_set_of_another_model_is_told_before_anything_can_be_lost_at_any_tolerance(tmp_path, options, at):
    path = kept_with(nudged(0.2), tmp_path / "kept")
    model = net()
    guard = guarded(model, path, **options)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = guard.retention().kl if at == "retention" else None
        step(model, guard)
        guard.retention()
    assert found is None or 0.011 < found < 0.1
    (said,) = messages(told)  # once, and the tolerance that it uses up is not told again by another cause
    assert "'old' came from a file" in said and "the set was kept with another model" in said
    assert "guard.kept.drop('old'), guard.keep(inputs, 'old')" in said
    assert ("of the tolerance of" in said) == ("tolerance" in options)
    assert told[0].filename == __file__


def test_the_set_of_the_model_itself_is_not_told_of_whatever_mode_and_precision(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.ReLU(), nn.Linear(64, 3)).double()
    path = kept_with(model, tmp_path / "kept")
    model.train()
    step(model, guarded(model, path))
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.ReLU(), nn.Linear(64, 3)).double().to(dtype)
        given = [(KEPT[0][0].to(dtype), KEPT[0][1])]
        guard = anchorhold.Guard(model, "L2")
        guard.keep(given, "old")
        guard.kept.save(path)
        again = anchorhold.Guard(model, "EWC", tolerance=0.01)
        again.kept.load(path)
        again.consolidate([batch(9, dtype=dtype)])
        assert again.retention().kl < 1e-6
        step(model, again)


def test_weights_of_fewer_bits_are_still_the_same_model(tmp_path):
    exact = net(dtype=torch.float32)
    path = tmp_path / "kept"
    guard = anchorhold.Guard(exact, "L2")
    guard.keep([KEPT[0][0].float()], "old", forward=lambda model, x: model(x.to(model[0].weight.dtype)))
    guard.kept.save(path)
    again = anchorhold.Guard(exact.to(torch.bfloat16), "EWC", tolerance=0.01)
    again.kept.load(path)
    again.kept["old"].forward = lambda model, x: model(x.to(model[0].weight.dtype))
    again.consolidate([batch(9, dtype=torch.bfloat16)])
    assert 0 < again.retention().kl < 1e-3


def test_what_was_lost_in_training_is_no_other_model(tmp_path):
    """Resumed in the middle of a task, or at the end of one, with the guard's state."""
    model = net()
    guard = anchorhold.Guard(model, "EWC", tolerance=1.0)
    guard.consolidate([batch(9)])
    guard.keep(KEPT, "old")
    guard.kept.save(tmp_path / "kept")
    step(model, guard)
    with torch.no_grad():
        model[0].weight.add_(1.0)
    for end in (False, True):
        if end:
            guard.consolidate([batch(9)])
        guard.save(tmp_path / "guard")
        again = anchorhold.Guard(model, "EWC", tolerance=1.0)
        again.kept.load(tmp_path / "kept")
        again.load(tmp_path / "guard")
        assert again.retention().kl > 0.02
        step(model, again)


def test_what_was_lost_since_the_first_consolidation_is_no_other_model(tmp_path):
    model = net()
    path = kept_with(model, tmp_path / "kept")
    guard = guarded(model, path, tolerance=1.0)
    with torch.no_grad():
        model[0].weight.add_(1.0)  # by steps that nobody has seen
    assert guard.retention().kl > 0.02
    guard.consolidate([batch(10)])
    assert guard.retention().kl > 0.02  # which an earlier task may have lost
    judge = anchorhold.Guard(model, "fine-tune")
    judge.kept.load(path)
    assert judge.retention().kl > 0.02  # and to ask that is what the file is for


def test_a_later_task_names_another_model_beside_other_causes(tmp_path):
    path = kept_with(nudged(0.2), tmp_path / "kept")
    model = net()
    guard = anchorhold.Guard(model, "EWC", tolerance=0.05)
    guard.consolidate([batch(9)])
    guard.consolidate([batch(10)])
    guard.kept.load(path)
    with pytest.warns(anchorhold.AnchorholdWarning, match="Earlier tasks .*, or the set, which came from a file"):
        step(model, guard)


def test_a_tolerance_that_the_anchor_cannot_meet_names_another_model(tmp_path):
    path = kept_with(nudged(0.5), tmp_path / "kept")
    guard = guarded(net(), path, tolerance=0.05)
    with pytest.warns(
        anchorhold.AnchorholdWarning, match=r"cannot be met.*which came from a file, was kept with another"
    ):
        guard.pull_back()


@pytest.mark.parametrize(
    ("kl", "tolerance", "expected"),
    [(0.041, 0.1, True), (0.011, None, True), (0.009, None, False), (0.0021, 0.02, True), (9e-4, 1e-4, False)],
)
def test_rounding_is_told_from_another_model_by_how_much_it_comes_to(kl, tolerance, expected):
    assert is_of_another(kl, tolerance) == expected
