"""Per-sample gradients of parameters that no rule covers: exact, but slower.

First by :mod:`torch.func`, for all samples of a chunk at once; where vmap cannot follow the model (a recurrent layer,
data-dependent control flow), by autograd, one sample at a time.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.utils._pytree import tree_map

from holdfast.importance.batches import Batch, Forward
from holdfast.importance.phi import Phi


class _Call(nn.Module):
    """A model together with how it is called, so that its parameters can be replaced for one call."""

    def __init__(self, model: nn.Module, forward: Forward) -> None:
        super().__init__()
        self.model = model
        self.call = forward

    def forward(self, inputs: Any) -> Tensor:
        return self.call(self.model, inputs)


class Fallback:
    """Adds the importance of parameters without a rule, and remembers which way it took."""

    def __init__(self, model: nn.Module, forward: Forward, phi: Phi, budget: int) -> None:
        self.model = model
        self.forward = forward
        self.phi = phi
        self.budget = budget
        self.way = "torch.func"

    def add(self, totals: Mapping[str, Tensor], parameters: Mapping[str, nn.Parameter], batch: Batch, u: Tensor) -> None:
        """Add φ of the gradients for rows ``u`` of ``[V, N, ...]`` to ``totals``, within the byte budget."""
        one = sum(p.numel() * p.element_size() for p in parameters.values())
        rows = max(1, min(len(u), self.budget // one))
        samples = max(1, min(batch.size, self.budget // (one * rows)))
        for first in range(0, batch.size, samples):
            part = batch[first : first + samples]
            for row in range(0, len(u), rows):
                self._add_block(totals, parameters, part, u[row : row + rows, first : first + samples])

    def _add_block(
        self, totals: Mapping[str, Tensor], parameters: Mapping[str, nn.Parameter], batch: Batch, u: Tensor
    ) -> None:
        if self.way == "torch.func":
            try:
                found = self._by_vmap(parameters, batch, u)
            except (RuntimeError, ValueError, NotImplementedError):
                # vmap refuses in many words; the plain way either works or raises the model's own error.
                self.way = "autograd, one sample at a time"
            else:
                for name, gradient in found.items():
                    totals[name].add_(self.phi.sum(gradient, (0, 1)))
                return
        for n in range(batch.size):
            outputs = self.forward(self.model, batch[n : n + 1].inputs)
            for row in u:
                gradients = torch.autograd.grad(
                    outputs, list(parameters.values()), row[n : n + 1], retain_graph=True, allow_unused=True
                )
                for name, found_or_none in zip(parameters, gradients, strict=True):
                    if found_or_none is not None:
                        totals[name].add_(self.phi(found_or_none))

    def _by_vmap(self, parameters: Mapping[str, nn.Parameter], batch: Batch, u: Tensor) -> dict[str, Tensor]:
        """Return the gradients as ``[N, V, *shape]``."""
        call = _Call(self.model, self.forward)
        values = {f"model.{name}": p.detach() for name, p in parameters.items()}
        in_dims = tree_map(lambda leaf: 0 if batch.holds_samples(leaf) else None, batch.inputs)

        def of_sample(inputs: Any, rows: Tensor) -> dict[str, Tensor]:
            single = tree_map(
                lambda leaf, dim: leaf if dim is None else leaf.unsqueeze(0), inputs, in_dims, is_leaf=lambda x: x is None
            )
            _, pull_back = vjp(lambda replaced: functional_call(call, replaced, (single,)), values)
            found: dict[str, Tensor] = vmap(lambda row: pull_back(row.unsqueeze(0))[0])(rows)
            return found

        gradients = vmap(of_sample, in_dims=(in_dims, 1))(batch.inputs, u)
        return {name: gradients[f"model.{name}"] for name in parameters}
