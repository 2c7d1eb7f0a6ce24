"""Small networks of every kind of layer, in float64, and their Fisher information one sample and label at a time."""

import torch
import torch.nn.functional as F
from torch import nn
from transformers.pytorch_utils import Conv1D

from anchorhold.engine.reductions import joined
from tests import helpers


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 7)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(torch.tanh(self.embedding(x)).mean(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(7, 4, padding_idx=0), nn.LayerNorm(4)
        self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        e = self.embedding(x)
        return self.head(self.norm(e + self.attention(e, e, e)[0])).mean(1)


class CrossAttention(nn.Module):
    """The three slices of one weight have inputs of their own."""

    def __init__(self):
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.attention(x, 2 * x, x + 1)[0]).mean(1)


class Twice(nn.Module):
    """A layer that is used in two places."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.layer(torch.tanh(self.layer(x)))))


class OwnProduct(nn.Module):
    """A square weight that lies inputs first, and whose bias is added by itself."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4))

    def forward(self, x):
        return torch.tanh(x @ self.weight) + self.bias


def _mlp():
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3, bias=False))


def _convolutions():
    return nn.Sequential(
        *(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(36, 3))
    )


def _grouped():
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, groups=2), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3))


NETWORKS = {
    "mlp": (_mlp, (4,)),
    "along a sequence": (lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), (6, 4)),
    "inputs first": (lambda: nn.Sequential(Conv1D(5, 4), nn.Tanh(), Conv1D(3, 5)), (4,)),
    "convolutions": (_convolutions, (2, 4, 4)),
    "grouped": (_grouped, (2, 4, 4)),
    "tied": (Tied, None),
    "recurrent": (Recurrent, (5, 3)),
    "attention": (Attention, None),
    "cross-attention": (CrossAttention, (5, 4)),
    "twice": (Twice, (4,)),
    "own product": (lambda: nn.Sequential(OwnProduct(), nn.Linear(4, 3)), (4,)),
}


def network_and_inputs(kind, seed=0, samples=6):
    make, shape = NETWORKS[kind]
    torch.manual_seed(seed)
    model = make().double().eval()
    x = torch.randint(7, (samples, 5)) if shape is None else torch.randn(samples, *shape, dtype=torch.float64)
    return model, x


def guarded(model, x, form, measure="EWC", **more):
    """Return a guard that has consolidated two batches, each half of the samples."""
    return helpers.guarded(model, [x[:4], x[4:]], measure, form=form, **more)


def weighted_gradients(model, x):
    """Return the weight and the gradients of every sample, position and label, by autograd, one by one."""
    parameters = dict(model.named_parameters())
    found = []
    for n in range(len(x)):
        log_q = F.log_softmax(model(x[n : n + 1]), -1).flatten(0, -2)
        for position in log_q:
            for score in position:
                gradients = torch.autograd.grad(
                    score, list(parameters.values()), retain_graph=True, allow_unused=True, materialize_grads=True
                )
                found.append((score.exp().item() / len(x), dict(zip(parameters, gradients, strict=True))))
    return found


def block_gradients(model, x, block):
    """Return the same for one block, as weights and matrices."""
    return [(weight, joined(block, gradients)) for weight, gradients in weighted_gradients(model, x)]


def dense_of(matrix):
    """Return Q as a matrix over the entries of [W b], by applying it to each of them."""
    outputs, inputs = matrix.block.size
    columns = []
    for entry in range(outputs * inputs):
        one = torch.zeros(outputs * inputs, dtype=torch.float64)
        one[entry] = 1
        columns.append(joined(matrix.block, matrix.apply(parts(matrix.block, one))).flatten())
    return torch.stack(columns, 1)


def parts(block, flat):
    """Return a vector over the entries of [W b] as a displacement."""
    outputs, inputs = block.size
    matrix = flat.view(outputs, inputs)
    weight = matrix[:, : inputs - len(block.parameters) + 1]
    weight = (weight.T if block.inputs_first else weight).reshape(block.shape)
    return dict(zip(block.parameters, (weight, matrix[:, -1]), strict=False))
