"""Files that version 0.1.0 wrote: every measure's guard, in the middle of its second task."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file

import anchorhold

# As those were made: the posterior's importances are beyond what SGD bears for long.
pytestmark = pytest.mark.filterwarnings("ignore:strength=3 is too much for SGD")

FILES = sorted((Path(__file__).parent / "saved_by_0.1.0").glob("*.safetensors"))


def trained_guard(name):
    """Return a guard that was trained as those of the files were."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = anchorhold.Guard(
        model,
        name,
        strength=3.0,
        decay=0.9,
        watch=[] if name == "SI" else ["SI"],
        options=anchorhold.GuardOptions(implicit=False),
    )
    guard.attach(optimizer)
    generator = torch.Generator().manual_seed(1)
    data = [(torch.randn(8, 3, generator=generator), torch.randint(2, (8,), generator=generator)) for _ in range(4)]

    def train():
        for x, y in data:
            optimizer.zero_grad()
            guard.gradients.independent(F.cross_entropy(model(x.flip(0) + 1), y), samples=8)
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    train()
    guard.consolidate(data)
    train()
    return guard


LATER = {"ALASSO", "RWalk", "RWalk-batch", "online-EWC"}
"""The measures that came after it."""


def test_there_is_one_of_every_measure():
    assert {path.stem for path in FILES} == set(anchorhold.measures.default_measures()) - LATER


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_they_load_as_they_were_and_are_written_with_a_checksum_and_nothing_else_more(path, tmp_path):
    guard = trained_guard(path.stem)
    guard.load(path)
    kept = load_file(path)
    state = guard.state_dict()
    assert (guard.strength, guard.tasks, state["decay"]) == (3.0, 1, 0.9)
    assert set(state["steps"].values()) == {4}
    assert state["tensors"].keys() == kept.keys()
    for name, tensor in kept.items():
        assert torch.equal(state["tensors"][name], tensor)
    guard.save(tmp_path / "again")
    written = load_file(tmp_path / "again")
    assert written.keys() == kept.keys()
    assert all(tensor.dtype == kept[name].dtype and torch.equal(tensor, kept[name]) for name, tensor in written.items())
    now = values(tmp_path / "again")
    assert (now.pop("version"), now.pop("tensor_count"), len(now.pop("sha256"))) == (2, len(kept), 64)
    assert now.pop("weights").keys() == dict(guard.model.named_parameters()).keys()  # some of their elements
    assert {"version": 1, **now} == values(path)
    resumed = trained_guard(path.stem)
    resumed.load(tmp_path / "again")
    resumed.save(tmp_path / "and again")
    assert (tmp_path / "and again").read_bytes() == (tmp_path / "again").read_bytes()


def values(path):
    """Return what a file says beside its tensors."""
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["holdfast"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_same_training_still_gives_the_same_state(path):
    state = trained_guard(path.stem).state_dict()
    for name, tensor in load_file(path).items():
        torch.testing.assert_close(state["tensors"][name], tensor, rtol=1e-4, atol=1e-6)
