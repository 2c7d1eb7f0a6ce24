"""Batches as users give them."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from anchorhold.engine.accumulator import sample_importance
from anchorhold.engine.batches import call_model, read_batch
from anchorhold.engine.conventions import BatchReader
from anchorhold.engine.phi import SQUARE
from anchorhold.engine.scores import LogLikelihood
from anchorhold.errors import BatchError

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


X_BY_NAME = {"x": X, "labels": Y}


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (X_BY_NAME, r"names 'x', for a model whose forward takes \(input\): .*model\(inputs\['x'\]\)"),
        (({"x": X, "y": X}, Y), r"names 'x', 'y', for a model"),
        (((X, X), Y), r"2 inputs in order, for a model whose forward takes \(input\): .*model\(inputs\[0\]\)"),
    ],
)
def test_inputs_that_the_model_does_not_take(batch, message):
    model = nn.Sequential(nn.Linear(3, 2))
    with pytest.raises(BatchError, match=message) as raised:
        sample_importance(model, [batch], LogLikelihood(), SQUARE)
    assert isinstance(raised.value.__cause__, TypeError)


def test_what_the_message_says_to_do():
    found = sample_importance(
        nn.Sequential(nn.Linear(3, 4)), [X_BY_NAME], LogLikelihood(), SQUARE, forward=lambda m, inputs: m(inputs["x"])
    )
    assert found.samples == 4


def test_a_type_error_from_inside_the_model_is_its_own():
    class Wrong(nn.Linear):
        def forward(self, x):
            return super().forward(x, wrong=1)

    with pytest.raises(TypeError, match="unexpected keyword argument 'wrong'"):
        sample_importance(Wrong(3, 2), [X_BY_NAME], LogLikelihood(), SQUARE)


def test_calls():
    model = nn.Bilinear(3, 3, 2)
    expected = model(X, X)
    assert torch.equal(call_model(model, (X, X)), expected)
    assert torch.equal(call_model(model, {"input1": X, "input2": X}), expected)
    assert torch.equal(call_model(lambda x: SimpleNamespace(logits=x), X), X)


def test_rows_that_nobody_collated_are_named():
    rows = [{"prompt": "a"}, {"prompt": "b"}]
    with pytest.raises(BatchError, match=r"a list of 2 rows with 'prompt', as a data set has them"):
        sample_importance(nn.Linear(3, 2), [rows], LogLikelihood(), SQUARE)


def test_what_a_model_misses_is_in_the_call_that_is_advised():
    class WithTask(nn.Linear):
        def forward(self, x, task):
            return super().forward(x)

    with pytest.raises(BatchError, match=r"missing a required argument: 'task'.*model\(inputs, task=\.\.\.\)"):
        call_model(WithTask(3, 2), X)
