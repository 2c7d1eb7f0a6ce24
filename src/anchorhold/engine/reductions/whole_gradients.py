r"""Sums over whole gradients: a sample's g of all parameters of a block, as one vector.

They are those of :math:`gg^T` itself, which takes the square of the block's weights, and of its products with a few
vectors, :math:`\sum g\,(g^T V)`, which take no more than as many such vectors.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from anchorhold.engine.phi import Phi
from anchorhold.engine.reductions.base import Arrival, Reduction, at_least_single
from anchorhold.engine.reductions.layers import Block


def as_vector(block: Block, given: Mapping[str, Tensor], lead: int = 0) -> Tensor:
    """Return a block's parameters side by side as ``[*lead, length]``; one that is not given is 0."""
    some = next(given[name] for name in block.parameters if name in given)
    first = some.shape[:lead]
    parts = [
        given[name].reshape(*first, math.prod(shape)).to(some.dtype)
        if name in given
        else some.new_zeros(*first, math.prod(shape))
        for name, shape in zip(block.parameters, block.shapes, strict=True)
    ]
    return torch.cat(parts, -1)


def in_shapes(block: Block, vector: Tensor) -> dict[str, Tensor]:
    """Return what :func:`as_vector` has joined as it was."""
    parts = vector.split([math.prod(shape) for shape in block.shapes], -1)
    return {name: part.reshape(shape) for name, part, shape in zip(block.parameters, parts, block.shapes, strict=True)}


class WholeGradientReduction(Reduction):
    """Adds up what is made of a block's gradients, all of its parameters together."""

    def __init__(self, phi: Phi, blocks: Sequence[Block], parameters: Mapping[str, nn.Parameter]) -> None:
        self.phi = phi
        self.blocks = {name: block for block in blocks for name in block.parameters}
        self.sums = {}
        with torch.inference_mode(False):
            for block in blocks:
                like = parameters[block.parameters[0]]
                nothing = torch.zeros((), dtype=at_least_single(like.dtype), device=like.device)
                self.sums |= {f"{block.name}/{key}": total for key, total in self.zeros(block, nothing).items()}

    @property
    def coupled_parameters(self) -> Mapping[str, tuple[str, ...]]:
        """All parameters of a block."""
        return {name: block.parameters for name, block in self.blocks.items()}

    def supports(self, arrival: Arrival) -> bool:
        """Return False: no use has the gradients of parameters that are used elsewhere."""
        return False

    def add(self, arrival: Arrival) -> None:
        """Refuse a use by itself."""
        raise TypeError("Whole gradients are not made of single uses")

    def add_gradients(self, gradients: Mapping[str, Tensor], lead: int) -> None:
        for block in {b.name: b for name, b in self.blocks.items() if name in gradients}.values():
            given = {name: g.to(at_least_single(g.dtype)) for name, g in gradients.items() if name in block.parameters}
            vectors = as_vector(block, given, lead)
            self.add_vectors(block, vectors.reshape(-1, vectors.shape[-1]))

    @abstractmethod
    def zeros(self, block: Block, nothing: Tensor) -> dict[str, Tensor]:
        """Return a block's sums before the first sample, by names of their own, as precise as a 0 that is given."""

    @abstractmethod
    def add_vectors(self, block: Block, g: Tensor) -> None:
        """Add gradients ``[L, length]`` of rows and samples."""


class OuterReduction(WholeGradientReduction):
    """Adds up ggᵀ, in ``sums`` as ``BLOCK/H``."""

    def zeros(self, block: Block, nothing: Tensor) -> dict[str, Tensor]:
        return {"H": nothing.new_zeros(block.length, block.length)}

    def add_vectors(self, block: Block, g: Tensor) -> None:
        """Add ggᵀ."""
        self.sums[f"{block.name}/H"].addmm_(g.mT, g)


class ProductReduction(WholeGradientReduction):
    """Adds up the products of ggᵀ with the columns of a matrix V for each block, and its trace.

    In ``sums`` they are ``BLOCK/Y`` and ``BLOCK/trace``.
    """

    def __init__(
        self,
        phi: Phi,
        blocks: Sequence[Block],
        parameters: Mapping[str, nn.Parameter],
        directions: Mapping[str, Tensor],
    ) -> None:
        self.directions = directions
        super().__init__(phi, blocks, parameters)

    def zeros(self, block: Block, nothing: Tensor) -> dict[str, Tensor]:
        return {"Y": nothing.new_zeros(self.directions[block.name].shape), "trace": nothing}

    def add_vectors(self, block: Block, g: Tensor) -> None:
        """Add g(gᵀV) and |g|²."""
        self.sums[f"{block.name}/Y"].addmm_(g.mT, g @ self.directions[block.name])
        self.sums[f"{block.name}/trace"].add_(g.square().sum())
