"""Models in files: read, merged and written tensor by tensor."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import anchorhold
from anchorhold.merging import between, tensor_files
from tests.merging.models import guarded, moved, network


def saved(folder, name, model, **metadata):
    path = folder / f"{name}.safetensors"
    save_file({key: tensor.contiguous() for key, tensor in model.state_dict().items()}, path, metadata=metadata or None)
    return path


def sharded(folder, model, files=2):
    """A model in Hugging Face's layout, in several files."""
    folder.mkdir()
    state = model.state_dict()
    places = {name: f"model-{1 + k % files:05}-of-{files:05}.safetensors" for k, name in enumerate(state)}
    for file in set(places.values()):
        save_file({name: state[name] for name in state if places[name] == file}, folder / file, {"format": "pt"})
    index = {"metadata": {"total_size": 0}, "weight_map": places}
    (folder / tensor_files.INDEX).write_text(json.dumps(index))
    (folder / "config.json").write_text('{"model_type": "small"}')
    (folder / "pytorch_model.bin").write_bytes(b"old")
    return folder


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


def nothing_else(folder, *names):
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_the_same_bits_as_in_memory(tmp_path, dtype, monkeypatch):
    monkeypatch.setattr(between, "PIECE", 7)  # so that every tensor goes in several pieces
    before, after = network().to(dtype), moved(network()).to(dtype)
    paths = saved(tmp_path, "before", before), saved(tmp_path, "after", after, format="pt", made="here")
    written = anchorhold.merge(*paths, 0.3, out=tmp_path / "merged.safetensors")
    assert written == tmp_path / "merged.safetensors"
    found = load_file(written)
    assert_same(found, anchorhold.merge(before, after, 0.3))
    monkeypatch.undo()
    assert_same(found, anchorhold.merge(before, after, 0.3))
    assert tensor_files.metadata(written) == {"format": "pt", "made": "here"}
    nothing_else(tmp_path, "before.safetensors", "after.safetensors", "merged.safetensors")


@pytest.mark.parametrize("form", ["diagonal", "rotated", anchorhold.Kronecker(outputs="identity")], ids=str)
def test_the_same_as_in_memory_with_forms(tmp_path, form):
    before, after = network(), moved(network())
    guards = [guarded(before, form, 3), guarded(after, form, 4)]
    for k, guard in enumerate(guards):
        guard.save(tmp_path / f"guard{k}.safetensors")
    by = [tmp_path / f"guard{k}.safetensors" for k in (0, 1)]
    paths = saved(tmp_path, "before", before), saved(tmp_path, "after", after)
    found = load_file(anchorhold.merge(*paths, 0.3, by=by, out=tmp_path / "merged.safetensors"))
    for name, tensor in anchorhold.merge(before, after, 0.3, by=guards).items():
        torch.testing.assert_close(found[name], tensor, rtol=0 if form == "diagonal" else 1e-12, atol=1e-14)


def test_types_of_all_sizes_lie_where_they_may(tmp_path):
    state = {
        "odd": torch.arange(3, dtype=torch.bfloat16), "flag": torch.tensor([True, False, True]),
        "wide": torch.arange(5, dtype=torch.float64), "count": torch.tensor(3), "none": torch.zeros(0, 2),
        "ü": torch.arange(4, dtype=torch.float32), "half": torch.arange(1, dtype=torch.float16),
        "complex": torch.tensor([1 + 1j]),
    }  # fmt: skip
    copied = {name: tensor.clone() for name, tensor in state.items()}
    path = anchorhold.merge(state, copied, 0.5, out=tmp_path / "merged.safetensors")
    assert_same(load_file(path), state)


def test_a_folder_of_several_files(tmp_path):
    before, after = network(), moved(network())
    one, other = sharded(tmp_path / "before", before, 3), sharded(tmp_path / "after", after, 2)
    written = anchorhold.merge(one, other, 0.3, out=tmp_path / "merged")
    files = [f"model-0000{k}-of-00002.safetensors" for k in (1, 2)]
    nothing_else(written, *files, "config.json", tensor_files.INDEX)
    expected = anchorhold.merge(before, after, 0.3)
    assert_same(load_file(written / files[0]) | load_file(written / files[1]), expected)
    index = json.loads((written / tensor_files.INDEX).read_text())
    assert index["weight_map"] == json.loads((other / tensor_files.INDEX).read_text())["weight_map"]
    assert index["metadata"]["total_size"] == sum(8 * tensor.numel() for tensor in expected.values())
    assert_same(anchorhold.merge(written, written, 0.0), expected)
    assert_same(load_file(anchorhold.merge(one, other, 0.3, out=tmp_path / "one.safetensors")), expected)


def test_a_folder_of_one_file(tmp_path):
    before, after = network(), moved(network())
    for name, model in (("before", before), ("after", after)):
        (tmp_path / name).mkdir()
        saved(tmp_path / name, "model", model)
    written = anchorhold.merge(tmp_path / "before", tmp_path / "after", 0.3, out=tmp_path / "merged")
    nothing_else(written, "model.safetensors")
    assert_same(load_file(written / "model.safetensors"), anchorhold.merge(before, after, 0.3))


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize("interruption", [KeyboardInterrupt, OSError])
def test_an_interrupted_merge_leaves_nothing(tmp_path, monkeypatch, folder, interruption):
    before, after = network(), moved(network())
    if folder:
        paths = sharded(tmp_path / "before", before), sharded(tmp_path / "after", after)
    else:
        paths = saved(tmp_path, "before", before), saved(tmp_path, "after", after)
    there = sorted(path.name for path in tmp_path.iterdir())
    write = tensor_files.Writer.write

    def interrupted(self, name, piece, start=0):
        if name == "3.weight":
            raise interruption
        write(self, name, piece, start)

    monkeypatch.setattr(tensor_files.Writer, "write", interrupted)
    with pytest.raises(interruption):
        anchorhold.merge(*paths, 0.3, out=tmp_path / ("merged" if folder else "merged.safetensors"))
    nothing_else(tmp_path, *there)


