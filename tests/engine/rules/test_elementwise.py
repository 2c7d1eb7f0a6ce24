"""Parameters that are added, multiplied or expanded."""

import pytest
import torch
from torch import nn

from tests.engine.agreement import MEASURES, assert_agrees


class Broadcast(nn.Module):
    def __init__(self, shape: tuple[int, ...], form) -> None:
        super().__init__()
        self.parameter = nn.Parameter(torch.randn(shape))
        self.head = nn.Linear(4, 3)
        self.form = form

    def forward(self, x):
        return self.head(self.form(x, self.parameter).tanh().reshape(len(x), -1, 4).sum(1))


FORMS = {
    "x + p": lambda x, p: x + p,
    "p + x": lambda x, p: p + x,
    "x * p": lambda x, p: x * p,
    "p * x": lambda x, p: p * x,
    "torch.mul": torch.mul,
    "in place": lambda x, p: (x * 1.0).add_(p),
}


@pytest.mark.parametrize("measure", ["Fisher", "MAS"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(4,), (1, 4), (3, 4), (3, 1), (1, 3, 4), (1, 1, 4), (1, 1, 1), (1,), ()], ids=str)
def test_broadcast(shape, form, measure):
    # Three samples of three positions, so that a careless guess at the layout would fit too.
    assert_agrees(Broadcast(shape, FORMS[form]).double(), torch.randn(3, 3, 4).double(), None, MEASURES[measure])


@pytest.mark.parametrize(
    ("name", "shape", "form", "fallback"),
    [
        ("out wider than x", (3, 4), lambda x, p: x[:, :1] + p, set()),
        ("sequence first", (4,), lambda x, p: (x.transpose(0, 1) * p).transpose(0, 1), set()),
        ("sequence first, a value a position", (3, 1, 4), lambda x, p: (x.transpose(0, 1) * p).transpose(0, 1), True),
        ("difference", (4,), lambda x, p: x - p, True),
        ("p wider than x", (3, 2, 1, 4), lambda x, p: (x.unsqueeze(1) * p[0]).sum(1), set()),
        ("square", (4,), lambda x, p: x * (p * p), True),
        ("both", (4,), lambda x, p: x * p + p, set()),
        ("slice", (9, 4), lambda x, p: x + p[2:5], set()),
        ("column", (4, 9), lambda x, p: x * p[:, 2], set()),
        ("expanded", (1, 1, 4), lambda x, p: torch.cat([p.expand(len(x), -1, -1), x], 1).cumsum(1), set()),
        ("expanded to more", (4,), lambda x, p: p.expand(len(x), 3, 4) * x, set()),
        (
            "expanded, sequence first",
            (3, 1, 4),
            lambda x, p: torch.cat([p.expand(3, len(x), 4), x.transpose(0, 1)]).cumsum(0).transpose(0, 1),
            set(),
        ),
        ("expanded to no samples", (1, 4), lambda x, p: p.expand(3, 4) * x, True),
    ],
)
def test_form(name, shape, form, fallback):
    for measure in ("Fisher", "MAS"):
        model = Broadcast(shape, form).double()
        missing = {"parameter"} if fallback is True else fallback
        assert_agrees(model, torch.randn(3, 3, 4).double(), None, MEASURES[measure], fallback=missing)
