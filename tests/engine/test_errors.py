"""Errors say what was given, what was expected and what to do."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import anchorhold
from anchorhold.engine.accumulator import sample_importance
from anchorhold.engine.phi import ABSOLUTE, SQUARE
from anchorhold.engine.scores import LogLikelihood, OutputNorm
from anchorhold.errors import AnchorholdError, AnchorholdWarning, BatchError, ModelError, NotFiniteError

X = torch.randn(3, 4)
Y = torch.tensor([0, 1, 1])


class Returns(nn.Module):
    def __init__(self, what):
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.what = what

    def forward(self, x):
        return self.what(self.layer(x))


@pytest.mark.daily
@pytest.mark.parametrize(
    ("batches", "labels", "error", "message"),
    [
        (
            [X],
            "true",
            BatchError,
            r"needs the true label of every sample and got none. Give batches of \(inputs, targets\)",
        ),
        ([(X, torch.tensor([0, 2, 1]))], "true", BatchError, r"Label 2 of sample 1 is outside 0\.\.1, .* 2 outputs"),
        ([(X, torch.tensor([0, 1, 12]))], "exact", BatchError, r"Label 12 of sample 2 is outside 0\.\.1, .* 2 outputs"),
        ([(X, torch.tensor([0, -1, 1]))], "true", BatchError, r"Label -1 of sample 1 is outside 0\.\.1"),
        (
            [(X, torch.zeros(3, 1).long())],
            "true",
            BatchError,
            r"Labels of shape \(.*, 1\).*want integer labels of shape",
        ),
        ([(X, torch.rand(3))], "true", BatchError, r"type torch.float32.*integer labels without"),
        ([(X, Y[:2])], "true", BatchError, "3 inputs but 2 targets"),
        ([(X, [0, 1, 1])], "true", BatchError, "Targets of type list; expected a tensor .* torch.as_tensor"),
        ([(X, torch.tensor(1))], "true", BatchError, "expected a tensor with one entry a sample"),
        ([X[:0]], "exact", BatchError, "A batch of 0 samples"),
        ([(X[:0], Y[:0])], "true", BatchError, "A batch of 0 samples"),
        ([(X, Y, Y)], "exact", BatchError, r"A batch of 3 parts; expected inputs, \(inputs, targets\) or a mapping"),
        (["text"], "exact", BatchError, "without any tensor"),
        ([{"labels": Y}], "exact", BatchError, "without any tensor"),
        ([], "exact", BatchError, "there were no batches"),
        ([(X, torch.full((3,), -100))], "true", BatchError, "3 were given, all of them with ignored labels"),
        ([X * torch.nan], "exact", NotFiniteError, "outputs hold NaN or infinity.*Check the inputs"),
        ([X * torch.nan], "sampled", NotFiniteError, "outputs hold NaN or infinity"),
        ([torch.cat([X, X * torch.inf])], "exact", NotFiniteError, "outputs hold NaN or infinity"),
    ],
)
def test_batches(batches, labels, error, message):
    with pytest.raises(error, match=message) as raised:
        sample_importance(nn.Linear(4, 2), batches, LogLikelihood(labels), SQUARE)
    assert isinstance(raised.value, AnchorholdError)


@pytest.mark.parametrize(("score", "phi"), [(OutputNorm(), ABSOLUTE), (LogLikelihood(), ABSOLUTE)])  # MAS and AF
def test_labels_that_are_not_used_may_be_of_other_outputs_and_those_of_positions_are_told_of(score, phi):
    model = nn.Linear(4, 2)
    own = sample_importance(model, [X], score, phi).values
    with_others = sample_importance(model, [(X, torch.tensor([50, 60, 70]))], score, phi).values
    assert all(torch.equal(with_others[name], value) for name, value in own.items())
    images, labels = torch.randn(2, 3, 2, 2), torch.tensor([[[0, 1], [255, 1]], [[1, 0], [0, 1]]])
    score = type(score)(positions="separate", class_dim=1)
    with pytest.warns(AnchorholdWarning, match="Label 255 .*replace your ignore_index by -100.*this one does"):
        sample_importance(nn.Conv2d(3, 2, 1), [(images, labels)], score, phi)
    with pytest.raises(BatchError, match=r"Label 255 of sample 0, position 2,.*replace your ignore_index by -100"):
        sample_importance(nn.Conv2d(3, 2, 1), [(images, labels)], LogLikelihood(class_dim=1), SQUARE)


@pytest.mark.daily
@pytest.mark.parametrize(
    ("what", "error", "message"),
    [
        (lambda z: (z, z), BatchError, "The model returned a tuple; expected a tensor.*forward=lambda"),
        (lambda z: z.sum(), ModelError, r"outputs have shape \(\).*expected \[N, ...\]"),
        (lambda z: z.sum(0), ModelError, r"outputs have shape \(2,\) for one sample"),
        (lambda z: z.T, ModelError, r"outputs have shape \(2, 1\) for one sample and \(2, 2\) for two"),
        (lambda z: z[:, 0], BatchError, r"outputs have shape \(1,\); expected \[N, ..., C\]"),
        (lambda z: z.detach(), ModelError, "do not depend on any of the parameters.*no_grad"),
        (lambda z: z - z.mean(0), ModelError, "change when other samples are in the batch"),
        (nn.functional.dropout, ModelError, "change when other samples are in the batch.*random"),
    ],
)
def test_models(what, error, message):
    with pytest.raises(error, match=message):
        sample_importance(Returns(what), [X], LogLikelihood(), SQUARE)


def test_scalar_output_for_one_sample():
    with pytest.raises(ModelError, match=r"shape \(\) for 1 samples"):
        sample_importance(Returns(torch.sum), [X[:1]], LogLikelihood(), SQUARE)


def test_nothing_to_measure():
    with pytest.raises(ModelError, match="no parameter to measure"):
        sample_importance(nn.ReLU(), [X], LogLikelihood(), SQUARE)


def test_gradients_that_overflow():
    model = nn.Linear(4, 2)
    with torch.no_grad():
        model.weight.mul_(1e30)
    with pytest.raises(NotFiniteError, match="importance of 'weight' is not finite after 3 samples"):
        sample_importance(model, [X], OutputNorm("logits"), SQUARE)


@pytest.mark.daily
@pytest.mark.parametrize(
    ("batches", "message"),
    [
        (X, r"Batches of type Tensor; expected an iterable.*\[batch\]"),
        ({"x": X}, "Batches of type dict"),
        ((X, Y), r"Batches of type tuple of Tensor, Tensor; expected.*\[batch\]"),
        ((X, X), "Batches of type tuple of Tensor, Tensor"),
        ((X[:, :-1], X[:, 1:]), "Batches of type tuple of Tensor, Tensor"),
        ((X, X + 1, Y), "Batches of type tuple of Tensor, Tensor, Tensor"),
        (({"x": X}, Y), "Batches of type tuple of dict, Tensor"),
        ([X, Y], r"Batches of type list of Tensor, Tensor; expected.*\[batch\]"),
        (5, "Batches of type int"),
        (TensorDataset(X, Y), r"TensorDataset, a data set of single samples.*DataLoader\(dataset"),
    ],
)
def test_batches_that_are_none(batches, message):
    with pytest.raises(BatchError, match=message):
        sample_importance(nn.Linear(4, 2), batches, LogLikelihood(), SQUARE)
    guard = anchorhold.Guard(nn.Linear(4, 2), anchorhold.Fisher())
    with pytest.raises(BatchError, match=message):
        guard.consolidate(batches)
    assert guard.tasks == 0


@pytest.mark.parametrize("batches", [(X[:2], X[2:]), X.split(1), (X,), ((X, Y), (X, Y)), [X, X]], ids=range(5))
def test_tuples_that_are_batches(batches):
    model = nn.Linear(4, 2)
    found = sample_importance(model, batches, LogLikelihood(), SQUARE)
    assert found.samples == (6 if isinstance(batches[-1], tuple) or isinstance(batches, list) else 3)
    torch.testing.assert_close(found.values, sample_importance(model, [X], LogLikelihood(), SQUARE).values)


def test_an_error_of_the_models_own_says_what_it_was_called_with():
    with pytest.raises(RuntimeError, match="cannot be multiplied") as raised:
        sample_importance(nn.Linear(5, 2), [{"input": X}], LogLikelihood(), SQUARE)
    (note,) = raised.value.__notes__
    assert "3 samples as inputs of shape {'input': (3, 4)}" in note and "forward=lambda model, inputs" in note


def test_forward_that_returns_no_tensor():
    with pytest.raises(BatchError, match="`forward` returned a list"):
        sample_importance(nn.Linear(4, 2), [X], LogLikelihood(), SQUARE, forward=lambda model, x: [model(x)])


def test_mask_with_as_many_entries_as_samples_is_not_silently_cut():
    """A tensor without a batch dimension that looks like one entry a sample, in the very first batch."""

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x, mask):
            return self.layer(x * mask)

    with pytest.raises(ModelError, match="happens to have as many entries"):
        sample_importance(Masked(), [((torch.randn(2, 2), torch.tensor([1.0, 3.0])),)], LogLikelihood(), SQUARE)


def test_a_model_that_takes_a_batch_and_none_of_its_parts():
    """One graph: as many rows of its adjacency as there are nodes."""

    class Nodes(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x, edges):
            return edges @ self.layer(x)

    batch = (torch.randn(6, 3), torch.ones(6, 6))
    with pytest.raises(
        anchorhold.errors.ModelError, match=r"called with the 6 samples of this batch, and not with one or two"
    ):
        anchorhold.Fisher().measure(Nodes(), [(batch, torch.zeros(6, dtype=torch.long))])


def test_a_model_that_fails_on_the_batch_itself_says_so_in_its_own_words():
    model = nn.Linear(3, 2)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        anchorhold.Fisher().measure(model, [torch.randn(6, 4)])


def test_an_exported_program_has_no_eval_mode():
    model = nn.Linear(3, 2)
    exported = torch.export.export(model, (torch.randn(4, 3),), dynamic_shapes=({0: torch.export.Dim("n", min=2)},))
    with pytest.raises(anchorhold.errors.ModelError, match="measure the module that it was made from"):
        anchorhold.Fisher().measure(exported.module(), [torch.randn(4, 3)])
