"""Networks of a few dozen weights in double precision, and the batches that they learn."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.adapters.by_hand import adapt

CLASSES, SAMPLES = 3, 6


def mlp():
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, CLASSES))


class Deep(nn.Module):
    """A norm, a layer without a bias, units that die, and one layer that is used twice."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(4, 5), nn.LayerNorm(5)
        self.again, self.last = nn.Linear(5, 5, bias=False), nn.Linear(5, CLASSES)

    def forward(self, x):
        x = self.norm(self.first(x)).relu()
        return self.last(torch.tanh(self.again(torch.tanh(self.again(x)))))


class Images(nn.Module):
    """Convolutions, one of them in groups, with a batch norm; takes the 16 numbers of a sample as an image."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2)
        self.groups, self.head = nn.Conv2d(2, 4, 2, stride=2, groups=2, bias=False), nn.Linear(16, CLASSES)

    def forward(self, x):
        x = self.norm(self.conv(x.view(-1, 1, 4, 4))).tanh()
        return self.head(self.groups(x).tanh().flatten(1))


class Attention(nn.Module):
    """A language model of one layer: an embedding, causal attention, a norm, and logits at every position."""

    def __init__(self, tied=False):
        super().__init__()
        self.tokens, self.places = nn.Embedding(5, 4), nn.Parameter(torch.zeros(3, 4))
        self.query, self.value, self.norm = nn.Linear(4, 8), nn.Linear(4, 4), nn.LayerNorm(4)
        self.head = nn.Linear(4, 5, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, x):
        x = self.tokens(x) + self.places
        query, key = self.query(x).chunk(2, -1)
        return self.head(self.norm(x + F.scaled_dot_product_attention(query, key, self.value(x), is_causal=True)))


class Recurrent(nn.Module):
    """Layers that only the general engine knows."""

    def __init__(self):
        super().__init__()
        self.rows, self.head = nn.GRU(2, 3, batch_first=True), nn.Linear(3, CLASSES)

    def forward(self, x):
        return self.head(self.rows(x.view(-1, 2, 2))[0][:, -1])


class Heads(nn.Module):
    """A body, and a head for each task."""

    def __init__(self):
        super().__init__()
        self.body, self.heads = nn.Linear(4, 5), nn.ModuleList(nn.Linear(5, CLASSES) for _ in range(3))

    def forward(self, x, task=0):
        return self.heads[task](torch.tanh(self.body(x)))


def adapted():
    return adapt(mlp(), ("0", "2"))


def adapted_sequence():
    from tests.adapters.by_hand import networks  # noqa: PLC0415

    model, _, layers = networks()["sequence"]
    return adapt(model, layers)


NETWORKS = {
    "mlp": mlp,
    "deep": Deep,
    "images": Images,
    "attention": Attention,
    "tied": lambda: Attention(tied=True),
    "recurrent": Recurrent,
    "heads": Heads,
    "adapted": adapted,
    "adapted sequence": adapted_sequence,
    "binary": mlp,
    "regression": lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)),
}


def network(name):
    """Return a network whose weights are the same numbers on every machine.

    Whole numbers are drawn, since drawing others rounds as the processor does, in single precision before ``double()``.
    """
    made = NETWORKS[name]().double()
    given_weights(made)
    return made


def given_weights(module, seed=0):
    drawn = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            spread = 1.0 if p.ndim < 2 else 2.0 / p[0].numel() ** 0.5
            p.copy_(spread * _numbers(drawn, *p.shape))


def _numbers(drawn, *shape):
    """Return numbers between -1 and 1."""
    return torch.randint(-(2**20), 2**20, shape, generator=drawn).double() / 2**20


def batches(network, task, count=4):
    """Return a task's batches, which are others in each task."""
    drawn = torch.Generator().manual_seed(100 + task)

    def draw(*shape):
        return 2 * _numbers(drawn, *shape)

    def whole(high, *shape):
        return torch.randint(high, shape, generator=drawn)

    kinds = {
        "images": lambda: (draw(SAMPLES, 16) + task, whole(CLASSES, SAMPLES)),
        "attention": lambda: (whole(5, SAMPLES, 3), whole(5, SAMPLES, 3)),
        "tied": lambda: (whole(5, SAMPLES, 3), whole(5, SAMPLES, 3)),
        "adapted sequence": lambda: (whole(6, SAMPLES, 3), whole(CLASSES, SAMPLES)),
        "regression": lambda: (draw(SAMPLES, 4), draw(SAMPLES, 2)),
        "binary": lambda: (draw(SAMPLES, 4), whole(2, SAMPLES, CLASSES).double()),
    }
    usual = lambda: (draw(SAMPLES, 4) + 0.5 * task, whole(CLASSES, SAMPLES))  # noqa: E731
    return [kinds.get(network, usual)() for _ in range(count)]


def loss_of(outputs, targets):
    if targets.is_floating_point():
        return F.mse_loss(outputs, targets)
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())
