"""The table of what a state holds: each of its rows is written by some guard, and nothing else is."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn

import anchorhold
from anchorhold.guard.state.schema import TENSOR_KINDS, VALUES
from tests.guard.helpers import batch, net, train

FILES = sorted(
    path
    for path in (Path(__file__).parents[2] / "data" / "written_by_0_1_0" / "states").glob("*.safetensors")
    if path.name.count(".") == 1 and path.stem != "numbers"
)
ORDER = list(dict.fromkeys(value.key for value in VALUES))


def content(path):
    """Return a file's values and the keys of its tensors."""
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["holdfast"]), list(file.keys())


def averaged():
    guard = anchorhold.Guard(net(), anchorhold.MAS(average=True), strength=1.0)
    guard.consolidate([batch(0)])
    return guard


def embedding():
    model = nn.Sequential(nn.Embedding(4, 3), nn.Flatten(), nn.Linear(6, 2)).double()
    guard = anchorhold.Guard(model, "EWC", form="kronecker")  # at an exchange rate
    guard.consolidate([(torch.randint(4, (8, 2)), torch.randint(2, (8,)))])
    return guard


def changed_strength():
    guard = anchorhold.Guard(net(), "L2", strength=1.0)
    guard.consolidate()
    guard.strength = 2.0
    return guard


def in_mid_task():
    model = net()
    guard = anchorhold.Guard(model, "SOS", from_scratch=True)
    guard.attach(optimizer := torch.optim.SGD(model.parameters(), lr=0.1))
    train(model, optimizer)
    return guard


def between_pulls():
    model = net()
    guard = anchorhold.Guard(model, "EWC", strength=1.0, options=anchorhold.GuardOptions(pull_every=2))
    guard.consolidate([batch(0)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    train(model, optimizer, 1)
    return guard


def test_every_row_is_written_and_no_key_is_missing_from_the_table(tmp_path):
    keys, tensors = {"tensors"}, set()  # a file's tensors stand by themselves
    files = list(FILES)
    for make in (averaged, embedding, changed_strength, in_mid_task, between_pulls):
        files.append(tmp_path / make.__name__)
        make().save(files[-1])
    for path in files:
        values, names = content(path)
        keys |= values.keys() - {"sha256"}
        tensors |= {name.partition("/")[0].partition(".")[0] for name in names}
    assert keys == set(ORDER)
    assert tensors == {kind.key.strip("`").partition("/")[0] for kind in TENSOR_KINDS}


@pytest.mark.parametrize("make", [averaged, embedding, changed_strength, in_mid_task, between_pulls])
def test_values_that_are_written_pass_their_checks(make):
    state = make().state_dict()
    for value in VALUES:
        if value.key in state:
            value.type.check(value.key, state[value.key])


def test_a_warning_that_is_an_error_changes_nothing():
    """Kept inputs are not here: the warning comes before anything is taken."""
    guard = anchorhold.Guard(net(), "EWC", tolerance=0.1)
    guard.keep([batch(3)[0], batch(4)[0]], "old")
    guard.consolidate([batch(0)])
    other = anchorhold.Guard(net(), "EWC", tolerance=0.1)
    with pytest.raises(anchorhold.AnchorholdWarning, match="kept set 'old', and it is not here"):
        other.load_state_dict(guard.state_dict())
    assert other.tasks == 0 and not other.anchor and not other.importance


def test_a_checksum_of_weights_that_is_no_number_is_refused():
    guard = anchorhold.Guard(net(), "EWC-empirical", strength=1.0)
    guard.gradients.microbatches([batch(0), batch(1)])
    state = guard.state_dict()
    state["watched"] = {**state["watched"], "weights": "text"}
    with pytest.raises(anchorhold.errors.StateError, match=r"what gradients.microbatches\(\) has seen is not whole"):
        guard.load_state_dict(state)
