r"""The active column of Progress & Compress: a network that learns a task with another one's features beside its own.

A lateral connection adds to what layer i is given, before its non-linearity,

.. math:: \alpha_i \odot U_i\,\sigma(V_i h^\text{base}_{i-1} + c_i)

Schwarz et al. 2018, arXiv 1805.06370, equation 1. There every layer has one. Here the output layer has, whose place is
the same in every network: h is what the knowledge base's body makes of an input.
"""

import copy
from typing import Self

import torch
from torch import Tensor, nn

from anchorhold_lab.networks.multi_head import MultiHead, initialise

_WIDTH = 100
"""Of an adaptor's hidden layer."""
_SCALE = 0.1
"""Up to which α begins: little of what the knowledge base knows, so that the column begins with its own."""


class ActiveColumn(nn.Module):
    """A network like the knowledge base, whose outputs also look at features that the knowledge base has lent.

    What is lent is a copy, so that the column says the same as long as it is not trained itself, whatever becomes of
    the knowledge base that is taught by it.

    Args:
        base: the knowledge base.
        inputs: some inputs, which tell how many features and classes it has.
    """

    def __init__(self, base: MultiHead, inputs: Tensor) -> None:
        super().__init__()
        self.own = copy.deepcopy(base)
        self.lent = copy.deepcopy(base.body).requires_grad_(False).eval()
        with torch.no_grad():
            features = self.lent(inputs)
            classes = copy.deepcopy(base).eval()(inputs).shape[-1]
        like = {"device": features.device, "dtype": features.dtype}
        self.lateral = nn.ModuleList(_Lateral(features.shape[-1], classes).to(**like) for _ in base.heads)

    def forward(self, x: Tensor, head: int = 0) -> Tensor:
        """Return the logits of one head."""
        logits: Tensor = self.own(x, head) + self.lateral[head](self.lent(x))
        return logits

    def train(self, mode: bool = True) -> Self:
        """Train, or do not; what is lent is only looked at."""
        super().train(mode)
        self.lent.eval()
        return self

    def borrow(self, base: MultiHead) -> None:
        """Look at the knowledge base as it is now."""
        self.lent.load_state_dict(base.body.state_dict())

    def initialise(self, generator: torch.Generator | None = None) -> None:
        """Draw all weights anew that are trained."""
        initialise(self, self.own.bias, generator)


class _Lateral(nn.Module):
    """From lent features to what is added to logits."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.down = nn.Linear(features, _WIDTH)
        self.up = nn.Linear(_WIDTH, classes, bias=False)
        self.scale = nn.Parameter(torch.empty(classes))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw α, as :func:`~anchorhold_lab.networks.multi_head.draw_weights` asks of what is no layer of torch's."""
        nn.init.uniform_(self.scale, 0.0, _SCALE)

    def forward(self, features: Tensor) -> Tensor:
        added: Tensor = self.scale * self.up(self.down(features).relu())
        return added
