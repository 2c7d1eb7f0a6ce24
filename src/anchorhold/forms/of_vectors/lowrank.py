r"""The most important directions of the whole matrix, :math:`Q(D) = U \Lambda U^T D`.

SOLA, Yin et al. 2020 (arXiv 2006.10974), of H, the mean of :math:`gg^T` over samples and labels: r vectors as long as
the network has weights, whatever H itself would take.

They are found without H. A pass over the samples adds up :math:`Y = H V` for some orthonormal columns V, and Nyström's
approximation :math:`Y (V^T Y)^{-1} Y^T` follows from both, the best one that they allow (Tropp et al. 2017, arXiv
1706.05736): it lies below H, and nearer to it than :math:`V V^T H V V^T`. Its eigenvectors are the columns of the next
pass, which is a subspace iteration; the first ones are random (Halko, Martinsson and Tropp 2011, arXiv 0909.4061).
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from anchorhold.engine.reductions import Block, ProductReduction, Reduction, as_vector, at_least_single, in_shapes
from anchorhold.forms.base import Cost, Displacement, Matrix, pulled_share
from anchorhold.forms.factors import eigenbasis
from anchorhold.forms.of_layers.layers import refuse_other_shapes
from anchorhold.forms.of_vectors.vectors import VectorForm, places_in
from anchorhold.measures.base import SampleMeasure
from anchorhold.settings import choice, whole_number
from anchorhold.tensors.matrices.decompositions import decomposed
from anchorhold.tensors.matrices.products import products_in
from anchorhold.tensors.storage import widest_dtype

OVERSAMPLING = 8
"""Columns more than are kept, which let the last ones be found as well as the others."""

SEED = 2006_10974
"""Of the first columns, which all processes have to know alike."""


class LowRankMatrix(Matrix):
    """U and Λ of one block.

    Args:
        block: the weights.
        u: U, orthonormal columns as long as the block.
        values: Λ, from the largest down.
        whole: the trace of H, of which Λ is a part.
        damping: the share of H's mean eigenvalue by which every direction is held beside Λ.
        rank: how many columns a sum is cut to; ``None`` keeps all of them.
    """

    def __init__(
        self,
        block: Block,
        u: Tensor,
        values: Tensor,
        whole: Tensor,
        *,
        damping: float = 0.0,
        rank: int | None = None,
    ) -> None:
        self.block = block
        self.u = u
        self.values = values
        self.whole = whole
        self.damping = damping
        self.rank = rank

    @property
    def said(self) -> str:
        """How many directions there are, and how much of the trace is along them."""
        said, whole = self.said_of(len(self.values), self.block), float(self.whole)
        return f"{said}, {100 * float(self.values.sum()) / whole:.0f} % of the trace" if whole > 0 else said

    @staticmethod
    def said_of(directions: int, block: Block) -> str:
        """Return in words how many directions are kept."""
        return f"low rank, {directions:,} of {block.length:,} directions"

    @property
    def rest(self) -> Tensor:
        """By what every direction is held, also those that are not kept."""
        return self.damping / max(1, self.block.length) * self.whole

    def apply(self, d: Displacement) -> dict[str, Tensor]:
        """Return UΛUᵀD, and what every direction is held by."""
        return self._along(d, lambda values: values)

    def value(self, d: Displacement) -> Tensor:
        """Return the sum of Λ(UᵀD)², and of what every direction is held by."""
        with products_in("float32", self.u.device):
            vector = as_vector(self.block, d)
            return (self.values * (self.u.mT @ vector).square()).sum() + self.rest * vector.square().sum()

    def shrink(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        """Return D/(1 + cλ) along each direction."""
        return self._along(d, lambda values: 1 / (1 + strength * values))

    def pulled(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        """Return D·cλ/(1 + cλ) along each direction."""
        return self._along(d, lambda values: pulled_share(strength * values))

    def solve(self, b: Displacement, damping: float = 0.0) -> dict[str, Tensor]:
        """Return B/(λ + damping) along each direction; nothing where λ is 0 up to rounding."""
        rounding = len(self.values) * torch.finfo(self.u.dtype).eps * (self.largest_eigenvalue() + damping)

        def inverse(values: Tensor) -> Tensor:
            damped = values + damping
            return torch.where(damped > rounding, 1 / damped, 0.0)

        return self._along(b, inverse)

    def _along(self, d: Displacement, change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """Return D times a function of each direction's eigenvalue; there are those of U, and one for all others."""
        elsewhere = change(self.rest)
        with products_in("float32", self.u.device):
            vector = as_vector(self.block, d)
            inside = (change(self.values + self.rest) - elsewhere) * (self.u.mT @ vector)
            return in_shapes(self.block, elsewhere * vector + self.u @ inside)

    def plus(self, earlier: Matrix, decay: float) -> "LowRankMatrix":
        """Return the sum, cut to as many directions as are kept.

        That is the nearest to the sum of the two in any norm that no rotation changes (Mirsky 1960); cut after each of
        several tasks, not the nearest to the sum of all.
        """
        assert isinstance(earlier, LowRankMatrix)
        roots = [self.u * self.values.sqrt(), earlier.u * (decay * earlier.values).sqrt()]
        u, values = principal(torch.cat(roots, 1), self.rank)
        return self._with(u, values, self.whole + decay * earlier.whole)

    def widened(self, block: Block) -> "LowRankMatrix":
        """Return the same with rows of 0 for parameters that have come since."""
        u = self.u.new_zeros(block.length, self.u.shape[1])
        u[places_in(block, self.block).to(u.device)] = self.u
        return LowRankMatrix(block, u, self.values, self.whole, damping=self.damping, rank=self.rank)

    def scaled(self, factor: float) -> "LowRankMatrix":
        """Return a multiple of Λ."""
        return self._with(self.u, factor * self.values, factor * self.whole)

    def _with(self, u: Tensor, values: Tensor, whole: Tensor) -> "LowRankMatrix":
        return LowRankMatrix(self.block, u, values, whole, damping=self.damping, rank=self.rank)

    def diagonal(self) -> dict[str, Tensor]:
        """Return (U∘U)Λ, and what every direction is held by."""
        with products_in("float32", self.u.device):
            return in_shapes(self.block, self.u.square() @ self.values + self.rest)

    def trace(self) -> Tensor:
        """Return the sum of Λ, and of what every direction is held by."""
        return self.values.sum() + self.block.length * self.rest

    def largest_eigenvalue(self) -> Tensor:
        """Return the first λ, with what every direction is held by."""
        return self.values[:1].sum() + self.rest

    def tensors(self) -> dict[str, Tensor]:
        """Return U, Λ and the trace of H."""
        return {"U": self.u, "L": self.values, "trace": self.whole}

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "LowRankMatrix":
        """Return the same with all three changed."""
        return self._with(change(self.u), change(self.values), change(self.whole))


