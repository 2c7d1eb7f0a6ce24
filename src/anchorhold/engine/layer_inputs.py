r"""The inputs of a model's layers, :math:`A = E[\bar a\bar a^T]` of each, from forward passes alone.

The engine sees inputs beside δ, and δ takes scores, labels and a backward pass. Whoever wants the space that inputs lie
in, such as a projection, needs none of it: a weight that is used in several places has the inputs of all of them, and
one that is used from both sides, as a tied embedding is, has two such spaces.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anchorhold.engine.batches import Batch, Forward, KeptInputs, call_model
from anchorhold.engine.conventions import BatchReader
from anchorhold.engine.isolation import isolated
from anchorhold.engine.phi import SQUARE
from anchorhold.engine.reductions import Block, FactorReduction, Side, Sides, factors_of
from anchorhold.engine.refusals import refuse_merged
from anchorhold.engine.rules.base import LookedUp, Part, Products, Rule, tile_bytes
from anchorhold.engine.rules.convolution import Convolution
from anchorhold.engine.tracing.uses import Use, read_graph, record
from anchorhold.tensors.storage import widest_dtype

CHUNK = 256
"""Samples that go forward at once."""

ACROSS = "#across"
"""What is added to a block's name for its other side: where the weight's outputs serve as inputs, as in a tied head."""


def across(block: Block) -> Block:
    """Return the weight of a block with inputs and outputs exchanged."""
    name, weight = f"{block.name}{ACROSS}", block.parameters[:1]
    return block._replace(name=name, parameters=weight, inputs_first=not block.inputs_first, looked_up=False)


class LayerInputs:
    """Adds up the outer products of layers' inputs, batch after batch.

    Args:
        model: the network; it is run in eval mode and left as it was.
        blocks: the layers' matrices.
        parameters: all parameters of those blocks, by name.
        forward: how the model is called, ``forward(model, inputs)``; by default ``model(inputs)``.
        samples: stop after this many samples; ``None`` takes every one that is given.
        largest_side: layers with more inputs than this are left out, since A would take the square of it.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: Sequence[Block],
        parameters: Mapping[str, nn.Parameter],
        forward: Forward | None = None,
        samples: int | None = None,
        largest_side: int = 8192,
    ) -> None:
        refuse_merged(model, parameters)
        self.model = model
        self.parameters = dict(parameters)
        self.forward = KeptInputs(forward or call_model)
        self.limit = samples
        self.largest_side = largest_side
        self.seen = 0
        self._blocks = {name: block for block in blocks if block.is_matrix for name in block.parameters}
        self._factors: dict[str, FactorReduction] = {}
        self._marks: dict[str, Tensor] = {}
        self._device = next(iter(self.parameters.values())).device
        self._reader = BatchReader(self._device, model)

    @property
    def full(self) -> bool:
        """Whether as many samples have been seen as were asked for."""
        return self.limit is not None and self.seen >= self.limit

    @property
    def sums(self) -> dict[str, Tensor]:
        """The sums so far, by names from which :func:`inputs_of` and :func:`left_out` read them.

        Sums of several processes may be added, and what is absent from one of them is 0.
        """
        found = self._marks | {"samples": self.seen * self._one()}
        for factor in self._factors.values():
            factor.finish()
            found |= factor.sums
        return found

    def update(self, batch: Any) -> None:
        """Add a batch, or what is still wanted of it."""
        if self.full:
            return
        with isolated(self.model, self.parameters.values()):
            read = self._reader.read(batch)
            read = read if self.limit is None else read[: self.limit - self.seen]
            for first in range(0, read.size, CHUNK):
                self._add(read[first : first + CHUNK])
        self.seen += read.size

    def _add(self, batch: Batch) -> None:
        uses, outputs = record(self.model, self.parameters, self.forward, batch.inputs)
        with torch.no_grad():
            for use in uses:
                for role, part in use.parts.items():
                    if part.name in self._blocks and not self._add_use(use, role, part):
                        self._note_hidden(part.name, batch.size)
        for name in read_graph(outputs, self.parameters)[0]:  # uses that no rule saw
            if name in self._blocks:
                self._note_hidden(name, batch.size)

    def _add_use(self, use: Use, role: str, part: Part) -> bool:
        """Add the inputs of a layer's use. Return False where they cannot be seen."""
        block, rule = self._blocks[part.name], use.rule
        names = {part.name for part in use.parts.values()}
        if part.name != block.parameters[0]:  # a bias: with its weight, or by itself
            return block.parameters[0] in names
        axis = _input_axis(rule, part, self.parameters[part.name]) if role == "weight" else None
        if axis is None or use.input_changed or type(rule).inputs is Rule.inputs:
            return False
        own = axis == (0 if block.inputs_first else 1)
        bias = len(block.parameters) > 1 and block.parameters[1] in names
        if bias and not own:
            self._note_hidden(block.parameters[1], 1)
        side = block if own else across(block)
        return all(self._add_inputs(side, inputs, bias=bias and own) for inputs in _tiles(rule))

    def _add_inputs(self, block: Block, inputs: Tensor | LookedUp, *, bias: bool) -> bool:
        looked_up = isinstance(inputs, LookedUp)
        if not looked_up and self._is_large(block):
            return True  # and left out for that
        factor = self._factor(block, "diagonal" if looked_up else "dense")
        if not looked_up and factor.sums[f"{block.name}/A"].ndim == 1:
            return False  # looked up before, of which only the rows were kept
        a = inputs if isinstance(inputs, LookedUp) else inputs.to(widest_dtype(inputs.device))
        # Of δ nothing is asked: the factor of the outputs is taken to be 1.
        factor.add_products(block, Products(self._one().view(1), a, bias=bias), first=True)
        return True

    def _factor(self, block: Block, side: Side) -> FactorReduction:
        """Return the sums of a block, made at its first use."""
        if block.name not in self._factors:
            made = FactorReduction(SQUARE, [block], self.parameters, (), {block.name: Sides("identity", side)})
            made.sums = {key: tensor.to(widest_dtype(tensor.device)) for key, tensor in made.sums.items()}
            self._factors[block.name] = made
        return self._factors[block.name]

    def _is_large(self, block: Block) -> bool:
        if block.size[1] > self.largest_side:
            self._marks[f"{block.parameters[0]}/large"] = self._one()
        return block.size[1] > self.largest_side

    def _note_hidden(self, name: str, samples: int) -> None:
        """Remember a use whose inputs cannot be seen; that of a bias has an input of 1 alone, whatever it is."""
        block = self._blocks[name]
        if name == block.parameters[0]:
            self._marks[f"{name}/hidden"] = self._one()
        elif not self._is_large(block):
            sums = self._factor(block, "dense").sums
            sums[f"{block.name}/A"][-1, -1] += samples
            sums[f"{block.name}/mass"] += samples

    def _one(self) -> Tensor:
        return torch.ones((), dtype=widest_dtype(self._device), device=self._device)