def test_a_refused_merge_leaves_nothing(tmp_path):
    before, after = network(), moved(network())
    with torch.no_grad():
        after[3].bias[0] = float("nan")
    paths = saved(tmp_path, "before", before), saved(tmp_path, "after", after)
    with pytest.raises(anchorhold.errors.NotFiniteError, match=r"'3.bias' of after"):
        anchorhold.merge(*paths, 0.3, out=tmp_path / "merged.safetensors")
    nothing_else(tmp_path, "before.safetensors", "after.safetensors")


def test_nothing_that_is_there_is_replaced(tmp_path):
    before, after = network(), moved(network())
    paths = saved(tmp_path, "before", before), saved(tmp_path, "after", after)
    for out in (*paths, tmp_path):
        with pytest.raises(anchorhold.errors.StateError, match="not replaced"):
            anchorhold.merge(*paths, 0.3, out=out)
    assert_same(load_file(paths[1]), after.state_dict())
    with pytest.raises(anchorhold.errors.StateError, match="no folder"):
        anchorhold.merge(*paths, 0.3, out=tmp_path / "nowhere" / "merged.safetensors")


def test_files_that_are_no_models(tmp_path):
    before = saved(tmp_path, "before", network())
    with pytest.raises(
        anchorhold.errors.ConfigurationError, match=r"after='.*nowhere.safetensors': there is no such file"
    ):
        anchorhold.merge(before, tmp_path / "nowhere.safetensors")
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(before.read_bytes()[:-10])
    (tmp_path / "pickle.safetensors").write_bytes(b"\x80\x02 something else")
    for name in ("cut", "pickle"):
        with pytest.raises(anchorhold.errors.StateError, match="not a whole safetensors file"):
            anchorhold.merge(before, tmp_path / f"{name}.safetensors")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(
        anchorhold.errors.StateError, match=r"neither model.safetensors nor .*pytorch_model.bin.*Pickled"
    ):
        anchorhold.merge(before, tmp_path / "folder")


def test_indices_that_do_not_fit(tmp_path):
    model = network()
    folder = sharded(tmp_path / "model", model)
    index = folder / tensor_files.INDEX
    kept = json.loads(index.read_text())
    index.write_text("{")
    with pytest.raises(anchorhold.errors.StateError, match="cannot be read"):
        anchorhold.merge(model, folder)
    index.write_text(
        json.dumps(kept | {"weight_map": kept["weight_map"] | {"more": "model-00001-of-00002.safetensors"}})
    )
    with pytest.raises(anchorhold.errors.StateError, match=r"has no 'more'"):
        anchorhold.merge(model, folder)
    index.write_text(json.dumps(kept))
    (folder / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(anchorhold.errors.StateError, match="There is no file"):
        anchorhold.merge(model, folder)


def test_files_with_other_names_or_shapes(tmp_path):
    one, other = saved(tmp_path, "one", network()), saved(tmp_path, "other", nn.Linear(3, 2))
    with pytest.raises(anchorhold.errors.ConfigurationError, match=r"before has no '(weight|bias)' and 1 more"):
        anchorhold.merge(one, other, out=tmp_path / "merged.safetensors")
    wide = saved(tmp_path, "wide", nn.Linear(4, 2))
    with pytest.raises(anchorhold.errors.ConfigurationError, match=r"\(2, 3\) in before, \(2, 4\) in after"):
        anchorhold.merge(other, wide, out=tmp_path / "merged.safetensors")
    nothing_else(tmp_path, "one.safetensors", "other.safetensors", "wide.safetensors")


def test_what_a_file_cannot_hold(tmp_path):
    state = {"w": torch.zeros(1), "_extra_state": 1}
    with pytest.raises(anchorhold.errors.ConfigurationError, match="_extra_state"):
        anchorhold.merge(state, state | {"w": torch.ones(1)}, out=tmp_path / "merged.safetensors")
    nothing_else(tmp_path)


MEASURED = """
import sys, torch
import anchorhold
anchorhold.merge({"w": torch.zeros(2)}, {"w": torch.ones(2)})
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) // 1024
before = peak()
anchorhold.merge(sys.argv[1], sys.argv[2], 0.3, by=sys.argv[4:] or None, out=sys.argv[3])
print(peak() - before)
"""


@pytest.mark.nightly
def test_memory_is_that_of_a_tensor_and_not_of_the_model(tmp_path):
    """Sixteen tensors of 8 MB in each file, of which two are there at a time, and pieces in double precision."""
    for name in ("before", "after"):
        save_file({f"w{k}": torch.full((2048, 1024), 0.1 * k) for k in range(16)}, tmp_path / f"{name}.safetensors")
    paths = [tmp_path / f"{name}.safetensors" for name in ("before", "after", "merged")]
    command = [sys.executable, "-c", MEASURED, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 90, done.stdout  # MB, of 128 in each of the three files
    expected = anchorhold.merge(*(load_file(path) for path in paths[:2]), 0.3)
    assert_same(load_file(paths[2]), expected)
