"""A run that is saved and continued equals one that never stopped, and nothing else can be loaded."""

import copy
import dataclasses
import json
import os
import pickle
from typing import Any, ClassVar

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import anchorhold
from anchorhold.whole_files import content_digest
from tests.guard.helpers import batch, loss, net, weights
from tests.helpers import grouped

WATCH = ["SIU", "SIB", "SOS", "posterior", "EWC-sampled", "MAS", "L2", "magnitude"]


def make_guard(model, **options):
    return anchorhold.Guard(model, anchorhold.SI(clamp="total"), strength=2.0, watch=WATCH, **grouped(**options))


def steps(model, guard, optimizer, seeds):
    for seed in seeds:
        optimizer.zero_grad()
        loss(model, batch(seed)).backward()
        guard.gradients.independent(loss(model, batch(1000 + seed)))
        optimizer.step()


@pytest.mark.parametrize("through_file", [True, False])
@pytest.mark.parametrize("stop_after", [2, 5, 7])
def test_a_continued_run_is_the_same_run(tmp_path, stop_after, through_file):
    """Stopped within the first task, at its end, or within the second."""

    def run(stop):
        model = net()
        guard, optimizer = make_guard(model), torch.optim.Adam(model.parameters(), lr=0.01)
        guard.attach(optimizer)
        for step in range(10):
            steps(model, guard, optimizer, [step])
            if step == 4:
                guard.consolidate([batch(90)])
            if step + 1 == stop:
                kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
                if through_file:
                    guard.save(tmp_path / "guard.safetensors")
                else:
                    state = copy.deepcopy(guard.state_dict())
                model = net(seed=5)
                guard, optimizer = make_guard(model), torch.optim.Adam(model.parameters(), lr=0.5)
                model.load_state_dict(kept[0])
                optimizer.load_state_dict(kept[1])
                if through_file:
                    guard.load(tmp_path / "guard.safetensors")
                else:
                    guard.load_state_dict(state)
                guard.attach(optimizer)
        found = guard.consolidate([batch(91)])
        return weights(model), found, guard

    plain_weights, plain_found, plain = run(stop=None)
    again_weights, again_found, again = run(stop_after)
    assert again.tasks == plain.tasks == 2
    for name, value in plain_weights.items():
        assert torch.equal(again_weights[name], value)
    for label, task in plain_found.items():
        for name, value in task.importance.items():
            assert torch.equal(again_found[label].importance[name], value), label
        for name, value in plain.held.of(label).items():
            assert torch.equal(again.held.of(label)[name], value), label


def refused(guard, path, message):
    before = (copy.deepcopy(guard.anchor), copy.deepcopy(guard.importance), guard.strength, guard.tasks)
    with pytest.raises(anchorhold.errors.StateError, match=message):
        guard.load(path)
    assert all(torch.equal(guard.anchor[k], v) for k, v in before[0].items())
    assert all(torch.equal(guard.importance[k], v) for k, v in before[1].items())
    assert (guard.strength, guard.tasks) == before[2:]


@pytest.fixture
def saved(tmp_path):
    model = net()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=2.0)
    guard.consolidate([batch(0)])
    path = tmp_path / "guard.safetensors"
    guard.save(path)
    guard.consolidate([batch(1)])
    guard.strength = 3.0
    return guard, path


def test_a_run_whose_strength_follows_a_schedule_resumes_without_a_word(tmp_path):
    guard = anchorhold.Guard(net(), "L2", strength=1.0)
    guard.consolidate()
    for step in range(3):
        guard.strength = 2.0 + step
    guard.save(tmp_path / "guard")
    for given in (1.0, 4.0, None):  # as it was made, as it is, and nothing: a warning would be an error here
        again = anchorhold.Guard(net(), "L2", strength=given)
        again.load(tmp_path / "guard")
        again.save(tmp_path / "again")
        assert again.strength == 4.0
    third = anchorhold.Guard(net(), "L2", strength=1.0)
    third.load(tmp_path / "again")
    with pytest.warns(anchorhold.AnchorholdWarning, match="This guard was made with strength=3"):
        anchorhold.Guard(net(), "L2", strength=3.0).load(tmp_path / "guard")


def test_a_state_that_brings_another_strength_says_so(saved):
    guard, path = saved
    with pytest.warns(anchorhold.AnchorholdWarning, match="made with strength=3, and the state .* has strength=2"):
        guard.load(path)
    guard.load(path)  # which changes nothing any more
    for options in ({"strength": 2.0}, {}):
        anchorhold.Guard(guard.model, anchorhold.Fisher(), **grouped(**options)).load(path)
    with pytest.warns(anchorhold.AnchorholdWarning, match="made with exchange_rate=5, and the state .* strength=2"):
        anchorhold.Guard(guard.model, anchorhold.Fisher(), exchange_rate=5.0).load(path)