def inputs_of(block: Block, sums: Mapping[str, Tensor]) -> Tensor | None:
    """Return A of a block, a vector where inputs are looked up; ``None`` where none were seen."""
    return factors_of(block, sums)[1] if f"{block.name}/A" in sums else None


def left_out(block: Block, sums: Mapping[str, Tensor]) -> str | None:
    """Return why a block's inputs are not known, or not all of them; ``None`` where they are, or there are none."""
    weight = block.parameters[0]
    if f"{weight}/large" in sums:
        return "more inputs than largest_side"
    return "used in a way in which its inputs cannot be seen" if f"{weight}/hidden" in sums else None


def _input_axis(rule: Rule, part: Part, parameter: Tensor) -> int | None:
    """Return along which dimension of a parameter a use's inputs lie: 0 or 1, with all further ones."""
    dim = 0 if rule.inputs_first else 1
    if part.geometry is None:
        return dim
    size, stride, _ = part.geometry
    if parameter.ndim != 2 or len(size) != 2:
        return None
    # A slice of the outputs, as attention has for its queries, sees inputs as the whole does; a transpose exchanges.
    own = [axis for axis in (0, 1) if (size[dim], stride[dim]) == (parameter.shape[axis], parameter.stride(axis))]
    return own[-1] if own else None


def _tiles(rule: Rule) -> Iterator[Tensor | LookedUp]:
    """Yield the inputs of a call, some at a time, since patches of a convolution hold each input many times."""
    a = rule.input.detach()
    without_samples = a.ndim < 2 or (isinstance(rule, Convolution) and a.ndim < rule.weight.ndim)
    tiles: Sequence[Tensor] = (a,)
    if not without_samples and len(a):
        bytes_each = max(1, rule.products_numel(a) * widest_dtype(a.device).itemsize)
        tiles = a.split(max(1, 8 * tile_bytes(a.device) // bytes_each))
    for some in tiles:
        inputs = rule.inputs(some.unsqueeze(0))  # to a rule, all of it is one sample
        assert inputs is not None
        yield inputs
