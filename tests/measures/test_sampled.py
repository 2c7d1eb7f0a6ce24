"""Settings of the measures from data that came later: what they do, and that what was written before still holds."""

import dataclasses

import pytest
import torch
from torch import nn

import anchorhold
from anchorhold.errors import BatchError, ConfigurationError, StateError
from anchorhold.settings import written

KINDS = [anchorhold.Fisher, anchorhold.RootFisher, anchorhold.AbsoluteFisher, anchorhold.MAS]
LATER = {"likelihood": "bernoulli", "class_dim": 1, "per": "token"}


@pytest.mark.parametrize("kind", KINDS)
def test_later_settings_are_written_only_where_they_are_not_their_defaults(kind):
    assert not set(LATER) & set(written(kind()))
    changed = kind(**LATER)
    assert {name: written(changed)[name] for name in LATER} == LATER
    assert changed.name == kind().name
    assert kind(class_dim=torch.tensor(1).numpy()[()]) == kind(class_dim=1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrong", [{"likelihood": "normal"}, {"class_dim": 0}, {"class_dim": "1"}, {"per": "word"}])
def test_later_settings_are_checked(kind, wrong):
    with pytest.raises(ConfigurationError, match="expected"):
        kind(**wrong)


def test_mas_of_a_regressions_probabilities_is_refused_when_it_is_made():
    with pytest.raises(ConfigurationError, match=r"MAS\(output='logits'\)"):
        anchorhold.MAS(likelihood="gaussian")
    assert anchorhold.MAS(likelihood="gaussian", output="logits").name == "MAS-logits"


def test_a_state_of_another_likelihood_is_refused(tmp_path):
    model, x = nn.Linear(3, 2), torch.randn(5, 3)
    guard = anchorhold.Guard(model, anchorhold.Fisher(likelihood="gaussian"))
    guard.consolidate([x])
    guard.save(tmp_path / "state")
    anchorhold.Guard(model, anchorhold.Fisher(likelihood="gaussian")).load(tmp_path / "state")
    with pytest.raises(StateError, match="likelihood"):
        anchorhold.Guard(model, anchorhold.Fisher()).load(tmp_path / "state")


def test_a_regression_in_a_guard():
    """The Fisher of a linear layer is the mean square of its inputs, for every output."""
    model, x = nn.Linear(3, 2).double(), torch.randn(50, 3).double()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), watch=["sqrtFisher"])
    found = guard.consolidate([(x, 3 * torch.randn(50, 2))])
    torch.testing.assert_close(guard.importance["weight"], x.square().mean(0).expand(2, 3))
    torch.testing.assert_close(found["sqrtFisher"].importance["weight"], x.square().mean(0).sqrt().expand(2, 3))


def test_each_task_tells_anew():
    model, x = nn.Linear(3, 2).double(), torch.randn(6, 3).double()
    guard = anchorhold.Guard(model, anchorhold.Fisher())
    guard.consolidate([(x, torch.tensor([0, 1, 0, 1, 1, 0]))])
    guard.consolidate([(x + 1, 3 * torch.randn(6, 2))])
    assert guard.tasks == 2


def test_a_refusal_leaves_what_was_there():
    model, x = nn.Linear(3, 2).double(), torch.randn(6, 3).double()
    guard = anchorhold.Guard(model, anchorhold.Fisher())
    guard.consolidate([x])
    before = guard.importance["weight"].clone()
    with pytest.raises(BatchError, match=r"within 0..1"):
        guard.consolidate([(x, torch.rand(6, 2))])
    with pytest.raises(BatchError, match=r"within 0..1"):
        guard.rehearse([(x, torch.rand(6, 2))])
    assert guard.tasks == 1 and torch.equal(guard.importance["weight"], before)


def test_a_rehearsal_looks_at_the_whole_first_batch():
    """The first two samples are one-hot by chance; the batch is not."""
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    guard = anchorhold.Guard(model, anchorhold.Fisher())
    guard.rehearse([(x, torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]]))])


def test_per_token_of_a_guard_counts_tokens():
    model, x = nn.Linear(3, 2), torch.randn(4, 5, 3)
    guard = anchorhold.Guard(model, anchorhold.Fisher(per="token"), watch=[dataclasses.replace(anchorhold.MAS())])
    found = guard.consolidate([x])
    assert found["EWC"].samples == 20 and found["MAS"].samples == 4


@pytest.mark.parametrize("kind", [anchorhold.Fisher, anchorhold.RootFisher, anchorhold.AbsoluteFisher, anchorhold.MAS])
def test_every_setting_is_explained_where_help_looks(kind):
    for field in dataclasses.fields(kind):
        assert f"\n        {field.name}: " in kind.__doc__


def test_a_class_by_its_name_says_what_it_goes_by():
    with pytest.raises(anchorhold.errors.ConfigurationError, match=r"Fisher\(\) goes by the name 'EWC'"):
        anchorhold.measures.measure("Fisher")
