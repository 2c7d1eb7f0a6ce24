"""Files of 0.1.0 beside states: shared importance, own text, trainers' checkpoints, runs and their index."""

import json
import shutil
import warnings

import pytest
import torch
from safetensors.torch import load_file

import anchorhold
from anchorhold.integrations.hub import from_pretrained, save_pretrained
from anchorhold_lab.experiments import Store, execute
from anchorhold_lab.experiments.store import checkpoints
from anchorhold_lab.experiments.store.listing.reading_rows import rows_in
from anchorhold_lab.experiments.store.nested_files import read_nested
from tests.data.written_by_0_1_0 import make
from tests.written_before.numbers import BITS, FILES, assert_same, recorded


@pytest.mark.parametrize("name", make.SHARED)
def test_shared_importance_holds_a_model(name, tmp_path):
    model = make.shared_model(name)
    guard = from_pretrained(FILES / "shared" / name, model, strength=1.0)
    kept = load_file(FILES / "shared" / name / "importance.safetensors")
    tensors = guard.state_dict()["tensors"]
    assert guard.tasks == 1 and kept.keys() == tensors.keys()
    assert all(torch.equal(tensor, tensors[key]) for key, tensor in kept.items())
    again = make.share(anchorhold, tmp_path, name)
    for key, value in again.importance.items():
        torch.testing.assert_close(guard.importance[key], value, rtol=1e-9, atol=0)


def test_a_card_of_then_gives_way_to_one_of_now(tmp_path):
    folder = shutil.copytree(FILES / "shared" / "diagonal", tmp_path / "diagonal")
    guard = from_pretrained(folder, make.shared_model("diagonal"), strength=1.0)
    save_pretrained(guard, folder, measured_from="the same")  # no warning that the card is somebody else's
    assert "library_name: anchorhold" in (folder / "README.md").read_text()
    assert from_pretrained(folder, make.shared_model("diagonal"), strength=1.0).tasks == 1


def test_a_repository_of_then_is_downloaded(monkeypatch):
    """The hub's own download has a test against a server; here its answers are those for a repository of 0.1.0."""
    hub = pytest.importorskip("huggingface_hub")
    folder = FILES / "shared" / "diagonal"

    def download(source, name, **given):
        if not (folder / name).is_file():
            raise hub.errors.EntryNotFoundError(name)
        return str(folder / name)

    monkeypatch.setattr(hub, "hf_hub_download", download)
    assert from_pretrained("user/tiny", make.shared_model("diagonal"), strength=1.0).tasks == 1


def test_own_text_is_read_and_is_what_is_written_now(tmp_path):
    found = anchorhold.OwnText.load(FILES / "text")
    again = make.text(anchorhold, tmp_path / "text")
    assert len(found) == len(again) == 6
    for old, new in zip(found.pieces, again.pieces, strict=True):
        assert torch.equal(old.tokens, new.tokens) and torch.equal(old.top_tokens, new.top_tokens)
        torch.testing.assert_close(old.log_probabilities, new.log_probabilities, rtol=0, atol=1e-6)


def test_writing_goes_on_in_a_folder_of_then(tmp_path):
    folder = shutil.copytree(FILES / "text", tmp_path / "text")
    before = {path.name: path.read_bytes() for path in folder.glob("pieces-*")}
    text = make.text(anchorhold, folder, pieces=8)
    assert len(text) == 8
    assert all((folder / name).read_bytes() == content for name, content in before.items())


@pytest.mark.parametrize("name", make.TRAINERS)
@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*LeafSpec.. is deprecated")
@pytest.mark.filterwarnings("ignore:.*number of training batches", "ignore:Be aware that when using")
def test_training_goes_on_from_a_checkpoint(name, tmp_path):
    run, place = make.TRAINERS[name]
    folder = shutil.copytree(FILES / "trainers", tmp_path / "trainers")
    found = run(anchorhold, folder, folder / place)
    assert_same(found, recorded("trainers", name), rtol=1e-4 if name == "huggingface" else 1e-9)


def test_a_store_is_read_with_an_index_of_then_or_without(tmp_path):
    folder = shutil.copytree(FILES / "runs", tmp_path / "runs")
    first, second, stopped = make.specs("anchorhold_lab")
    store = Store(folder)
    ended = json.loads((FILES / "runs.json").read_text())
    assert [store.status(spec) for spec in (first, second, stopped)] == ["finished", "finished", "started"]
    for result in store.results():
        assert [result.state_digest, [list(row) for row in result.matrix]] == ended[result.spec.id]
    rows = rows_in(folder)
    (folder / "index.json").unlink()
    assert rows == rows_in(folder)
    assert {row.id: row.status for row in rows} == {spec.id: store.status(spec) for spec in (first, second, stopped)}


def test_a_run_goes_on_from_a_checkpoint_of_then(tmp_path, monkeypatch):
    """As on the machine, and with the torch, that wrote it: on others a run begins anew."""
    belongs = read_nested(next(FILES.glob("runs/runs/*/finished-task.safetensors")))["belongs"]
    versions = {"anchorhold": belongs["holdfast"], "torch": belongs["torch"]}
    monkeypatch.setattr(checkpoints, "device_name", lambda device: belongs["device"])
    monkeypatch.setattr(checkpoints, "versions", lambda: versions)
    folder = shutil.copytree(FILES / "runs", tmp_path / "runs")
    stopped = make.specs("anchorhold_lab")[2]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        execute(stopped, folder, device="cpu")
    assert not told
    result = Store(folder).get(stopped)
    digest, matrix = json.loads((FILES / "runs.json").read_text())[stopped.id]
    assert result.resumed == 1
    torch.testing.assert_close(torch.tensor(result.matrix), torch.tensor(matrix), rtol=0, atol=0.03)
    assert not BITS or result.state_digest == digest
