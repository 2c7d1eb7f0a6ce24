"""Samples that change their order on the way through a model: read as what they are, or one at a time."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from anchorhold.engine.accumulator import sample_importance
from anchorhold.engine.phi import SQUARE
from anchorhold.engine.scores import LogLikelihood
from anchorhold.engine.tracing.samples import route_of
from tests import oracles
from tests.engine.agreement import MEASURES, assert_agrees


class Experts(nn.Module):
    """Sends each token, by the sign of its first feature, to one of two experts."""

    def __init__(self):
        super().__init__()
        self.experts, self.head = nn.ModuleList(nn.Linear(4, 4) for _ in range(2)), nn.Linear(4, 3)

    def forward(self, x):
        tokens = x.reshape(-1, 4)
        out = torch.zeros_like(tokens)
        for k, expert in enumerate(self.experts):
            rows = ((tokens[:, 0] > 0).long() == k).nonzero().squeeze(1)
            out = out.index_add(0, rows, expert(tokens[rows]))
        return self.head(out.tanh().view(x.shape).mean(1))


def _tokens(signs):
    """Return inputs ``[N, 2, 4]`` with these signs of the first features."""
    x = torch.randn(len(signs), 2, 4, dtype=torch.float64)
    x[..., 0] = x[..., 0].abs() * torch.tensor(signs)
    return x


@pytest.mark.parametrize("measure", ["Fisher", "MAS"])
def test_experts_that_get_as_many_tokens_as_expected_by_coincidence(measure):
    """The plan is made where each expert gets one token a sample; later each gets both of every other one."""
    model, measure = Experts().double(), MEASURES[measure]
    batches = [_tokens([[1, -1], [1, -1]]), _tokens([[1, 1], [-1, -1]] * 4), _tokens([[1, -1], [1, 1], [-1, -1]] * 2)]
    found = sample_importance(model, batches, measure.score, measure.phi).values
    data = [sample for batch in batches for sample in oracles.one_by_one(batch)]
    for name, expected in oracles.importance(model, data, measure.oracle, measure.phi).items():
        assert oracles.relative_error(found[name], expected) < 1e-10, name


def _by_python(layer, x):
    """Sort rows by numbers that Python reads: nothing that autograd sees depends on data."""
    order = sorted(range(len(x)), key=lambda n: float(x[n, 0].detach()))
    y = layer(torch.stack([x[n] for n in order]))
    return torch.stack([y[order.index(n)] for n in range(len(x))])


def _packed(layer, x):
    sequence = pack_padded_sequence(x.unsqueeze(1), torch.ones(len(x)).long(), batch_first=True, enforce_sorted=False)
    order = x[:, 0].argsort()
    moved = sequence._replace(data=layer(sequence.data[order])[order.argsort()])
    return pad_packed_sequence(moved, batch_first=True)[0].squeeze(1)


def _assigned(layer, x):
    order = x[:, 0].argsort()
    out = torch.zeros_like(x)
    out[order] = layer(x[order])
    return out


def _every_other(layer, x):
    """The order of two samples is what it was: more than two must be looked at."""
    y, middle = layer(torch.cat([x[::2], x[1::2]])), (len(x) + 1) // 2
    return torch.stack([y[n // 2 + middle * (n % 2)] for n in range(len(x))])


def _by_data(moved, back):
    return lambda layer, x: back(layer(moved(x, x[:, 0].argsort())), x[:, 0].argsort())


ORDERS = {
    "index": _by_data(lambda x, order: x[order], lambda y, order: y[order.argsort()]),
    "index_select": _by_data(
        lambda x, order: x.index_select(0, order), lambda y, order: y.index_select(0, order.argsort())
    ),
    "gather": _by_data(
        lambda x, order: x.gather(0, order[:, None].expand_as(x)),
        lambda y, order: torch.zeros_like(y).scatter(0, order[:, None].expand_as(y), y),
    ),
    "embedding": _by_data(lambda x, order: F.embedding(order, x), lambda y, order: F.embedding(order.argsort(), y)),
    "assigned": _assigned,
    "packed": _packed,
    "by Python": _by_python,
    "flip": lambda layer, x: layer(x.flip(0)).flip(0),
    "roll": lambda layer, x: layer(x.roll(1, 0)).roll(-1, 0),
    "slices": lambda layer, x: torch.cat([y := layer(torch.cat([x[1:], x[:1]])), y])[len(x) - 1 : 2 * len(x) - 1],
    "every other": _every_other,
    "reversed": lambda layer, x: torch.stack(layer(torch.stack(x.unbind()[::-1])).unbind()[::-1]),
}


class UsedTwice(nn.Module):
    """Uses a layer on the samples as they come and in another order, so that its gradient is wrong if misread."""

    def __init__(self, order):
        super().__init__()
        self.order, self.layer, self.head = order, nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.order(self.layer, self.layer(x).tanh()).tanh())


@pytest.mark.parametrize("batch", [None, 2, 5])
@pytest.mark.parametrize("measure", ["Fisher", "MAS"])
@pytest.mark.parametrize("order", ORDERS)
def test_another_order(order, measure, batch):
    model, x = UsedTwice(ORDERS[order]).double(), torch.randn(9, 4).double()
    x[:2] = x[:2][x[:2, 0].argsort()]  # the plan's two samples are in order
    assert_agrees(model, x, None, MEASURES[measure], batch=batch)


@pytest.mark.parametrize("samples", [2, 3, 8])
def test_samples_and_positions_taken_for_each_other(samples):
    """``[N, T, d]`` viewed as ``[T, N, d]`` has the shape of samples second, but other rows."""

    class Viewed(UsedTwice):
        def forward(self, x):
            y = self.layer(x).tanh()
            return self.head(self.layer(y.view(y.shape[1], y.shape[0], 4)).view(y.shape).mean(1))

    assert_agrees(Viewed(None).double(), torch.randn(samples, 3, 4).double(), None, MEASURES["Fisher"])


class SeenBatches(nn.Module):
    """A model that keeps how many samples it was given, each time."""

    def __init__(self, body):
        super().__init__()
        self.body, self.seen = body, []

    def forward(self, x):
        self.seen.append(len(x))
        return self.body(x)


class LastToken(nn.Module):
    """Reads each sequence where the data say that it ends."""

    def __init__(self):
        super().__init__()
        self.table, self.body, self.head = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, tokens):
        h = self.body(self.table(tokens)).tanh()
        return self.head(h[torch.arange(len(tokens)), (tokens > 2).sum(1) % tokens.shape[1]])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (LastToken, lambda dtype: torch.randint(9, (40, 5))),
        (lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), lambda dtype: torch.randn(40, 5, 4).to(dtype)),
        (lambda: UsedTwice(lambda layer, x: layer(x[:, [2, 0, 1, 3]])), lambda dtype: torch.randn(40, 4).to(dtype)),
    ],
)
def test_what_does_not_move_samples_is_still_measured_together(make, inputs, dtype):
    model = SeenBatches(make().to(dtype))
    sample_importance(model, [inputs(dtype)], LogLikelihood(), SQUARE)
    assert model.seen.count(1) == 3  # to make the plan: the two that it is made from, and the last of the chunk
    assert 40 in model.seen


def test_gradients_of_very_different_size():
    """A sample whose gradients are tiny against another's is as wrong when misread."""
    x = torch.randn(6, 4).double()
    x[:3] *= 1e-6

    def order(layer, y):
        return layer(y[[2, 0, 1, 3, 4, 5]])[[1, 2, 0, 3, 4, 5]] if len(y) == 6 else layer(y)

    class Scaled(UsedTwice):
        def forward(self, x):
            return self.head(self.order(self.layer, self.layer(x)) * x.norm(dim=1, keepdim=True))

    model = SeenBatches(Scaled(order).double())
    sample_importance(model, [x], LogLikelihood(), SQUARE)
    assert model.seen.count(1) == 3 + 6


