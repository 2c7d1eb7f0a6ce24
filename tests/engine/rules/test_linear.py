"""Linear layers and their relatives, on plain inputs and along sequences."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.engine.agreement import MEASURES, assert_agrees

BOTH_PHI = ["Fisher", "MAS"]


class Along(nn.Module):
    """A layer along a sequence, in one of the layouts that people use, then the mean over positions."""

    def __init__(self, layout: str, *, bias: bool = True) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3, bias=bias)
        self.layout = layout

    def forward(self, x):
        n, t, d = x.shape
        if self.layout == "batch first":
            y = self.layer(x)
        elif self.layout == "sequence first":
            y = self.layer(x.transpose(0, 1)).transpose(0, 1)
        elif self.layout == "merged":
            y = self.layer(x.reshape(n * t, d)).view(n, t, -1)
        elif self.layout == "merged, sequence first":
            y = self.layer(x.transpose(0, 1).reshape(t * n, d)).view(t, n, -1).transpose(0, 1)
        elif self.layout == "merged, in the middle":
            x = torch.stack([x, x.cos()])
            y = self.layer(x.view(2, n * t, d)).view(2, n, t, -1).sum(0)
        else:
            y = self.layer(x[:, :, None, None].tanh()).squeeze(2).squeeze(2)
        return y.tanh().sum(1)


@pytest.mark.parametrize("measure", BOTH_PHI)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize(
    "layout",
    ["batch first", "sequence first", "merged", "merged, sequence first", "merged, in the middle", "more dimensions"],
)
def test_along_a_sequence(layout, length, bias, measure):
    # Five samples: as many as positions in one of the cases.
    model = Along(layout, bias=bias).double()
    assert_agrees(model, torch.randn(5, length, 4).double(), None, MEASURES[measure])


class Twice(nn.Module):
    """A layer used twice, once on what it made itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.layer(self.layer(x).tanh()).tanh())


class Tied(nn.Module):
    """An autoencoder whose decoder is the encoder's transpose, written with ``.T``."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3))

    def forward(self, x):
        return (x @ self.weight).tanh() @ self.weight.T


class Sliced(nn.Module):
    """One parameter whose disjoint parts are separate layers, and which is used in no other way."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(7, 4))
        self.bias = nn.Parameter(torch.randn(7))

    def forward(self, x):
        hidden = F.linear(x, self.weight[:4], self.bias[:4]).tanh()
        return F.linear(hidden, self.weight[4:], self.bias[4:])


class Overlapping(Sliced):
    def forward(self, x):
        hidden = F.linear(x, self.weight[:4], self.bias[:4]).tanh()
        return F.linear(hidden, self.weight[2:6], self.bias[2:6])


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("model", [Twice, Tied, Sliced, Overlapping])
def test_shared_weights_and_parts_of_them(model, measure):
    model = model().double()
    classes = model(torch.zeros(1, 4).double()).shape[1]
    assert_agrees(model, torch.randn(5, 4).double(), torch.randint(classes, (5,)), MEASURES[measure])


class Matmul(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3))
        self.bias = nn.Parameter(torch.randn(3))
        self.form = form

    def forward(self, x):
        forms = {
            "@": lambda: x @ self.weight + self.bias,
            "matmul": lambda: torch.matmul(x, self.weight) + self.bias,
            "addmm": lambda: torch.addmm(self.bias, x, self.weight),
            "method": lambda: self.bias + x.matmul(self.weight),
            "scaled": lambda: torch.addmm(self.bias, x, self.weight, beta=2.0, alpha=0.5),
            "keywords": lambda: torch.matmul(input=x, other=self.weight) + self.bias,
            "out": lambda: torch.add(torch.mm(x, self.weight), self.bias, alpha=3.0),
            "in place": lambda: (x @ self.weight).add_(self.bias),
            "parameter first": lambda: (self.weight.T @ x.T).T + self.bias,
        }
        return forms[self.form]()


@pytest.mark.parametrize(
    ("form", "fallback"),
    [
        ("@", set()),
        ("matmul", set()),
        ("addmm", set()),
        ("method", set()),
        ("in place", set()),
        ("scaled", {"weight", "bias"}),
        ("keywords", {"weight"}),
        ("out", {"weight", "bias"}),
        ("parameter first", {"weight"}),
    ],
)
def test_every_form_of_a_product(form, fallback):
    for measure in BOTH_PHI:
        assert_agrees(Matmul(form).double(), torch.randn(5, 4).double(), None, MEASURES[measure], fallback=fallback)


class SquareOfItself(nn.Module):
    """A parameter that is the input of its own layer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))

    def forward(self, x):
        return x @ F.linear(self.weight, self.weight)


def test_parameter_that_is_its_own_input():
    assert_agrees(SquareOfItself().double(), torch.randn(4, 3).double(), None, MEASURES["Fisher"], fallback={"weight"})


class Vector(nn.Module):
    """A weight that is a vector, of which ``F.linear`` makes one number a sample."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x):
        return torch.stack([F.linear(x, self.weight), F.linear(x.cos(), self.weight)], 1)


@pytest.mark.parametrize("samples", [1, 5])
def test_weight_that_is_a_vector(samples):
    assert_agrees(Vector().double(), torch.randn(samples, 4).double(), None, MEASURES["Fisher"], fallback={"weight"})
