"""The engine as a whole: batches of any size and structure, chunks of any size, and models of any path."""

import operator

import pytest
import torch
from torch import nn

from anchorhold.engine.accumulator import SampleAccumulator, sample_importance
from anchorhold.engine.phi import ABSOLUTE, SQUARE
from anchorhold.engine.rules import base
from anchorhold.engine.scores import LogLikelihood, OutputNorm
from tests import oracles
from tests.engine import networks
from tests.engine.agreement import FOR_POSITIONS, MEASURES, assert_agrees


def _mlp():
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 4))


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("measure", ["Fisher", "AF", "MAS", "empirical Fisher"])
def test_batches_of_different_sizes(measure, batch):
    inputs, targets = torch.randn(7, 5).double(), torch.randint(4, (7,))
    assert_agrees(_mlp().double(), inputs, targets, MEASURES[measure], batch=batch)


@pytest.mark.parametrize("budget", [1, 300, 1000, 5000, 20_000, 100_000])
@pytest.mark.parametrize("name", ["mlp", "cnn", "tied", "fallback"])
def test_chunks_of_samples_rows_and_tiles_change_nothing(name, budget, monkeypatch):
    monkeypatch.setattr(base, "tile_bytes", lambda device: max(1, budget // 10))
    models = {
        "mlp": (_mlp(), torch.randn(7, 5), MEASURES),
        "cnn": (networks.paper_cnn(2, 8, 5, 3), torch.randn(4, 3, 8, 8), MEASURES),
        "tied": (networks.NanoGPT(), torch.randint(7, (4, 3)), FOR_POSITIONS),
        "fallback": (
            nn.Sequential(nn.ConvTranspose1d(2, 3, 2), nn.Flatten(), nn.Linear(12, 3)),
            torch.randn(5, 2, 3),
            MEASURES,
        ),
    }
    model, inputs, measures = models[name]
    model = networks.randomise(model).double()
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    fallback = {"0.weight", "0.bias"} if name == "fallback" else set()
    for measure in ("Fisher", "MAS"):
        assert_agrees(model, inputs, None, measures[measure], budget=budget, fallback=fallback)


def test_as_many_samples_as_asked_for():
    model, x = _mlp(), torch.randn(10, 5)
    found = sample_importance(model, [x[:4], x[4:]], LogLikelihood(), SQUARE, samples=6)
    torch.testing.assert_close(found.values, sample_importance(model, [x[:6]], LogLikelihood(), SQUARE).values)
    assert found.samples == 6


def test_an_endless_loader_is_left_when_enough():
    def endless():
        while True:
            yield torch.randn(4, 5)

    assert sample_importance(_mlp(), endless(), LogLikelihood(), SQUARE, samples=9).samples == 9


def test_chosen_parameters_only_and_under_names_of_ones_own():
    model, x = nn.Sequential(nn.Linear(5, 4), nn.ConstantPad1d(0, 0.0), nn.Bilinear(4, 4, 3)), torch.randn(6, 5)

    def forward(model, x):
        hidden = model[0](x)
        return model[2](hidden, hidden.tanh())

    everything = sample_importance(model, [x], LogLikelihood(), SQUARE, forward=forward)
    chosen = {"first": model[0].weight, "last": model[2].weight}
    some = sample_importance(model, [x], LogLikelihood(), SQUARE, parameters=chosen, forward=forward)
    assert list(some.values) == ["first", "last"]
    torch.testing.assert_close(some.values["first"], everything.values["0.weight"])
    torch.testing.assert_close(some.values["last"], everything.values["2.weight"])
    assert set(some.fallback) == {"last"}


def test_tied_parameter_is_measured_under_both_its_names():
    model = networks.NanoGPT()
    every = dict(model.named_parameters(remove_duplicate=False))
    found = sample_importance(model, [torch.randint(7, (3, 4))], LogLikelihood(), SQUARE, parameters=every).values
    assert found["wte.weight"].any()
    assert torch.equal(found["wte.weight"], found["lm_head.weight"])


def test_frozen_parts():
    model = _mlp().double()
    model[0].requires_grad_(False)
    x = torch.randn(4, 5).double()
    assert_agrees(model, x, None, MEASURES["Fisher"])  # frozen, and measured all the same
    chosen = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found = sample_importance(model, [x], LogLikelihood(), SQUARE, parameters=chosen)
    expected = oracles.importance(model, oracles.one_by_one(x), oracles.every_label, torch.square)
    assert not found.fallback
    assert set(found.values) == set(chosen)
    for name, value in found.values.items():
        assert oracles.relative_error(value, expected[name]) < 1e-10


def test_part_under_no_grad_has_no_importance():
    class Features(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(5, 4), nn.Linear(4, 3)

        def forward(self, x):
            with torch.no_grad():
                x = self.body(x)
            return self.head(x)

    found = sample_importance(Features(), [torch.randn(3, 5)], LogLikelihood(), SQUARE)
    assert not found.fallback
    assert not found.values["body.weight"].any()
    assert found.values["head.weight"].all()


class Named(nn.Module):
    """Inputs by name: a batch, a mask without a batch dimension, a number and nothing."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, tokens, mask, scale=1.0, extra=None):
        assert extra is None
        return self.head((self.layer(tokens) * mask.unsqueeze(-1) * scale).tanh().sum(1))


@pytest.mark.parametrize("samples", [1, 2, 4])
@pytest.mark.parametrize("length", [3, 2])
def test_named_inputs_with_one_that_belongs_to_no_sample(length, samples):
    model, tokens = Named().double(), torch.randn(samples, length, 4).double()
    mask = torch.tensor([1.0, 0.5, 2.0][:length]).double()
    data = [({"tokens": tokens[n : n + 1], "mask": mask, "scale": 2.0}, None) for n in range(samples)]
    inputs = {"tokens": tokens, "mask": mask, "scale": 2.0, "extra": None, "labels": torch.zeros(samples).long()}
    # Read a batch of another size first, as training does: a mask of as many entries as samples then fools nobody.
    measure = MEASURES["Fisher"]
    accumulator = SampleAccumulator(model, measure.score, measure.phi)
    accumulator.update({"tokens": torch.randn(5, length, 4).double(), "mask": mask, "scale": 2.0, "extra": None})
    first = accumulator.result()
    accumulator.update(inputs)
    found = accumulator.result()
    expected = oracles.importance(model, data, measure.oracle, torch.square, lambda m, kwargs: m(**kwargs))
    for name, value in found.values.items():
        rest = (value * found.samples - first.values[name] * first.samples) / samples
        assert oracles.relative_error(rest, expected[name]) < 1e-10


def test_several_inputs():
    model = nn.Bilinear(3, 4, 2).double()
    inputs = (torch.randn(5, 3).double(), torch.randn(5, 4).double())
    assert_agrees(model, inputs, torch.randint(2, (5,)), MEASURES["AF"], fallback={"weight", "bias"})


class PathByInput(nn.Module):
    """Takes another path when the first feature of all samples is positive."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.tensor([2.0, 1.0, 0.5, 3.0]))

    def forward(self, x):
        x = self.a(x).tanh() if bool((x[:, 0] > 0).all()) else self.b(x).sin() / self.scale
        return self.head(x)


def test_path_that_changes_between_batches():
    model = PathByInput().double()
    x = torch.randn(9, 4).double()
    x[:3, 0], x[3:6, 0], x[6:, 0] = x[:3, 0].abs(), -x[3:6, 0].abs(), x[6:, 0].abs()
    found = assert_agrees(model, x, None, MEASURES["Fisher"], batch=3, fallback={"scale"})
    assert found.values["a.weight"].any()
    assert found.values["b.weight"].any()


class SampleBySample(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return torch.stack([self.head(self.layer(row).tanh()) for row in x])


class Routed(nn.Module):
    """A mixture of experts: which samples a layer sees depends on the samples."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 3) for _ in range(2))

    def forward(self, x):
        out = x.new_zeros(len(x), 3)
        for k, expert in enumerate(self.experts):
            chosen = (x[:, 0] > 0).long() == k
            out = out.index_put((chosen.nonzero().squeeze(1),), expert(x[chosen]))
        return out


@pytest.mark.parametrize("model", [SampleBySample, Routed])
def test_path_that_depends_on_the_samples(model):
    x = torch.randn(6, 4).double()
    for order in (slice(None), x[:, 0].argsort(), x[:, 0].argsort(descending=True)):
        model_ = model().double()
        for measure in ("Fisher", "MAS"):
            data = oracles.one_by_one(x[order])
            found = sample_importance(model_, [x[order]], MEASURES[measure].score, MEASURES[measure].phi)
            expected = oracles.importance(model_, data, MEASURES[measure].oracle, MEASURES[measure].phi)
            for name, value in expected.items():
                assert oracles.relative_error(found.values[name], value) < 1e-10


def test_sequences_of_different_lengths():
    model = networks.randomise(networks.HuggingGPT2()).double()
    batches = [torch.randint(7, (4, length)) for length in (2, 4, 1, 4, 3)]
    data = [sample for batch in batches for sample in oracles.one_by_one(batch)]
    measure = FOR_POSITIONS["Fisher"]
    found = sample_importance(model, batches, measure.score, measure.phi)
    expected = oracles.importance(model, data, measure.oracle, torch.square)
    assert not found.fallback
    for name, value in expected.items():
        assert oracles.relative_error(found.values[name], value) < 1e-10


def test_first_samples_that_are_alike():
    """Merged with positions, equal samples do not tell in which order they lie."""
    model = networks.randomise(networks.HuggingGPT2()).double()
    idx = torch.randint(7, (4, 3))
    idx[1] = idx[0]
    assert_agrees(model, idx, None, FOR_POSITIONS["Fisher"])
    idx[:] = idx[0]
    found = sample_importance(model, [idx], LogLikelihood(), SQUARE)
    alone = sample_importance(model, [idx[:1]], LogLikelihood(), SQUARE)
    torch.testing.assert_close(found.values, alone.values)


class MutatesItsInput(nn.Module):
    """Overwrites what a layer was given, after it."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.randn(4))
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        x = x * 1.0
        y = x + self.shift
        x.zero_()
        return self.layer(y)


def test_input_that_is_overwritten():
    assert_agrees(MutatesItsInput().double(), torch.randn(4, 4).double(), None, MEASURES["Fisher"], fallback={"shift"})


class Unseen(nn.Module):
    """Uses a weight in a layer whose output goes nowhere, and in a way that no rule covers."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        self.layer(x)
        return torch.einsum("ni,oi->no", x, self.layer.weight).cos()


def test_use_that_goes_nowhere_hides_no_other():
    assert_agrees(Unseen().double(), torch.randn(4, 4).double(), None, MEASURES["MAS"], fallback={"layer.weight"})


def test_result_does_not_hold_a_graph():
    model = nn.Sequential(nn.ConvTranspose1d(2, 3, 2), nn.Flatten(), nn.Linear(12, 3))
    for value in sample_importance(model, [torch.randn(4, 2, 3)], OutputNorm(), ABSOLUTE).values.values():
        assert not value.requires_grad


LAYERS = {
    "linear": (lambda: nn.Linear(4, 4), (3, 4)),
    "linear without bias": (lambda: nn.Linear(4, 4, bias=False), (3, 4)),
    "linear on features": (lambda: nn.Linear(4, 4), (4,)),
    "convolution": (lambda: nn.Conv1d(3, 3, 3, padding=1), (3, 4)),
    "layer norm": (lambda: nn.LayerNorm(4), (3, 4)),
    "group norm": (lambda: nn.GroupNorm(1, 3), (3, 4)),
    "batch norm": (lambda: nn.BatchNorm1d(3), (3, 4)),
    "attention": (lambda: nn.TransformerEncoderLayer(4, 2, 4, batch_first=True), (3, 4)),
}
OVERWRITES = {
    "relu_": lambda y: y.relu_(),
    "mul_ of a part": lambda y: (y[..., 1:].mul_(2.0), y)[1],
    "view, then sigmoid_": lambda y: y.view(len(y), -1).sigmoid_().view_as(y),
    "transposed, then add_": lambda y: y.transpose(0, -1).add_(y.detach().transpose(0, -1)).transpose(0, -1),
    "fill_ of a part": lambda y: (y[..., :1].fill_(0.5), y)[1],
    "+=": lambda y: operator.iadd(y, y.detach().cos()),
}


class Overwritten(nn.Module):
    def __init__(self, layer, overwrite, *, sequence_first):
        super().__init__()
        self.layer, self.overwrite, self.sequence_first = layer, overwrite, sequence_first
        self.head = nn.LazyLinear(3)

    def forward(self, x):
        x = x * 1.0
        if self.sequence_first:
            return self.head(self.overwrite(self.layer(x.transpose(0, 1))).transpose(0, 1).flatten(1).tanh())
        return self.head(self.overwrite(self.layer(x)).flatten(1).tanh())


@pytest.mark.parametrize("overwrite", OVERWRITES)
@pytest.mark.parametrize("layer", LAYERS)
def test_outputs_that_are_overwritten(layer, overwrite):
    """Autograd goes around a view that is overwritten: a gradient must not get lost there."""
    make, shape = LAYERS[layer]
    for sequence_first in (False, True) if layer in ("linear", "layer norm") else (False,):
        model = Overwritten(make(), OVERWRITES[overwrite], sequence_first=sequence_first)
        for samples in (4, 1):
            inputs = torch.randn(samples, *shape)
            model(inputs)
            assert_agrees(networks.randomise(model).double(), inputs.double(), None, MEASURES["Fisher"])
            model.float()