def test_routes_by_data():
    x, p = torch.randn(4, 5, requires_grad=True) * 1.0, nn.Parameter(torch.randn(4, 5))
    order = torch.tensor([1, 0, 3, 2])
    assert route_of(x[order]).by_data
    assert route_of(x.sort(0).values).by_data
    assert not route_of(p[order] + x).by_data
    assert not route_of(F.embedding(order, p)).by_data
    assert not route_of(x.tanh().sum(1)).takes_parts
    assert not route_of(torch.cat([x[:, 1:3], x], 1)[:, 5:]).takes_parts
    assert not route_of(x.split([2, 3], -1)[1] + x.select(-1, 0)[:, None]).takes_parts
    assert route_of(torch.cat([x[1:], x[:1]])).takes_parts
    assert route_of((x * 1)[:2]).way != route_of((x * 1)[1:3]).way
    assert route_of((x * 1)[:2]).way == route_of((x * 1)[:2]).way


def test_draws_of_the_users_stay_as_they_are():
    torch.manual_seed(5)
    sample_importance(UsedTwice(ORDERS["index"]), [torch.ones(4, 4)], LogLikelihood(), SQUARE)
    after = torch.rand(3)
    torch.manual_seed(5)
    UsedTwice(ORDERS["index"])
    assert torch.equal(after, torch.rand(3))
