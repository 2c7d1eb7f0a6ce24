"""Buffers of old samples: who is kept, in which balance, and what a file of them takes."""

from collections import Counter

import pytest
import torch
from safetensors.torch import save_file

import anchorhold
from anchorhold.errors import BatchError, ConfigurationError, StateError
from anchorhold.holds import Reservoir, Ring
from anchorhold.whole_files import read_tensors, sealed, unsealed


def batches(labels, size=10, start=0):
    x = torch.arange(start, start + len(labels), dtype=torch.float32).unsqueeze(1)
    y = torch.tensor(labels)
    return list(zip(x.split(size), y.split(size), strict=True))


def kept(buffer):
    return sorted((int(sample.group[0]), int(sample.leaves[0])) for sample in buffer.samples)


def test_a_reservoir_keeps_classes_in_balance_whatever_their_order():
    labels = [0] * 200 + [1] * 40 + [2] * 3 + [0] * 100
    buffer = Reservoir(30)
    buffer.fill(batches(labels), 0)
    assert Counter(sample.group for sample in buffer.samples) == {(0, 0): 14, (0, 1): 13, (0, 2): 3} or Counter(
        sample.group for sample in buffer.samples
    ) == {(0, 0): 13, (0, 1): 14, (0, 2): 3}


def test_tasks_share_it_in_balance():
    buffer = Reservoir(12)
    for task in range(3):
        buffer.fill(batches([0, 1] * 50, start=1000 * task), task)
    assert set(Counter(sample.group for sample in buffer.samples).values()) == {2}
    assert buffer.tasks == 3 and sum(buffer.seen.values()) == 300
    assert repr(buffer) == "Reservoir(4 of task 1, 4 of task 2, 4 of task 3)"


@pytest.mark.parametrize("balanced", [True, False])
def test_each_sample_is_as_likely_to_be_kept_as_any_other(balanced):
    """Of 40 samples 8 are kept: over 500 seeds each about 100 times; the bound is five standard deviations wide."""
    counts = Counter()
    for seed in range(500):
        buffer = Reservoir(8, balanced=balanced, seed=seed)
        buffer.fill(batches([0] * 40), 0)
        counts.update(int(sample.leaves[0]) for sample in buffer.samples)
    assert set(counts) == set(range(40)) and sum(counts.values()) == 4000
    assert all(abs(count - 100) < 5 * (500 * 0.2 * 0.8) ** 0.5 for count in counts.values())


def test_a_ring_keeps_the_last_of_each_class():
    buffer = Ring(2)
    buffer.fill(batches([0, 0, 1, 0, 1, 1, 0]), 0)
    assert kept(buffer) == [(0, 3), (0, 4), (0, 5), (0, 6)]
    buffer.fill(batches([5, 5, 5], start=100), 1)
    assert kept(buffer)[4:] == [(1, 101), (1, 102)]


def test_samples_without_classes_are_kept_in_balance_by_task():
    buffer = Reservoir(10)
    for task in range(2):
        buffer.fill([torch.randn(20, 3) for _ in range(3)], task)
    assert Counter(sample.group for sample in buffer.samples) == {(0,): 5, (1,): 5}


def test_a_draw_depends_on_seed_and_step_alone():
    one, other = Reservoir(20), Reservoir(20)
    for buffer in (one, other):
        buffer.fill(batches([0, 1] * 40), 0)
    other.draw(5, 0)
    for step in (3, 17):
        for a, b in zip(one.draw(5, step).batch, other.draw(5, step).batch, strict=True):
            assert torch.equal(a, b)
    assert not torch.equal(one.draw(5, 3).batch[0], one.draw(5, 4).batch[0])
    x, y = one.draw(50, 0).batch
    assert len(x) == 20 and torch.equal(x.long().squeeze(1) % 2, y)  # labels stay with their samples


@pytest.mark.parametrize("named", [True, False])
def test_a_batch_comes_back_as_it_was_given(named):
    tokens, labels = torch.arange(24).reshape(4, 6), torch.arange(24).reshape(4, 6) + 1
    mask = torch.ones(6, 6)
    given = {"input_ids": tokens, "mask": mask, "labels": labels} if named else ((tokens, mask), labels)
    buffer = Reservoir(4)
    buffer.fill([given], 0)
    drawn = buffer.draw(4, 0)
    assert drawn.task == 0
    if named:
        assert set(drawn.batch) == {"input_ids", "mask", "labels"} and torch.equal(drawn.batch["mask"], mask)
        assert torch.equal(drawn.batch["labels"], drawn.batch["input_ids"] + 1)
    else:
        (x, m), y = drawn.batch
        assert torch.equal(m, mask) and torch.equal(y, x + 1)


def test_samples_of_other_shapes_are_drawn_apart():
    buffer = Reservoir(40)
    buffer.fill([torch.zeros(10, 3), torch.ones(10, 5)], 0)
    shapes = {tuple(buffer.draw(4, step).batch[0].shape) for step in range(30)}
    assert shapes == {(4, 3), (4, 5)}


