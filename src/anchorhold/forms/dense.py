r"""The whole matrix, :math:`Q(D) = H D`, with H the mean of :math:`gg^T` over samples and labels.

SOLA with the full matrix, Yin et al. 2020 (arXiv 2006.10974). Every other form of the same measure approximates this
one: it alone knows how weights of different layers depend on each other, and a sum over tasks is exact.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from anchorhold.engine.reductions import Block, OuterReduction, Reduction, as_vector, at_least_single, in_shapes
from anchorhold.errors import ConfigurationError
from anchorhold.forms.base import Cost, Displacement, Matrix, pull_share
from anchorhold.forms.factors import damp, divide, eigenbasis
from anchorhold.forms.layers import refuse_other_shapes
from anchorhold.forms.vectors import VectorForm, places_in
from anchorhold.measures.base import SampleMeasure
from anchorhold.settings import whole_number
from anchorhold.tensors.matrices import decomposed, products_in

KRYLOV = 100
"""Steps of Lanczos's method for the largest eigenvalue; far fewer will do for most matrices."""


@dataclasses.dataclass(eq=False)
class DenseMatrix(Matrix):
    """H of one block."""

    h: Tensor

    def apply(self, d: Displacement) -> dict[str, Tensor]:
        """Return H D."""
        with products_in("float32", self.h.device):  # since a rounded H is not positive semi-definite any more
            return in_shapes(self.block, self.h @ as_vector(self.block, d))

    def shrink(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        """Return D/(1 + cλ) along each eigenvector."""
        return self._along_eigenvectors(d, lambda turned, values: turned / (1 + strength * values))

    def pull(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        """Return D·cλ/(1 + cλ) along each eigenvector."""
        return self._along_eigenvectors(d, lambda turned, values: turned * pull_share(strength * values))

    def solve(self, b: Displacement, damping: float = 0.0) -> dict[str, Tensor]:
        """Return B/(λ + damping) along each eigenvector, 0 where that is 0 up to rounding."""
        return self._along_eigenvectors(b, partial(divide, damping=damping))

    def _along_eigenvectors(self, d: Displacement, change: Callable[[Tensor, Tensor], Tensor]) -> dict[str, Tensor]:
        """Return U f(UᵀD, λ)."""
        vectors, values = self._eigenbasis
        with products_in("float32", self.h.device):
            found = vectors @ change(vectors.mT @ as_vector(self.block, d), values)
        return in_shapes(self.block, found)

    @cached_property
    def _eigenbasis(self) -> tuple[Tensor, Tensor]:
        """U and λ."""
        vectors, values = eigenbasis(self.h)
        assert vectors is not None and values is not None  # since H is a matrix
        return vectors, values

    def add(self, earlier: Matrix, decay: float) -> "DenseMatrix":
        """Return H + γH′, which is exact."""
        assert isinstance(earlier, DenseMatrix)
        return DenseMatrix(self.block, torch.add(self.h, earlier.h, alpha=decay))

    def scale(self, factor: float) -> "DenseMatrix":
        return DenseMatrix(self.block, factor * self.h)

    def pad(self, block: Block) -> "DenseMatrix":
        places = places_in(block, self.block).to(self.h.device)
        h = self.h.new_zeros(block.length, block.length)
        h[places.unsqueeze(1), places] = self.h
        return DenseMatrix(block, h)

    def diagonal(self) -> dict[str, Tensor]:
        return in_shapes(self.block, self.h.diagonal())

    def trace(self) -> Tensor:
        return self.h.trace()

    def largest_eigenvalue(self) -> Tensor:
        """Return the largest λ by Lanczos's method (Lanczos 1950): all λ of the largest matrices would take minutes."""
        basis = self.h.new_zeros(len(self.h), min(len(self.h), KRYLOV))
        if not basis.numel():
            return self.h.new_zeros(())
        along = torch.randn(len(self.h), generator=torch.Generator().manual_seed(0)).to(self.h)
        with products_in("float32", self.h.device):
            for step in range(basis.shape[1]):
                for _ in range(2):  # once leaves rounding, along which later directions would grow
                    along = along - basis @ (basis.mT @ along)
                basis[:, step] = along / along.norm().clamp(min=torch.finfo(along.dtype).tiny)
                along = self.h @ basis[:, step]
            values: Tensor = decomposed(torch.linalg.eigvalsh, basis.mT @ (self.h @ basis))
        return values[-1].clamp(min=0)

    def state(self) -> dict[str, Tensor]:
        return {"H": self.h}


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
    def supports_bfloat16(self) -> bool:
        """Always False: the smallest eigenvalues of H would fall below 0."""
        return False

    def __post_init__(self) -> None:
        super().__post_init__()
        expected = "a whole number of at least 1"
        object.__setattr__(self, "largest", whole_number("largest", self.largest, expected, least=1))

    def blocks(self, model: nn.Module, parameters: Mapping[str, Tensor]) -> list[Block]:
        """Return the blocks; raise a :class:`~anchorhold.errors.ConfigurationError` if a matrix would be too large."""
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
        """Return the sum of ggᵀ."""
        return OuterReduction(measure.phi, blocks, parameters)

    def matrices(
        self, measure: SampleMeasure, blocks: Sequence[Block], means: Mapping[str, Tensor]
    ) -> dict[str, Matrix]:
        found: dict[str, Matrix] = {}
        for block in blocks:
            h = damp(means[f"{block.name}/H"], self.damping)
            assert h is not None  # since it is a matrix
            found[block.name] = DenseMatrix(block, h)
        return found

    def cost(self, block: Block, parameters: Mapping[str, Tensor]) -> Cost:
        """Return the cost of H: Q is one product with it."""
        square = block.length**2
        return Cost(square, square, square, "dense")

    def restore(self, block: Block, tensors: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> Matrix:
        refuse_other_shapes(block, tensors, {"H": (block.length, block.length)})
        return DenseMatrix(block, tensors["H"])
