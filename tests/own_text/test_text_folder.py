"""Writing that was stopped goes on, and text of another model is never mixed in."""

import json

import peft
import pytest
import torch

import anchorhold
from anchorhold.own_text import text_folder
from tests.integrations import tiny
from tests.own_text.writers import Chain, Recurrent, same

PROMPTS = [[1], [2, 3, 4], [5, 5]]


class Stopped(Exception):
    pass


def write(store, model=None, pieces=11, **options):
    options = {"prompts": PROMPTS, "end": 0, "batch_size": 3, "keep_top": 2, **options}
    return anchorhold.write_text(Recurrent() if model is None else model, pieces, 6, store=store, **options)


def stop_after(files):
    def progress(done, wanted):
        nonlocal files
        files -= 1
        if files == 0:
            raise Stopped

    return progress


@pytest.mark.parametrize("files", [1, 2, 3, 4])
@pytest.mark.parametrize("batch_size", [3, 2])
def test_writing_goes_on_where_it_was_stopped(tmp_path, files, batch_size):
    whole = write(None)
    with pytest.raises(Stopped):
        write(tmp_path, progress=stop_after(files))
    there = set(tmp_path.glob("pieces-*"))
    assert len(there) == files
    stamps = {path: path.read_bytes() for path in there}
    told = []
    resumed = write(tmp_path, batch_size=batch_size, progress=lambda done, wanted: told.append(done))
    assert same(whole, resumed)
    assert all(path.read_bytes() == content for path, content in stamps.items())
    assert told == list(range(min(3 * files, 11) + batch_size, 11, batch_size)) + [11] * (files < 4)
    assert same(whole, anchorhold.OwnText.load(tmp_path))


def test_what_is_there_is_not_written_again(tmp_path):
    model = Chain()
    options = {"start": 1, "prompts": None, "keep_top": 0}
    whole = write(tmp_path, model, **options)
    model.calls.clear()
    assert same(whole, write(tmp_path, model, **options))
    assert {shape[0] for shape in model.calls} <= {1, 2}  # the first look alone


def test_more_pieces_are_added_and_fewer_are_given(tmp_path):
    few = write(tmp_path, pieces=4)
    more = write(tmp_path, pieces=9)
    assert same(few, anchorhold.OwnText(more.pieces[:4])) and same(more, write(None, pieces=9))
    assert same(few, write(tmp_path, pieces=4))
    assert len(anchorhold.OwnText.load(tmp_path)) == 9


def test_a_file_that_was_being_written_is_not_there(tmp_path):
    with pytest.raises(Stopped):
        write(tmp_path, progress=stop_after(2))
    (tmp_path / ".pieces-00000002.safetensors.0badcafe.part").write_bytes(b"half")
    assert same(write(tmp_path), write(None))


@pytest.mark.parametrize("kept", [0, 5, 0.5, -1])
def test_a_file_that_was_cut_is_refused_and_can_be_removed(tmp_path, kept):
    write(tmp_path)
    cut = sorted(tmp_path.glob("pieces-*"))[1]
    content = cut.read_bytes()
    cut.write_bytes(content[: int(kept * len(content)) if 0 < kept < 1 else kept])
    with pytest.raises(anchorhold.errors.StoreError, match=rf"{cut.name}.*not whole.*Remove it"):
        write(tmp_path)
    with pytest.raises(anchorhold.errors.StoreError, match=cut.name):
        anchorhold.OwnText.load(tmp_path)
    cut.unlink()
    assert same(write(tmp_path), write(None))


def test_a_file_of_another_text_is_refused(tmp_path):
    write(tmp_path / "one")
    write(tmp_path / "other", seed=1)
    stranger = min((tmp_path / "other").glob("pieces-*"))
    (tmp_path / "one" / stranger.name).write_bytes(stranger.read_bytes())
    with pytest.raises(anchorhold.errors.StoreError, match="written for another text"):
        write(tmp_path / "one")


