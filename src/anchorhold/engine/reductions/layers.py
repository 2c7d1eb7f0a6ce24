r"""A layer's weight and bias as one matrix, [W b] of outputs × inputs, and what its gradients are made of.

For a layer :math:`y = W a + b` a sample's gradient is :math:`\sum_t \delta_t \bar a_t^T` with :math:`\bar a = [a; 1]`,
over the positions t at which the layer is used. Most uses bring δ and a; where only the gradients can be had (a weight
that is used in several places, a recurrent layer), they serve as they are.
"""

import math
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from anchorhold.engine.phi import Phi
from anchorhold.engine.reductions.base import Arrival, DiagonalReduction, Reduction, at_least_single
from anchorhold.engine.rules.base import Products, tile_bytes
from anchorhold.tensors.matrices import Precision, products_in


class Block(NamedTuple):
    """Parameters that belong together, such as the weight and the bias of a layer."""

    name: str
    parameters: tuple[str, ...]
    """The weight, and the bias where it belongs to the block."""
    shape: tuple[int, ...] = ()
    """The weight's, where the block is a matrix; nothing for parameters that are held each by itself."""
    inputs_first: bool = False
    """Whether the weight lies as ``[inputs, outputs]``, as an embedding's does, and not as a linear layer's."""
    looked_up: bool = False
    """Whether inputs are rows that are looked up, so that their factor is a diagonal."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """Those of all parameters, where the block is one long vector of them."""

    @property
    def is_matrix(self) -> bool:
        """Whether the block is one; a bias by itself, or the scale of a norm, is not."""
        return len(self.shape) > 1

    @property
    def size(self) -> tuple[int, int]:
        """How many outputs and inputs the matrix has, the bias's input among them."""
        first, rest = self.shape[0], math.prod(self.shape[1:])
        outputs, inputs = (rest, first) if self.inputs_first else (first, rest)
        return outputs, inputs + len(self.parameters) - 1

    @property
    def length(self) -> int:
        """How many weights the vector has."""
        return sum(map(math.prod, self.shapes))


def joined(block: Block, given: Mapping[str, Tensor], lead: int = 0) -> Tensor:
    """Return [W b] of a block as ``[*lead, outputs, inputs]``; a bias that is not given is 0."""
    weight = given[block.parameters[0]].flatten(lead + 1)
    weight = weight.mT if block.inputs_first else weight
    if len(block.parameters) == 1:
        return weight
    bias = given.get(block.parameters[1])
    column = torch.zeros_like(weight[..., :1]) if bias is None else bias.unsqueeze(-1)
    return torch.cat([weight, column], -1)


def taken_apart(block: Block, matrix: Tensor) -> dict[str, Tensor]:
    """Return what :func:`joined` has joined as it was."""
    weight, *bias = block.parameters
    own = matrix[..., : matrix.shape[-1] - len(bias)]
    own = own.mT if block.inputs_first else own
    found = {weight: own.reshape(*matrix.shape[:-2], *block.shape)}
    return found | dict.fromkeys(bias, matrix[..., -1])


class LayerReduction(Reduction):
    """Adds up what is made of layers' matrices; of parameters that are no part of one, the diagonal."""

    def __init__(
        self,
        phi: Phi,
        blocks: Sequence[Block],
        parameters: Mapping[str, nn.Parameter],
        diagonal: Collection[str],
        precision: Precision | None = None,
    ) -> None:
        """Add up the diagonal of the parameters in ``diagonal``, and the matrices of all blocks that are ones.

        Products are made as the process has it, or in ``precision``.
        """
        self.phi = phi
        self.blocks = {name: block for block in blocks if block.is_matrix for name in block.parameters}
        self._beside = DiagonalReduction(phi, {name: parameters[name] for name in diagonal})
        self._single = frozenset(diagonal)
        self._precision = precision
        self.sums = self._beside.sums

    @property
    def coupled_parameters(self) -> Mapping[str, tuple[str, ...]]:
        """The parameters of each matrix."""
        return {name: block.parameters for name, block in self.blocks.items()}

    def supports(self, arrival: Arrival) -> bool:
        """Return whether a use brings all of each matrix that it has a part in."""
        present = {role: part.name for role, part in arrival.parts.items() if part.geometry is None}
        for part in arrival.parts.values():
            block = self.blocks.get(part.name)
            if block is None:
                continue
            roles = dict(zip(("weight", "bias"), block.parameters, strict=False))
            whole = all(present.get(role) == name for role, name in roles.items())
            if not whole or arrival.rule.inputs_first != block.inputs_first:
                return False
            some = arrival.rule.products(arrival.input[:1], arrival.delta[:1, :1])
            if some is None or not self.supports_products(block, some):
                return False
        return True

    def supports_products(self, block: Block, some: Products) -> bool:
        """Return whether a block's δ and a, of which some are given, can be added up."""
        return True

    def add(self, arrival: Arrival) -> None:
        """Add each matrix that a use has, and the diagonal of what is no part of one."""
        single = {role: part for role, part in arrival.parts.items() if part.name in self._single}
        self._beside.add(arrival._replace(parts=single))
        for part in arrival.parts.values():
            block = self.blocks.get(part.name)
            if block is not None and part.name == block.parameters[0]:
                with self._products(arrival.delta.device):
                    for products in _tiles(arrival, bias=len(block.parameters) > 1):
                        self.add_products(block, products, first=arrival.first)

    def add_gradients(self, gradients: Mapping[str, Tensor], lead: int) -> None:
        """Add the matrices that the gradients make, and the diagonal of what is no part of one."""
        self._beside.add_gradients({name: g for name, g in gradients.items() if name in self._single}, lead)
        for block in {b.name: b for name, b in self.blocks.items() if name in gradients}.values():
            weight = block.parameters[0]
            given = {name: g.to(at_least_single(g.dtype)) for name, g in gradients.items() if name in block.parameters}
            if weight not in given:  # of a bias alone, where the weight has no part in the outputs
                bias = given[block.parameters[1]]
                given[weight] = bias.new_zeros(*bias.shape[:lead], *block.shape)
            matrices = joined(block, given, lead)
            with self._products(matrices.device):
                self.add_matrices(block, matrices.reshape(-1, *matrices.shape[-2:]))

    def _products(self, device: torch.device) -> AbstractContextManager[None]:
        """Let products be made in the precision that was asked for, if one was."""
        return nullcontext() if self._precision is None else products_in(self._precision, device)

    @abstractmethod
    def add_products(self, block: Block, products: Products, *, first: bool) -> None:
        """Add a layer's δ and a; ``first`` as in :class:`Arrival`."""

    @abstractmethod
    def add_matrices(self, block: Block, gradients: Tensor) -> None:
        """Add gradients ``[L, outputs, inputs]`` of rows and samples."""


def _tiles(arrival: Arrival, *, bias: bool) -> Iterator[Products]:
    """Yield δ and a of some samples at a time, since patches of a convolution hold each input many times."""
    samples = len(arrival.input)
    bytes_each = arrival.rule.products_numel(arrival.input) * arrival.delta.element_size()
    wide = max(1, 8 * tile_bytes(arrival.input.device) // max(1, bytes_each))
    wide = min(samples, wide)
    for first in range(0, samples, wide):
        part = slice(first, first + wide)
        products = arrival.rule.products(arrival.input[part], arrival.delta[:, part])
        assert products is not None  # since it was taken
        yield products._replace(bias=bias)