def principal(root: Tensor, most: int | None) -> tuple[Tensor, Tensor]:
    """Return the eigenvectors and eigenvalues of WWᵀ, the largest first, at most so many, given W of few columns."""
    with products_in("float32", root.device):
        q, r = decomposed(torch.linalg.qr, root)
        x, sigma, _ = decomposed(torch.linalg.svd, r.to(widest_dtype(r.device)), full_matrices=False)
        return q @ x[:, :most].to(q.dtype), sigma[:most].square().to(q.dtype)


def nystrom(v: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenvectors and eigenvalues of Nyström's approximation of H, given Y = HV."""
    wide = widest_dtype(y.device)
    with products_in("float32", y.device):
        core = (v.mT @ y).to(wide)
        vectors, values = eigenbasis((core + core.mT) / 2)
        assert vectors is not None and values is not None  # since it is a matrix
        # What is no more than rounding would be divided by itself.
        rounding = len(values) * torch.finfo(y.dtype).eps * values[-1:].sum()
        root = torch.where(values > rounding, values.rsqrt(), 0.0)
        return principal(y @ (vectors * root).to(y.dtype), None)


@dataclasses.dataclass(frozen=True)
class LowRank(VectorForm):
    """The directions of the mean of ggᵀ with the largest eigenvalues, over all weights of the network together.

    Args:
        span: what one matrix is over, the whole ``"network"``, or each of its ``"layers"``.
        damping: a share of the mean eigenvalue, by which every direction is held beside what was measured: those too
            that are not kept, and that are free without it, as in SOLA.
        rank: how many directions are kept.
        iterations: how many times the samples are gone through; the eigenvalues that are kept are the nearer to the
            largest ones. More are wanted where they fall off slowly.
        sums: what becomes of several tasks: the sum is cut back to as many directions (``"cut"``), or all of them are
            kept (``"exact"``), which takes as many times the memory and the time.
    """

    rank: int = 64
    iterations: int = 2
    sums: Literal["cut", "exact"] = "cut"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("rank", "iterations"):
            given = whole_number(name, getattr(self, name), "a whole number of at least 1", least=1)
            object.__setattr__(self, name, given)
        choice("sums", self.sums, ("cut", "exact"))

    @property
    def keeps_coordinates(self) -> bool:
        """Always."""
        return True

    @property
    def passes(self) -> int:
        """As many as there are iterations."""
        return self.iterations

    def reduction(
        self,
        measure: SampleMeasure,
        blocks: Sequence[Block],
        parameters: Mapping[str, nn.Parameter],
        known: Mapping[str, Tensor],
    ) -> Reduction:
        """Add up HV, for random columns in the first pass and for the last one's eigenvectors in others."""
        directions = {}
        for block in blocks:
            weights = parameters[block.parameters[0]]
            like = torch.empty(0, dtype=at_least_single(weights.dtype), device=weights.device)
            directions[block.name] = self._directions(block, known, like)
        return ProductReduction(measure.phi, blocks, parameters, directions)

    def learned(
        self, blocks: Sequence[Block], means: Mapping[str, Tensor], earlier: Mapping[str, Matrix], decay: float
    ) -> dict[str, Tensor]:
        """Return what the pass says of every block's eigenvectors and eigenvalues."""
        found: dict[str, Tensor] = {}
        for block in blocks:
            y, trace = (means[f"{block.name}/{key}"] for key in ("Y", "trace"))
            u, values = nystrom(self._directions(block, means, y), y)
            found |= {f"{block.name}/U": u, f"{block.name}/L": values, f"{block.name}/trace": trace}
        return found

    def _directions(self, block: Block, known: Mapping[str, Tensor], like: Tensor) -> Tensor:
        """Return the columns of a block that H is multiplied with in a pass, given what is known of those before."""
        if (u := known.get(f"{block.name}/U")) is not None:
            return u
        generator = torch.Generator().manual_seed(SEED)
        columns = min(block.length, self.rank + OVERSAMPLING)
        found: Tensor = decomposed(torch.linalg.qr, torch.randn(block.length, columns, generator=generator).to(like))[0]
        return found

    def matrices(
        self, measure: SampleMeasure, blocks: Sequence[Block], means: Mapping[str, Tensor]
    ) -> dict[str, Matrix]:
        """Return the first directions of every block."""
        return {
            block.name: LowRankMatrix(
                block,
                means[f"{block.name}/U"][:, : self.rank].contiguous(),
                means[f"{block.name}/L"][: self.rank].contiguous(),
                means[f"{block.name}/trace"],
                damping=self.damping,
                rank=self._cut,
            )
            for block in blocks
        }

    @property
    def _cut(self) -> int | None:
        return self.rank if self.sums == "cut" else None

    def cost(self, block: Block, parameters: Mapping[str, Tensor]) -> Cost:
        """Return what U takes: Q is two products with it."""
        length = block.length
        rank, columns = min(length, self.rank), min(length, self.rank + OVERSAMPLING)
        said = LowRankMatrix.said_of(rank, block)
        return Cost((length + 1) * rank + 1, length * columns + 1, 2 * length * rank, said)

    def restored(self, block: Block, tensors: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> Matrix:
        """Return U and Λ: after several tasks whose sum is exact, of more directions than one has."""
        rank = min(block.length, self.rank)
        if self.sums == "exact" and "L" in tensors:
            rank = min(block.length, max(rank, math.prod(tensors["L"].shape)))
        refuse_other_shapes(block, tensors, {"U": (block.length, rank), "L": (rank,), "trace": ()})
        return LowRankMatrix(block, tensors["U"], tensors["L"], tensors["trace"], damping=self.damping, rank=self._cut)
