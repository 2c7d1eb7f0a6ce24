"""Send rows of output gradients backward, and collect the gradients that arrive.

Rows go together, as a batch dimension of their own, to the places where rules read them (:class:`BackwardRows`). For
parameters that no rule covers, :class:`Fallback` makes each sample's gradient: first by :mod:`torch.func`, for all
samples of a chunk at once; where vmap cannot follow the model (a recurrent layer, data-dependent control flow), by
autograd, one sample at a time. That is exact too, and slower.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vjp, vmap
from torch.utils._pytree import tree_map

from anchorhold.engine.batches import Batch, Forward, Replaceable
from anchorhold.engine.reductions import Reduction, at_least_single
from anchorhold.engine.tracing.samples import same_values


class BackwardRows:
    """Sends rows backward and gathers what arrives: in the same memory for every block of rows.

    On a CPU, memory of this size would be mapped anew each time, and touching new pages costs as much as the
    arithmetic.
    """

    def __init__(self) -> None:
        self._batched = True
        self._kept: dict[int, Tensor] = {}

    def gradients_at(self, outputs: Tensor, edges: list[Any], u: Tensor, together: int) -> list[Tensor | None]:
        """Return the gradients ``[V, ...]`` at each edge for output gradients ``u`` of ``[V, ...]``.

        Args:
            outputs: what the model has returned.
            edges: where gradients are wanted.
            u: the rows.
            together: how many of them go at once.
        """
        arrived: list[Tensor | None] = [None] * len(edges)
        first = 0
        while first < len(u):
            rows = u[first : first + (together if self._batched else 1)]
            try:
                found = torch.autograd.grad(
                    outputs,
                    edges,
                    rows if len(rows) > 1 else rows[0],
                    retain_graph=True,
                    allow_unused=True,
                    is_grads_batched=len(rows) > 1,
                )
            except RuntimeError:
                if len(rows) == 1:
                    raise
                # Some backward pass cannot be batched; one row at a time either works or raises its own error.
                self._batched = False
                continue
            blocks: list[Tensor | None] = [g if g is None or len(rows) > 1 else g.unsqueeze(0) for g in found]
            if len(rows) == len(u):
                return blocks
            for place, block in enumerate(blocks):
                if block is not None:
                    gathered = arrived[place] = self._memory_for(place, len(u), block[0])
                    gathered[first : first + len(rows)] = block
            first += len(rows)
        return arrived

    def _memory_for(self, place: int, count: int, like: Tensor) -> Tensor:
        """Return memory for ``count`` tensors like the one given, as ``[count, *like.shape]``."""
        # The first dimension is the samples', mostly: with a sample's rows side by side they are one matrix.
        shape = (*like.shape[:1], count, *like.shape[1:])
        kept = self._kept.get(place)
        if kept is None or len(kept) < shape[0] or kept.shape[1:] != shape[1:] or kept.dtype != like.dtype:
            kept = self._kept[place] = like.new_empty(shape)
        return kept[: shape[0]].movedim(min(1, like.ndim), 0)


_REFUSALS = (RuntimeError, ValueError, TypeError, AttributeError, IndexError, NotImplementedError)
"""What vmap raises where it cannot follow a model: many things, in many words."""


class Fallback:
    """Adds the importance of parameters without a rule, and remembers which way it took."""

    def __init__(self, model: nn.Module, forward: Forward, reduction: Reduction, budget: int) -> None:
        self.model = model
        self.forward = forward
        self.reduction = reduction
        self.budget = budget
        self.way = "torch.func"
        self._checked: set[tuple[object, ...]] = set()

    def add(self, parameters: Mapping[str, nn.Parameter], batch: Batch, u: Tensor) -> None:
        """Add the gradients for rows ``u`` of ``[V, N, ...]``, within the byte budget."""
        one = max(1, sum(p.numel() * at_least_single(p.dtype).itemsize for p in parameters.values()))
        rows = max(1, min(len(u), self.budget // one))
        samples = max(1, min(batch.size, self.budget // (one * rows)))
        for first in range(0, batch.size, samples):
            part = batch[first : first + samples]
            for row in range(0, len(u), rows):
                self._add_block(parameters, part, u[row : row + rows, first : first + samples])

    def _add_block(self, parameters: Mapping[str, nn.Parameter], batch: Batch, u: Tensor) -> None:
        if self.way == "torch.func":
            try:
                found = self._by_vmap(parameters, batch, u)
            except _REFUSALS:
                found = None
            if found is not None and self._agrees(found, parameters, batch, u):
                self.reduction.add_gradients(found, lead=2)
                return
            # The plain way either works or raises the model's own error.
            self.way = "autograd, one sample at a time"
        for n in range(batch.size):
            for gradients in self._by_autograd(parameters, batch[n : n + 1], u[:, n : n + 1]):
                self.reduction.add_gradients(gradients, lead=0)

    def _agrees(
        self, found: Mapping[str, Tensor], parameters: Mapping[str, nn.Parameter], batch: Batch, u: Tensor
    ) -> bool:
        """Check the shapes of vmap's gradients, and once for every kind of block the values of a few of them.

        Some of torch's batching rules are wrong without a sign of it: that of PReLU's backward pass in 2.13 for several
        samples, that of cdist's for several rows, be it of one sample. Which kernel is taken follows from sizes too. So
        the last sample of a block that counts is compared with autograd's, in its first row and its last.
        """
        if any(found[name].shape != (batch.size, len(u), *p.shape) for name, p in parameters.items()):
            return False
        kind = (batch.size, len(u), *batch.sample_shapes(), *parameters)
        counted = u.reshape(len(u), batch.size, -1).any(2).nonzero().tolist() if kind not in self._checked else []
        if not counted:
            return True
        self._checked.add(kind)
        last = max(n for _, n in counted)
        rows = sorted({choose(row for row, n in counted if n == last) for choose in (min, max)})
        expected = self._by_autograd(parameters, batch[last : last + 1], u[rows, last : last + 1])
        return all(
            same_values(gradient, found[name][last, row])
            for row, gradients in zip(rows, expected, strict=True)
            for name, gradient in gradients.items()
        )

    def _by_autograd(
        self, parameters: Mapping[str, nn.Parameter], sample: Batch, u: Tensor
    ) -> Iterator[dict[str, Tensor]]:
        """Yield the gradients of each row for a single sample."""
        outputs = self.forward(self.model, sample.inputs)
        for row in u:
            found = torch.autograd.grad(
                outputs, list(parameters.values()), row, retain_graph=True, allow_unused=True, materialize_grads=True
            )
            gradients = [gradient.to_dense() if gradient.is_sparse else gradient for gradient in found]
            yield dict(zip(parameters, gradients, strict=True))

    def _by_vmap(self, parameters: Mapping[str, nn.Parameter], batch: Batch, u: Tensor) -> dict[str, Tensor]:
        """Return the gradients as ``[N, V, *shape]``."""
        model = Replaceable(self.model, self.forward)
        slots = dict(model.slots())
        names = {id(parameter): name for name, parameter in parameters.items()}
        # All others are constants here; as they are, autograd would follow them through the gradients.
        constants = {slot: tensor.detach() for slot, tensor in slots.items() if id(tensor) not in names}
        places = {slot: names[id(tensor)] for slot, tensor in slots.items() if id(tensor) in names}
        if set(places.values()) != parameters.keys():
            raise ValueError("a parameter is not part of the model, so it cannot be replaced for a call")

        def outputs(values: dict[str, Tensor], inputs: Any) -> Tensor:
            return model.call_with({**constants, **{slot: values[name] for slot, name in places.items()}}, inputs)

        dims = batch.dims()

        def of_sample(inputs: Any, rows: Tensor) -> dict[str, Tensor]:
            single = tree_map(lambda leaf, dim: leaf if dim is None else leaf.unsqueeze(0), inputs, dims)
            values = {name: parameter.detach() for name, parameter in parameters.items()}
            pull_back = vjp(lambda values: outputs(values, single), values)[1]
            found = vmap(lambda row: pull_back(row.unsqueeze(0))[0])(rows)
            assert isinstance(found, dict)
            return found

        gradients: dict[str, Tensor] = vmap(of_sample, in_dims=(dims, 1))(batch.inputs, u)
        return gradients
