"""States that were damaged or edited: every one is refused with a StateError, and nothing that was there is lost."""

import copy
import itertools
import json
import warnings
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import anchorhold
from anchorhold.whole_files import content_digest
from tests.guard.helpers import batch, loss, net
from tests.helpers import grouped

OLD = Path(__file__).parent / "saved_by_0.1.0" / "SI.safetensors"


def trained(measure=None, tasks=1, **options):
    model = net()
    guard = anchorhold.Guard(model, measure or anchorhold.SI(), strength=2.0, **grouped(**options))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    for task in range(tasks + 1):
        optimizer.zero_grad()
        loss(model, batch(task)).backward()
        optimizer.step()
        if task < tasks:
            guard.consolidate([batch(task)])
    return guard


def own(state):
    """Return a state that shares nothing with the guard that it is of."""
    return copy.deepcopy({**state, "tensors": {name: t.detach().clone() for name, t in state["tensors"].items()}})


def same(one, two):
    rest = [{key: value for key, value in state.items() if key != "tensors"} for state in (one, two)]
    return rest[0] == rest[1] and all(torch.equal(one["tensors"][n], t) for n, t in two["tensors"].items())


def refused(guard, load, message=None):
    before = own(guard.state_dict())
    with pytest.raises(anchorhold.errors.StateError, match=message):
        load()
    assert same(guard.state_dict(), before) and guard.state_dict()["tensors"].keys() == before["tensors"].keys()


# Files


def test_every_kind_of_bit_that_is_flipped_in_a_file_is_noticed(tmp_path):
    """Bits all over the file; ``torture/bit_flips.py`` flips many more."""
    guard, path = trained(), tmp_path / "guard.safetensors"
    guard.save(path)
    whole = path.read_bytes()
    for place in range(0, len(whole), 61):
        content = bytearray(whole)
        content[place] ^= 1 << place % 8
        path.write_bytes(bytes(content))
        refused(guard, lambda: guard.load(path))


def parts(path):
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["holdfast"]), load_file(path)


def test_a_file_without_its_checksum_is_refused_unless_it_is_of_the_first_version(tmp_path):
    guard, path = trained(), tmp_path / "guard.safetensors"
    guard.save(path)
    values, tensors = parts(path)
    del values["sha256"]
    save_file(tensors, path, {"holdfast": json.dumps(values)})
    refused(guard, lambda: guard.load(path), "has no checksum, as every file of version 2 has")
    save_file(tensors, path, {"holdfast": json.dumps(values | {"version": 1})})
    guard.load(path)  # as 0.1.0 wrote them
    save_file(tensors, path, {"holdfast": json.dumps(values | {"version": 1, "sha256": "0" * 64})})
    refused(guard, lambda: guard.load(path), "does not match its checksum")


@pytest.mark.parametrize(
    "text", ["", "{", "null", "[]", "1", '"text"', "[" * 100_000, '{"a":' * 100_000, "9" * 5000], ids=repr
)
def test_values_that_are_no_json_object_are_refused(tmp_path, text):
    guard, path = trained(), tmp_path / "guard.safetensors"
    save_file({}, path, {"holdfast": text})
    refused(guard, lambda: guard.load(path), "is damaged: ")


def test_files_that_are_no_safetensors_are_refused(tmp_path):
    guard, path = trained(), tmp_path / "guard.safetensors"
    length = (2**62).to_bytes(8, "little")
    header = b'{"anchor/0.weight":{"dtype":"F64","shape":[5,4],"data_offsets":[0,99999999]}}'
    lying = len(header).to_bytes(8, "little") + header
    for content in (b"", b"\0" * 8, length, length + b"{}" * 50, lying, b"{" * 300, b"\x80\x04K\x01." * 50):
        path.write_bytes(content)
        refused(guard, lambda: guard.load(path), "not a whole safetensors file")
    refused(guard, lambda: guard.load(tmp_path), "There is no state file")


def test_equal_states_have_equal_files(tmp_path):
    guard = trained()
    for name in "ab":
        guard.save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


# States of any origin


def first(tensors, kind):
    return next(name for name in tensors if name.startswith(kind))