def test_files_of_no_use_are_refused_and_nothing_is_lost(saved, tmp_path):
    guard, path = saved
    content = path.read_bytes()
    broken = tmp_path / "broken.safetensors"
    for length in (0, 5, 40, len(content) // 2, len(content) - 1):
        broken.write_bytes(content[:length])
        refused(guard, broken, "not a whole safetensors file")
    broken.write_bytes(b"\x80\x04K\x01." * 50)
    refused(guard, broken, "not a whole safetensors file")
    refused(guard, tmp_path / "absent.safetensors", "There is no state file")
    save_file({"weight": torch.zeros(2)}, broken)
    refused(guard, broken, "not one that a Guard wrote")


def test_a_folder_that_is_missing_is_named(saved, tmp_path):
    guard, _ = saved
    with pytest.raises(anchorhold.errors.StateError, match=r"There is no folder '.*nowhere', so no state was written"):
        guard.save(tmp_path / "nowhere" / "guard.safetensors")


def test_a_folder_in_a_files_place_is_named_and_stays_empty(saved, tmp_path):
    guard, _ = saved
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(
        anchorhold.errors.StateError, match="is a folder, so no state was written; expected the path of a file"
    ):
        guard.save(folder)
    assert not any(folder.iterdir())


def rewritten(path, tmp_path, change):
    """Return a file with other content and a checksum that fits it, as if it had been saved so."""
    tensors = load_file(path)
    with safe_open(path, framework="pt") as file:
        state = json.loads(file.metadata()["holdfast"])
    del state["sha256"]
    change(state, tensors)
    state["tensor_count"] = len(tensors)
    sealed = {**state, "sha256": content_digest(json.dumps(state), tensors)}
    target = tmp_path / "changed.safetensors"
    save_file(tensors, target, metadata={"holdfast": json.dumps(sealed)})
    return target


def test_states_of_something_else_are_refused(saved, tmp_path):
    guard, path = saved

    def changed(change):
        return rewritten(path, tmp_path, change)

    refused(guard, changed(lambda s, t: s.update(version=99)), "version 99")
    refused(guard, changed(lambda s, t: s.pop("steps")), r"lacks \['steps'\]")
    refused(guard, changed(lambda s, t: t.update({"anchor/0.weight": torch.zeros(2, 2)})), "another model")
    refused(guard, changed(lambda s, t: t.update({"surprise/0.weight": torch.zeros(2, 2)})), "does not know")
    refused(guard, changed(lambda s, t: s["parameters"].append("9.weight")), "'9.weight'")
    other = anchorhold.Guard(net(), anchorhold.MAS())
    other.consolidate([batch(0)])
    refused(other, path, "Make one with the same measures")
    narrow = anchorhold.Guard(net(), anchorhold.Fisher(), protect="0.*")
    refused(narrow, path, "another `protect`")


def test_a_failed_write_leaves_the_old_file(saved, tmp_path, monkeypatch):
    guard, path = saved
    old = path.read_bytes()

    def full_disk(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        guard.save(path)
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


def test_a_state_is_a_copy_when_loaded(saved):
    guard, _ = saved
    state = guard.state_dict()
    other = anchorhold.Guard(net(), anchorhold.Fisher())
    other.load_state_dict(state)
    other.anchor["0.weight"].zero_()
    assert float(guard.anchor["0.weight"].abs().max()) > 0


def test_tied_and_transposed_weights_are_saved(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)).double()
    model[1].weight = model[0].weight
    with torch.no_grad():
        model[0].weight.set_(torch.randn(4, 4, dtype=torch.float64).t())
    guard = anchorhold.Guard(model, anchorhold.Fisher())
    guard.consolidate([torch.randn(5, 4, dtype=torch.float64)])
    guard.save(tmp_path / "tied.safetensors")
    anchor = guard.anchor["0.weight"].clone()
    guard.load(tmp_path / "tied.safetensors")
    assert torch.equal(guard.anchor["0.weight"], anchor)


@pytest.mark.parametrize("consolidated", [True, False])
def test_a_layer_that_was_frozen_before_the_state_was_saved_is_no_other_model(tmp_path, consolidated):
    """The default protects what is trainable, and what was held before it was frozen."""
    model = net()
    guard, optimizer = make_guard(model), torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    steps(model, guard, optimizer, [0])
    if consolidated:
        guard.consolidate([batch(0)])
    model[0].requires_grad_(False)
    guard.refresh()
    guard.save(tmp_path / "guard.safetensors")
    again = copy.deepcopy(model)
    resumed = make_guard(again)
    resumed.load(tmp_path / "guard.safetensors")
    assert list(resumed.parameters) == list(guard.parameters)
    expected = guard.state_dict()["tensors"]
    assert resumed.state_dict()["tensors"].keys() == expected.keys()
    assert all(torch.equal(resumed.state_dict()["tensors"][key], value) for key, value in expected.items())


def test_a_state_that_is_loaded_in_inference_mode_serves_in_training(saved):
    guard, path = saved
    guard.strength = 2.0
    with torch.inference_mode():
        guard.load(path)
    assert not any(tensor.is_inference() for tensor in guard.state_dict()["tensors"].values())


@dataclasses.dataclass(frozen=True)
class Weighted(anchorhold.measures.WeightMeasure):
    """A measure of one's own with a setting that JSON has no word for."""

    choose_when: ClassVar[str] = "never"
    factors: Any = (0.5, 2.0)

    def importance(self, weight):
        return weight.abs() * self.factors[0]


def test_a_setting_that_is_a_tuple_comes_back(tmp_path):
    model = net()
    guard = anchorhold.Guard(model, Weighted())
    guard.consolidate()
    guard.save(tmp_path / "guard.safetensors")
    again = anchorhold.Guard(model, Weighted())
    again.load(tmp_path / "guard.safetensors")
    assert again.tasks == 1
    other = anchorhold.Guard(model, Weighted(factors=(0.5, 3.0)))
    with pytest.raises(anchorhold.errors.StateError, match="same measures and settings"):
        other.load(tmp_path / "guard.safetensors")


class Labelled(anchorhold.Guard):
    """A guard with something of a user's own."""

    def __init__(self, *args, label, **options):
        super().__init__(*args, **options)
        self.label = label


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda guard: pickle.loads(pickle.dumps(guard))])
def test_a_copy_of_a_subclass_has_what_is_its_own(how):
    guard = Labelled(net(), "EWC", strength=2.0, label=["German"])
    guard.consolidate([batch(0)])
    found = how(guard)
    assert type(found) is Labelled and found.label == ["German"] and found.strength == 2.0
    assert found._attachment is not guard._attachment