def test_a_file_with_tensors_that_do_not_fit_is_refused(tmp_path):
    write(tmp_path)
    path = min(tmp_path.glob("pieces-*"))
    tensors, said = text_folder.read_tensors(path)
    text_folder.write_tensors(path, {**tensors, "tokens": tensors["tokens"][:-1]}, said)
    with pytest.raises(anchorhold.errors.StoreError, match="lengths do not fit"):
        write(tmp_path)
    text_folder.write_tensors(path, {"tokens": tensors["tokens"]}, said)
    with pytest.raises(anchorhold.errors.StoreError, match="other tensors"):
        write(tmp_path)


def test_another_model_is_refused_and_nothing_is_lost(tmp_path):
    whole = write(tmp_path)
    other = Recurrent()
    with torch.no_grad():
        other.head.bias[0] += 1e-12
    with pytest.raises(anchorhold.errors.StateError, match="the model's weights are others"):
        write(tmp_path, other)
    assert same(whole, write(tmp_path))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"seed": 1}, "seed is 0 there and 1 here"),
        ({"temperature": 0.5}, "temperature is 1.0 there and 0.5 here"),
        ({"top_k": 3}, "top_k"),
        ({"top_p": 0.5}, "top_p"),
        ({"keep_top": 0}, "keep_top"),
        ({"end": None}, "ends"),
        ({"prompts": [[1], [2, 3, 4], [5]]}, "the prompts are others"),
    ],
)
def test_other_settings_are_refused(tmp_path, changed, said):
    write(tmp_path, pieces=2)
    with pytest.raises(anchorhold.errors.StateError, match=said):
        write(tmp_path, pieces=2, **changed)


def test_an_adapter_that_is_switched_off_is_another_model(tmp_path):
    model = peft.get_peft_model(tiny.gpt2(), peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))
    anchorhold.write_text(model, 2, 4, store=tmp_path)
    anchorhold.write_text(model, 2, 4, store=tmp_path)
    with model.disable_adapter(), pytest.raises(anchorhold.errors.StateError, match="weights"):
        anchorhold.write_text(model, 2, 4, store=tmp_path)


def test_pieces_without_a_word_whose_they_are_are_refused(tmp_path):
    write(tmp_path)
    (tmp_path / "asked.json").unlink()
    with pytest.raises(anchorhold.errors.StoreError, match=r"no asked\.json"):
        write(tmp_path)
    with pytest.raises(anchorhold.errors.StoreError, match="holds no text"):
        anchorhold.OwnText.load(tmp_path)


@pytest.mark.daily
@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 1}', "\udcff"])
def test_a_damaged_list_of_settings_is_refused(tmp_path, content):
    write(tmp_path)
    (tmp_path / "asked.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    for read in (write, anchorhold.OwnText.load):
        with pytest.raises(anchorhold.errors.StoreError, match=r"asked\.json"):
            read(tmp_path)


def test_a_newer_format_is_refused(tmp_path):
    write(tmp_path)
    asked = json.loads((tmp_path / "asked.json").read_text())
    (tmp_path / "asked.json").write_text(json.dumps({**asked, "format": 2}))
    with pytest.raises(anchorhold.errors.StateError, match="format 2"):
        write(tmp_path)


def test_a_text_that_is_not_all_there_is_told_of_when_loaded(tmp_path):
    with pytest.raises(Stopped):
        write(tmp_path, progress=stop_after(2))
    with pytest.warns(anchorhold.AnchorholdWarning, match="6 of 11 pieces"):
        loaded = anchorhold.OwnText.load(tmp_path)
    assert len(loaded) == 6


def test_a_folder_that_cannot_be_one_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(anchorhold.errors.StoreError, match="cannot be made a folder"):
        write(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_disk_that_is_full_is_told_of(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(text_folder, "write_tensors", full)
        with pytest.raises(anchorhold.errors.StoreError, match="No space left"):
            write(tmp_path)
    assert same(write(tmp_path), write(None))


def test_batches_of_a_loaded_text_are_those_of_the_written_one(tmp_path):
    text = anchorhold.write_text(tiny.gpt2(), 5, 8, store=tmp_path, keep_top=2)
    loaded = anchorhold.OwnText.load(tmp_path, tiny.tokenizer())
    for one, other in zip(text.batches(2, top=True), loaded.batches(2, top=True), strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert loaded.kind == text.kind and len(loaded.texts) == 5