def filled(kind, value):
    """Return a change: one number of a tensor of some kind."""

    def change(state):
        name = first(state["tensors"], kind)
        state["tensors"][name].view(-1)[1] = value

    return change


def without(kind):
    def change(state):
        state["tensors"] = {name: t for name, t in state["tensors"].items() if not name.startswith(kind)}
        state["tensor_count"] = len(state["tensors"])

    return change


def converted(kind, dtype):
    def change(state):
        name = first(state["tensors"], kind)
        state["tensors"][name] = state["tensors"][name].to(dtype)

    return change


WRONG = {
    "strength -5": (lambda s: s.update(strength=-5), "strength=-5"),
    "strength NaN": (lambda s: s.update(strength=float("nan")), "strength=nan"),
    "strength text": (lambda s: s.update(strength="2"), "strength='2'"),
    "strength None": (lambda s: s.update(strength=None), "strength=None"),
    "decay 2": (lambda s: s.update(decay=2.0), "decay=2"),
    "-7 tasks": (lambda s: s.update(tasks=-7), "tasks are -7"),
    "1.5 tasks": (lambda s: s.update(tasks=1.5), "tasks are 1.5"),
    "True tasks": (lambda s: s.update(tasks=True), "tasks are True"),
    "0 tasks": (lambda s: s.update(tasks=0), "after 0 tasks"),
    "version True": (lambda s: s.update(version=True), "version True"),
    "version text": (lambda s: s.update(version="2"), "version '2'"),
    "version list": (lambda s: s.update(version=[2]), r"version \[2\]"),
    "steps": (lambda s: s["steps"].update({"0.weight": -1}), "steps are"),
    "steps list": (lambda s: s.update(steps=[1]), "steps are"),
    "parameters twice": (lambda s: s.update(parameters=["0.weight"] * 2), "each name once"),
    "parameters text": (lambda s: s.update(parameters="0.weight"), "each name once"),
    "parameters nested": (lambda s: s.update(parameters=[["0.weight"]]), "each name once"),
    "labels": (lambda s: s.update(labels=["cat"]), "labels are"),
    "left frozen": (lambda s: s.update(left_frozen=3), "left_frozen are"),
    "folded": (lambda s: s.update(folded_norms=["a"]), "folded_norms are"),
    "averages": (lambda s: s.update(averages={"SI": {"0.weight": -1.0}}), "averages of 'SI'"),
    "averages nested": (lambda s: s.update(averages={"SI": 3}), "averages are"),
    "measures": (lambda s: s.update(measures=3), "measures are"),
    "driver": (lambda s: s.update(driver=["SI"]), "driver are"),
    "no tensor": (lambda s: s["tensors"].update({"anchor/0.weight": [1.0]}), "tensors by name"),
    "tensors": (lambda s: s.update(tensors=[1]), "tensors are"),
    "count": (lambda s: s["tensors"].popitem(), "was written with"),
    "no count": (lambda s: s.pop("tensor_count"), r"lacks \['tensor_count'\]"),
    "anchor NaN": (filled("anchor/", float("nan")), "anchor of .* has NaN"),
    "anchor infinite": (filled("anchor/", float("inf")), "anchor of .* has NaN"),
    "importance NaN": (filled("total/", float("nan")), "importance of .* by SI has NaN"),
    "importance negative": (filled("total/", -1e-6), "SI has an importance of -1e-06"),
    "importance int64": (converted("total/", torch.int64), "is of torch.int64"),
    "anchor bool": (converted("anchor/", torch.bool), "is of torch.bool"),
    "running int32": (converted("running/", torch.int32), "is of torch.int32"),
    "start complex": (converted("start/", torch.complex64), "is of torch.complex64"),
    "no anchors": (without("anchor/"), "has no anchor of"),
    "one anchor less": (without("anchor/0.weight"), "has no anchor of '0.weight'"),
    "no importances": (without("total/"), "has no importance of"),
    "one importance less": (without("total/SI/2.bias"), "has no importance of '2.bias'"),
}