@pytest.mark.parametrize("buffer", [Reservoir(12, seed=3), Ring(3, seed=3)])
def test_a_file_gives_everything_back(buffer, tmp_path):
    again = type(buffer)(12 if isinstance(buffer, Reservoir) else 3, seed=3)
    buffer.fill(batches([0, 1, 2] * 20), 0)
    buffer.keep_outputs(lambda drawn: drawn.batch[0] * 2)
    buffer.save(tmp_path / "samples")
    again.load(tmp_path / "samples")
    assert kept(again) == kept(buffer) and again.seen == buffer.seen and again.tasks == 1
    for one in (buffer, again):  # and it goes on as if nothing had been
        one.fill(batches([0, 1, 2] * 20, start=500), 1)
    assert [int(s.leaves[0]) for s in again.samples] == [int(s.leaves[0]) for s in buffer.samples]
    assert {int(s.outputs) for s in again.samples if s.outputs is not None} == {
        2 * int(s.leaves[0]) for s in buffer.samples if s.outputs is not None
    }


def test_other_files_are_refused_and_nothing_is_lost(tmp_path):
    buffer = Reservoir(5)
    buffer.fill(batches([0] * 9), 0)
    before = kept(buffer)
    buffer.save(tmp_path / "five")
    with pytest.raises(StateError, match="same settings"):
        Reservoir(6).load(tmp_path / "five")
    with pytest.raises(StateError, match="same settings"):
        Ring(5).load(tmp_path / "five")
    save_file({"x": torch.zeros(1)}, tmp_path / "other")
    tensors, texts = read_tensors(tmp_path / "five")
    about, _ = unsealed(texts["holdfast_buffer"], tensors, "")
    for name, change in {"kinds": [], "tasks": "x", "seen": [[1]]}.items():
        save_file(tensors, tmp_path / name, {"holdfast_buffer": sealed({**about, name: change}, tensors)})
    changed = {**tensors, "0/leaf/0": tensors["0/leaf/0"] + 1}
    save_file(changed, tmp_path / "changed", {"holdfast_buffer": texts["holdfast_buffer"]})
    del tensors["0/places"]
    save_file(tensors, tmp_path / "fewer", {"holdfast_buffer": sealed(about, tensors)})
    for name in ("other", "kinds", "tasks", "seen", "changed", "fewer"):
        with pytest.raises(StateError):
            buffer.load(tmp_path / name)
    assert kept(buffer) == before


def test_what_cannot_be_kept_is_refused_and_nothing_is_lost():
    buffer = Reservoir(5)
    buffer.fill(batches([0] * 9), 0)
    before, seen = kept(buffer), dict(buffer.seen)
    for given, message in [
        ([], "no sample"),
        ([{"x": torch.zeros(2, 3), "text": "hello"}], "str among its inputs"),
        ([*batches([0] * 9), "what"], "type str without any tensor"),
    ]:
        with pytest.raises(BatchError, match=message):
            buffer.fill(given, 1)
        assert kept(buffer) == before and dict(buffer.seen) == seen and buffer.tasks == 1


def test_an_input_that_belongs_to_no_sample_stays_with_its_samples():
    buffer = Reservoir(20)
    given = [
        ({"x": torch.full((5, 3), value), "t": torch.tensor(value)}, torch.zeros(5).long()) for value in (1.0, 5.0)
    ]
    buffer.fill(given, 0)
    for step in range(10):
        inputs, _ = buffer.draw(20, step).batch
        assert set(inputs["x"].flatten().tolist()) == {float(inputs["t"])}
    again = Reservoir(20)
    again.load_state_dict(buffer.state_dict())
    assert {float(again.draw(20, step).batch[0]["t"]) for step in range(10)} == {1.0, 5.0}


def test_a_buffer_is_for_one_guard():
    replay = anchorhold.Replay(Reservoir(20))
    one, other = (torch.nn.Linear(1, 2) for _ in range(2))
    anchorhold.Guard(one, "fine-tune", holds=[replay]).consolidate(batches([0, 1] * 5))
    with pytest.raises(ConfigurationError, match="a buffer for each guard"):
        anchorhold.Guard(other, "fine-tune", holds=[replay]).consolidate(batches([0, 1] * 5))


def test_places_that_are_no_files_are_refused(tmp_path):
    buffer = Reservoir(5)
    buffer.fill(batches([0] * 9), 0)
    for path in (tmp_path / "no" / "such", tmp_path):
        with pytest.raises(StateError, match="No samples can be written"):
            buffer.save(path)
    with pytest.raises(StateError, match="There is no file"):
        buffer.load(tmp_path / "none")
    with pytest.raises(ConfigurationError, match="balanced='no'"):
        Reservoir(5, balanced="no")
