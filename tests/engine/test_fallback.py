"""Parameters that no rule covers: still exact, and named."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from anchorhold.engine.accumulator import sample_importance
from tests import oracles
from tests.engine.agreement import MEASURES, assert_agrees


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cell = kind(3, 4, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


class WrongInVmap(torch.autograd.Function):
    """Passes its input on, and twice of it where it is batched: a batching rule that is wrong without a sign of it."""

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient

    @staticmethod
    def vmap(info, in_dims, x):
        return 2 * x, in_dims[0]


class Einsum(nn.Module):
    def __init__(self, before=torch.tanh):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.randn(3, 4))
        self.before = before

    def forward(self, x):
        return torch.einsum("ni,oi->no", self.before(self.body(x)), self.weight)


class ByRuleAndNot(nn.Module):
    """One weight that is used by a layer with a rule, and otherwise as well."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.layer(x).tanh() + torch.einsum("ni,io->no", x, self.layer.weight))


class Vmapped(nn.Module):
    """A model that uses torch.func itself."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return torch.func.vmap(lambda row: F.linear(row, self.layer.weight).tanh() + self.layer.bias)(x)


CASES = {
    "LSTM": (lambda: Recurrent(nn.LSTM), (5, 3), "cell."),
    "GRU": (lambda: Recurrent(nn.GRU), (2, 3), "cell."),
    "transposed convolution": (
        lambda: nn.Sequential(nn.ConvTranspose2d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(27, 3)),
        (2, 2, 2),
        "0.",
    ),
    "weight norm": (
        lambda: nn.Sequential(weight_norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 3)),
        (4,),
        "0.parametrizations",
    ),
    "spectral norm": (
        lambda: nn.Sequential(spectral_norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 3)),
        (4,),
        "0.parametrizations",
    ),
    "PReLU": (lambda: nn.Sequential(nn.Linear(4, 5), nn.PReLU(5), nn.Linear(5, 3)), (4,), "1."),
    "instance norm": (
        lambda: nn.Sequential(nn.InstanceNorm1d(2, affine=True), nn.Tanh(), nn.Flatten(), nn.Linear(10, 3)),
        (2, 5),
        "0.",
    ),
    "einsum": (Einsum, (4,), "weight"),
    "by a rule and not": (ByRuleAndNot, (4,), "layer.weight"),
    "vmap inside": (Vmapped, (4,), "layer."),
}


@pytest.mark.parametrize("measure", ["Fisher", "MAS", "empirical Fisher"])
@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize("case", CASES)
def test_fallback(case, samples, measure):
    make, shape, prefix = CASES[case]
    model = make().double().eval()
    without_rule = {name for name, _ in model.named_parameters() if name.startswith(prefix)}
    inputs, targets = torch.randn(samples, *shape).double(), torch.randint(3, (samples,))
    found = assert_agrees(model, inputs, targets, MEASURES[measure], fallback=without_rule)
    assert set(found.fallback.values()) <= {"torch.func", "autograd, one sample at a time"}


class Prototypes(nn.Module):
    """Classes by the distance to a prototype of each: torch's vmap of cdist is wrong where several rows go back."""

    def __init__(self):
        super().__init__()
        self.prototypes = nn.Parameter(torch.randn(3, 4))

    def forward(self, x):
        return -torch.cdist(x, self.prototypes)


@pytest.mark.parametrize("budget", [None, 1, 300, 600])
@pytest.mark.parametrize("batch", [1, 3, 4, 5])
@pytest.mark.parametrize("measure", ["Fisher", "AF", "MAS"])
def test_every_kind_of_block_is_checked(measure, batch, budget):
    model, x = Prototypes().double(), torch.randn(5, 4).double()
    assert_agrees(model, x, None, MEASURES[measure], batch=batch, budget=budget, fallback={"prototypes"})


class Pooled(Prototypes):
    """Takes a mean over as many positions as there are: with many, cdist takes a way whose vmap is right."""

    def forward(self, x):
        return -torch.cdist(x, self.prototypes).mean(1)


def test_a_block_of_another_length_is_checked_too():
    model = Pooled().double()
    batches = [torch.randn(3, length, 4).double() for length in (40, 2, 40, 3)]
    measure = MEASURES["Fisher"]
    found = sample_importance(model, batches, measure.score, measure.phi).values["prototypes"]
    data = [sample for batch in batches for sample in oracles.one_by_one(batch)]
    expected = oracles.importance(model, data, measure.oracle, torch.square)["prototypes"]
    assert oracles.relative_error(found, expected) < 1e-10


def test_samples_that_do_not_count_are_not_what_is_checked():
    """The last sample has no label that counts, so it would agree whatever vmap makes of the others."""
    model, x, labels = Einsum(WrongInVmap.apply).double(), torch.randn(4, 4).double(), torch.tensor([0, 1, 2, -100])
    data = oracles.one_by_one(x[:3])
    assert_agrees(model, x, labels, MEASURES["Fisher"], data=data, fallback={"weight"})


def test_float32():
    make, shape, _ = CASES["transposed convolution"]
    assert_agrees(make(), torch.randn(4, *shape), None, MEASURES["Fisher"], fallback={"0.weight", "0.bias"})


def test_embedding_bag():
    model = nn.Sequential(nn.EmbeddingBag(5, 4), nn.Linear(4, 3)).double()
    assert_agrees(model, torch.randint(5, (4, 3)), None, MEASURES["Fisher"], fallback={"0.weight"})


class Empty(nn.Module):
    """Has parameters without a single number: on their own, in a layer, and used twice."""

    def __init__(self):
        super().__init__()
        self.rows, self.shift = nn.Parameter(torch.randn(0, 3)), nn.Parameter(torch.randn(0))
        self.none, self.layer = nn.Linear(1, 3), nn.Linear(4, 3)
        self.none.weight = nn.Parameter(torch.randn(3, 0))

    def forward(self, x):
        nothing = x[..., :0] + self.shift
        nothing = nothing * 2 + self.shift
        y = self.layer(x) + self.none(nothing) + F.linear(nothing, self.none.weight)
        return y.flatten(1, -2).sum(1) + self.rows.sum(0) if y.ndim > 2 else y + self.rows.sum(0)


@pytest.mark.parametrize("measure", ["Fisher", "MAS"])
@pytest.mark.parametrize("shape", [(5, 4), (1, 4), (5, 2, 4)])
def test_parameters_without_numbers(shape, measure):
    found = assert_agrees(Empty().double(), torch.randn(shape).double(), None, MEASURES[measure], fallback={"rows"})
    assert found.values["rows"].shape == (0, 3)
    assert found.values["none.weight"].shape == (3, 0)