@pytest.mark.daily
@pytest.mark.parametrize("name", WRONG)
def test_what_no_guard_has_ever_written_is_refused(name, tmp_path):
    """In memory, and in a file whose checksum fits."""
    change, message = WRONG[name]
    guard = trained()
    state = own(guard.state_dict())
    change(state)
    refused(guard, lambda: guard.load_state_dict(state), message)
    if name in ("no tensor", "tensors"):  # which no file can hold
        return
    values = {key: value for key, value in state.items() if key != "tensors"}
    sealed = {**values, "sha256": content_digest(json.dumps(values), state["tensors"])}
    save_file(state["tensors"], tmp_path / "edited", {"holdfast": json.dumps(sealed)})
    refused(guard, lambda: guard.load(tmp_path / "edited"), message)


@pytest.mark.parametrize("given", [None, [], "state", 3, {}, {"version": 2}])
def test_what_is_no_state_at_all_is_refused(given):
    guard = trained()
    refused(guard, lambda: guard.load_state_dict(given))


@pytest.mark.daily
@pytest.mark.parametrize("change", ["strength -5", "-7 tasks", "importance NaN", "no anchors", "importance int64"])
def test_files_of_the_first_version_are_checked_too(change, tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    guard = anchorhold.Guard(model, "SI", strength=3.0, decay=0.9)
    guard.load(OLD)
    values, tensors = parts(OLD)
    state = {**values, "tensors": tensors}
    edit, message = WRONG[change]
    edit(state)
    tensors = state.pop("tensors")
    save_file(tensors, tmp_path / "edited", {"holdfast": json.dumps(state)})
    refused(guard, lambda: guard.load(tmp_path / "edited"), message)


def test_negative_totals_are_right_where_the_total_is_clamped():
    guard = trained(anchorhold.SI(clamp="total"), tasks=0)
    for tensor in guard.gradients.path.running["SI"]["path"].values():
        tensor.fill_(-1.0)
    guard.consolidate()
    state = own(guard.state_dict())
    assert float(state["tensors"]["total/SI/0.weight"].max()) < 0
    guard.load_state_dict(state)
    assert same(guard.state_dict(), state)


@pytest.mark.parametrize("form", ["kronecker", "dense", "lowrank", "rotated"])
def test_matrices_are_checked_as_diagonals_are(form):
    guard = trained(anchorhold.Fisher(), form=form, tasks=2)
    state = own(guard.state_dict())
    guard.load_state_dict(state)
    for name in [name for name in state["tensors"] if name.startswith("total/")]:
        damaged = own(state)
        damaged["tensors"][name].view(-1)[0] = float("nan")
        refused(guard, lambda damaged=damaged: guard.load_state_dict(damaged), "has NaN or infinities")
    negative = own(state)
    for name, tensor in negative["tensors"].items():
        if name.endswith(("#G", "#H", "#L", "#S")):
            tensor.neg_()
    refused(guard, lambda: guard.load_state_dict(negative), "expected none below 0")


def test_a_running_state_that_training_has_made_nan_still_loads(tmp_path):
    """It was saved so; the next consolidation says so, and gradients.restart_task() helps."""
    guard = trained()
    next(iter(guard.gradients.path.running["SI"]["path"].values())).fill_(float("nan"))
    guard.save(tmp_path / "guard")
    guard.load(tmp_path / "guard")
    with pytest.raises(anchorhold.errors.NotFiniteError, match="restart_task"):
        guard.consolidate()


def test_a_state_from_which_all_was_forgotten_loads_with_a_word():
    guard = trained()
    guard.forget(*guard.parameters)
    with pytest.warns(anchorhold.AnchorholdWarning, match="after 1 task and holds nothing"):
        guard.load_state_dict(own(guard.state_dict()))


def test_states_of_many_kinds_of_guards_are_taken_as_before():
    """No check refuses what a guard writes: measures of all kinds, forms, decay, layers that were forgotten."""
    measures = [
        anchorhold.SI(),
        anchorhold.SOS(),
        anchorhold.Fisher(),
        anchorhold.MAS(),
        "L2-growing",
        "AF",
        "posterior",
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for measure, decay, tasks in itertools.product(measures, (1.0, 0.3), (0, 1, 3)):
            guard = trained(measure, tasks, decay=decay, watch=["magnitude"])
            if tasks == 3:
                guard.forget("0.bias")
            state = own(guard.state_dict())
            guard.load_state_dict(state)
            assert same(guard.state_dict(), state)
