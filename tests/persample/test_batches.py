"""Batches as users give them."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import nn

from holdfast.persample.batches import BatchReader, call_model, read_batch

CPU = torch.device("cpu")
X, Y = torch.arange(12.0).view(4, 3), torch.arange(4)


class Pair(NamedTuple):
    a: Any
    b: Any


def test_forms():
    for batch in (X, (X,), [X]):
        read = read_batch(batch, CPU)
        assert (read.size, read.targets) == (4, None)
        assert torch.equal(read.inputs, X)
    for batch in ((X, Y), [X, Y]):
        read = read_batch(batch, CPU)
        assert torch.equal(read.targets, Y)
    read = read_batch({"x": X, "labels": Y, "scale": 2.0}, CPU)
    assert list(read.inputs) == ["x", "scale"]
    assert torch.equal(read.targets, Y)


def test_parts_of_a_batch():
    read = read_batch((Pair({"x": X}, [torch.tensor([5.0]), None, "text"]), Y), CPU)
    part = read[1:3]
    assert part.size == 2
    assert torch.equal(part.inputs.a["x"], X[1:3])
    assert part.inputs.b[1:] == [None, "text"]
    assert torch.equal(part.inputs.b[0], torch.tensor([5.0]))
    assert torch.equal(part.targets, Y[1:3])
    # What belongs to no sample still does in a part that happens to have its length.
    assert torch.equal(read[:1][:1].inputs.b[0], torch.tensor([5.0]))
    assert part.shared == read.shared


def test_labels_tell_the_number_of_samples():
    assert read_batch(((torch.ones(7), X), Y), CPU).size == 4


def test_pair_of_different_samples():
    same = X.clone()
    same[1] = same[2] = same[0]
    assert torch.equal(read_batch(same, CPU).pair().inputs, same[[0, 3]])
    assert torch.equal(read_batch(X, CPU).pair().inputs, X[:2])
    assert torch.equal(read_batch(torch.ones(3, 2), CPU).pair().inputs, torch.ones(2, 2))


def test_reader_remembers_what_belongs_to_no_sample():
    reader = BatchReader(CPU)
    mask = torch.ones(4, 4)
    assert reader.read((X[:2], mask)[:1]).size == 2
    reader.read(((X[:3], mask),))
    assert reader.read(((X, mask),)).shared == {1}
    assert reader.read({"other": X, "mask": mask}).shared == frozenset()


def test_calls():
    model = nn.Bilinear(3, 3, 2)
    expected = model(X, X)
    assert torch.equal(call_model(model, (X, X)), expected)
    assert torch.equal(call_model(model, {"input1": X, "input2": X}), expected)
    assert torch.equal(call_model(lambda x: SimpleNamespace(logits=x), X), X)
