r"""The whole matrix, :math:`Q(D) = H D`, with H the mean of :math:`gg^T` over samples and labels.

SOLA with the full matrix, Yin et al. 2020 (arXiv 2006.10974). Every other form of the same measure stands for this one:
it alone knows how weights of different layers depend on each other, and a sum over tasks is exact.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from anchorhold.engine.reductions import Block, OuterReduction, Reduction, as_vector, at_least_single, in_shapes
from anchorhold.errors import ConfigurationError
from anchorhold.forms.base import Cost, Displacement, Matrix, pulled_share
from anchorhold.forms.factors import damped, divided, eigenbasis
from anchorhold.forms.of_layers.layers import refuse_other_shapes
from anchorhold.forms.of_vectors.vectors import VectorForm, places_in
from anchorhold.measures.base import SampleMeasure
from anchorhold.settings import whole_number
from anchorhold.tensors.matrices.decompositions import decomposed
from anchorhold.tensors.matrices.products import products_in

KRYLOV = 100
"""Steps of the method by which the largest eigenvalue is found; far fewer will do for most."""


class DenseMatrix(Matrix):
    """H of one block."""

    def __init__(self, block: Block, h: Tensor) -> None:
        self.block = block
        self.h = h

    def apply(self, d: Displacement) -> dict[str, Tensor]:
        """Return H D: in full precision, since a rounded H is not positive any more."""
        with products_in("float32", self.h.device):
            return in_shapes(self.block, self.h @ as_vector(self.block, d))

    def plus(self, earlier: Matrix, decay: float) -> "DenseMatrix":
        """Return the sum, which is exact."""
        assert isinstance(earlier, DenseMatrix)
        return DenseMatrix(self.block, torch.add(self.h, earlier.h, alpha=decay))

    def widened(self, block: Block) -> "DenseMatrix":
        """Return H with rows and columns of 0 for parameters that have come since."""
        places = places_in(block, self.block).to(self.h.device)
        h = self.h.new_zeros(block.length, block.length)
        h[places.unsqueeze(1), places] = self.h
        return DenseMatrix(block, h)

    def scaled(self, factor: float) -> "DenseMatrix":
        """Return a multiple of H."""
        return DenseMatrix(self.block, factor * self.h)

    def shrink(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        """Return D/(1 + cλ) along each eigenvector."""
        return self._along_eigenvectors(d, lambda turned, values: turned / (1 + strength * values))

    def pulled(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        """Return D·cλ/(1 + cλ) along each eigenvector."""
        return self._along_eigenvectors(d, lambda turned, values: turned * pulled_share(strength * values))

    def solve(self, b: Displacement, damping: float = 0.0) -> dict[str, Tensor]:
        """Return B/(λ + damping) along each eigenvector; nothing where λ is 0 up to rounding."""
        return self._along_eigenvectors(b, partial(divided, damping=damping))

    def _along_eigenvectors(self, d: Displacement, change: Callable[[Tensor, Tensor], Tensor]) -> dict[str, Tensor]:
        vectors, values = self._eigenbasis
        with products_in("float32", self.h.device):
            found = vectors @ change(vectors.mT @ as_vector(self.block, d), values)
        return in_shapes(self.block, found)

    @cached_property
    def _eigenbasis(self) -> tuple[Tensor, Tensor]:
        vectors, values = eigenbasis(self.h)
        assert vectors is not None and values is not None  # since H is a matrix
        return vectors, values

    def diagonal(self) -> dict[str, Tensor]:
        """Return the diagonal of H."""
        return in_shapes(self.block, self.h.diagonal())

    def trace(self) -> Tensor:
        """Return the trace of H."""
        return self.h.trace()

    def largest_eigenvalue(self) -> Tensor:
        """Return the largest λ by Lanczos's method: all of them would take minutes for the largest matrices."""
        basis = self.h.new_zeros(len(self.h), min(len(self.h), KRYLOV))
        if not basis.numel():
            return self.h.new_zeros(())
        along = torch.randn(len(self.h), generator=torch.Generator().manual_seed(0)).to(self.h)
        with products_in("float32", self.h.device):
            for step in range(basis.shape[1]):
                for _ in range(2):  # once leaves rounding, along which the next ones would grow
                    along = along - basis @ (basis.mT @ along)
                basis[:, step] = along / along.norm().clamp(min=torch.finfo(along.dtype).tiny)
                along = self.h @ basis[:, step]
            values: Tensor = decomposed(torch.linalg.eigvalsh, basis.mT @ (self.h @ basis))
        return values[-1].clamp(min=0)

    def tensors(self) -> dict[str, Tensor]:
        """Return H."""
        return {"H": self.h}

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "DenseMatrix":
        """Return another H."""
        return DenseMatrix(self.block, change(self.h))


@dataclasses.dataclass(frozen=True)
class Dense(VectorForm):
    """The mean of ggᵀ itself, over all weights: exact, for networks of some thousand weights.

    Args:
        span: what one matrix is over, the whole ``"network"``, or each of its ``"layers"``.
        damping: a share of the mean eigenvalue, by which every direction is held beside what was measured.
        largest: a matrix over more weights than this is refused, since it takes the square of them: 20,000 are 1.5 GiB
            in single precision, and as much again for its eigenvectors, where they are asked for.
    """

    largest: int = 20_000

    @property
    def bears_rounding(self) -> bool:
        """Not: the smallest eigenvalues of H fall below 0."""
        return False

    def __post_init__(self) -> None:
        super().__post_init__()
        expected = "a whole number of at least 1"
        object.__setattr__(self, "largest", whole_number("largest", self.largest, expected, least=1))

    def blocks(self, model: nn.Module, parameters: Mapping[str, Tensor]) -> list[Block]:
        """Return the blocks, or refuse one whose matrix would be too large."""
        found = super().blocks(model, parameters)
        for block in found:
            if block.length > self.largest:
                size = at_least_single(parameters[block.parameters[0]].dtype).itemsize * block.length**2
                each = "Dense(span='layers'), a matrix for each layer, " if self.span == "network" else ""
                raise ConfigurationError(
                    f"form='dense' would keep a matrix of {block.length:,} × {block.length:,} numbers for "
                    f"{block.name!r}, {size:,} bytes ({size / 2**30:,.1f} GiB); largest={self.largest:,} weights are "
                    f"allowed. Take form='lowrank', the most important directions of the same matrix, {each}or "
                    "form='rotated'; protect fewer parameters; or allow more."
                )
        return found

    def reduction(
        self,
        measure: SampleMeasure,
        blocks: Sequence[Block],
        parameters: Mapping[str, nn.Parameter],
        known: Mapping[str, Tensor],
    ) -> Reduction:
        """Add up ggᵀ."""
        return OuterReduction(measure.phi, blocks, parameters)

    def matrices(
        self, measure: SampleMeasure, blocks: Sequence[Block], means: Mapping[str, Tensor]
    ) -> dict[str, Matrix]:
        """Return H of every block."""
        found: dict[str, Matrix] = {}
        for block in blocks:
            h = damped(means[f"{block.name}/H"], self.damping)
            assert h is not None  # since it is a matrix
            found[block.name] = DenseMatrix(block, h)
        return found

    def cost(self, block: Block, parameters: Mapping[str, Tensor]) -> Cost:
        """Return what H takes: Q is one product with it."""
        square = block.length**2
        return Cost(square, square, square, "dense")

    def restored(self, block: Block, tensors: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> Matrix:
        """Return H, a matrix over the block's weights."""
        refuse_other_shapes(block, tensors, {"H": (block.length, block.length)})
        return DenseMatrix(block, tensors["H"])