def test_a_setting_that_no_file_holds_is_named():
    guard = anchorhold.Guard(net(), Weighted(factors=[torch.tensor(0.5)]))
    with pytest.raises(
        anchorhold.errors.ConfigurationError, match=r"settings of Weighted are .*factors.*a saved state can hold"
    ):
        guard.state_dict()


@pytest.mark.parametrize(
    "how", [copy.deepcopy, lambda three: pickle.loads(pickle.dumps(three))], ids=["copied", "pickled"]
)
def test_a_copy_is_attached_to_nothing_and_says_so(how):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = anchorhold.Guard(model, "SOS", strength=2.0)
    guard.attach(optimizer)
    loss(model, batch(0)).backward()
    optimizer.step()
    guard.consolidate()
    with pytest.warns(anchorhold.AnchorholdWarning, match=r"attached to nothing. Call attach\(\) on the copy"):
        model_2, optimizer_2, guard_2 = how((model, optimizer, guard))
    with pytest.raises(anchorhold.errors.OrderError, match="before attach"):
        guard_2.gradients.observe(loss(model_2, batch(1)))
    guard_2.attach(optimizer_2)
    for each, stepping in ((model, optimizer), (model_2, optimizer_2)):
        with torch.no_grad():
            next(each.parameters()).add_(1.0)
        stepping.zero_grad()
        loss(each, batch(1)).backward()
        stepping.step()
    for a, b in zip(model.parameters(), model_2.parameters(), strict=True):
        assert torch.equal(a, b)
    first, second = guard.consolidate()["SOS"], guard_2.consolidate()["SOS"]
    for name, importance in first.importance.items():
        assert torch.equal(importance, second.importance[name])


def test_the_weights_of_a_model_are_no_state():
    guard = anchorhold.Guard(net(), "EWC", strength=1.0)
    with pytest.raises(
        anchorhold.errors.StateError, match=r"'0.weight' in it is no state.*for model\.load_state_dict\(\)"
    ):
        guard.load_state_dict(guard.model.state_dict())
