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
from anchorhold.forms.base import Cost, Displacement, Matrix, pull_share
from anchorhold.forms.factors import eigenbasis
from anchorhold.forms.layers import refuse_other_shapes
from anchorhold.forms.vectors import VectorForm, places_in
from anchorhold.measures.base import SampleMeasure
from anchorhold.settings import choice, whole_number
from anchorhold.tensors.matrices import decomposed, products_in
from anchorhold.tensors.storage import widest_dtype

OVERSAMPLING = 8
"""Columns beyond those that are kept, so that the last ones are found as well as the others."""

SEED = 2006_10974
"""The seed of the first columns, which all processes have to draw alike."""


@dataclasses.dataclass(eq=False)
class LowRankMatrix(Matrix):
    """U and Λ of one block.

    Args:
        block: the weights.
        u: U, orthonormal columns as long as the block.
        values: Λ, from the largest down.
        total_trace: the trace of H, of which Λ is a part.
        damping: the share of H's mean eigenvalue by which every direction is held beside Λ.
        rank: the number of columns to which a sum is cut; ``None`` keeps all of them.
    """

    u: Tensor
    values: Tensor
    total_trace: Tensor
    _: dataclasses.KW_ONLY
    damping: float = 0.0
    rank: int | None = None

    @property
    def description(self) -> str:
        """The number of directions, and the share of the trace along them."""
        described, trace = description_of(len(self.values), self.block), float(self.total_trace)
        return f"{described}, {100 * float(self.values.sum()) / trace:.0f} % of the trace" if trace > 0 else described

    @property
    def mean_damping(self) -> Tensor:
        """λ, the damping times H's mean eigenvalue, by which every direction is held, also those outside U."""
        return self.damping / max(1, self.block.length) * self.total_trace

    def apply(self, d: Displacement) -> dict[str, Tensor]:
        """Return UΛUᵀD + λD."""
        return self._along(d, lambda values: values)

    def value(self, d: Displacement) -> Tensor:
        """Return the sum of Λ(UᵀD)², and λ|D|²."""
        with products_in("float32", self.u.device):
            vector = as_vector(self.block, d)
            return (self.values * (self.u.mT @ vector).square()).sum() + self.mean_damping * vector.square().sum()

    def shrink(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        """Return D/(1 + c(Λ + λ)) along each direction."""
        return self._along(d, lambda values: 1 / (1 + strength * values))

    def pull(self, d: Displacement, strength: float) -> dict[str, Tensor]:
        """Return D·c(Λ + λ)/(1 + c(Λ + λ)) along each direction."""
        return self._along(d, lambda values: pull_share(strength * values))

    def solve(self, b: Displacement, damping: float = 0.0) -> dict[str, Tensor]:
        """Return B/(Λ + λ + damping) along each direction, 0 where that is 0 up to rounding."""
        rounding = len(self.values) * torch.finfo(self.u.dtype).eps * (self.largest_eigenvalue() + damping)

        def inverse(values: Tensor) -> Tensor:
            damped = values + damping
            return torch.where(damped > rounding, 1 / damped, 0.0)

        return self._along(b, inverse)

    def _along(self, d: Displacement, change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """Return D times a function of each direction's eigenvalue: Λ + λ along U, λ along all others."""
        elsewhere = change(self.mean_damping)
        with products_in("float32", self.u.device):
            vector = as_vector(self.block, d)
            inside = (change(self.values + self.mean_damping) - elsewhere) * (self.u.mT @ vector)
            return in_shapes(self.block, elsewhere * vector + self.u @ inside)

    def add(self, earlier: Matrix, decay: float) -> "LowRankMatrix":
        """Return the sum, cut to as many directions as are kept.

        That is the nearest to the sum of the two in any norm that no rotation changes (Mirsky 1960); cut after each of
        several tasks, not the nearest to the sum of all.
        """
        assert isinstance(earlier, LowRankMatrix)
        roots = [self.u * self.values.sqrt(), earlier.u * (decay * earlier.values).sqrt()]
        u, values = principal(torch.cat(roots, 1), self.rank)
        trace = self.total_trace + decay * earlier.total_trace
        return dataclasses.replace(self, u=u, values=values, total_trace=trace)

    def scale(self, factor: float) -> "LowRankMatrix":
        """Return a multiple of Λ and of H's trace."""
        return dataclasses.replace(self, values=factor * self.values, total_trace=factor * self.total_trace)

    def pad(self, block: Block) -> "LowRankMatrix":
        u = self.u.new_zeros(block.length, self.u.shape[1])
        u[places_in(block, self.block).to(u.device)] = self.u
        return dataclasses.replace(self, block=block, u=u)

    def diagonal(self) -> dict[str, Tensor]:
        """Return (U∘U)Λ + λ."""
        with products_in("float32", self.u.device):
            return in_shapes(self.block, self.u.square() @ self.values + self.mean_damping)

    def trace(self) -> Tensor:
        """Return the sum of Λ, and λ for every weight."""
        return self.values.sum() + self.block.length * self.mean_damping

    def largest_eigenvalue(self) -> Tensor:
        """Return the first Λ, and λ."""
        return self.values[:1].sum() + self.mean_damping

    def state(self) -> dict[str, Tensor]:
        """Return U, Λ and the trace of H."""
        return {"U": self.u, "L": self.values, "trace": self.total_trace}


def description_of(directions: int, block: Block) -> str:
    """Return in words how many directions of a block are kept."""
    return f"low rank, {directions:,} of {block.length:,} directions"


def principal(root: Tensor, most: int | None) -> tuple[Tensor, Tensor]:
    """Return the eigenvectors and eigenvalues of WWᵀ for a W of few columns: the largest first, at most ``most``."""
    with products_in("float32", root.device):
        q, r = decomposed(torch.linalg.qr, root)
        x, sigma, _ = decomposed(torch.linalg.svd, r.to(widest_dtype(r.device)), full_matrices=False)
        return q @ x[:, :most].to(q.dtype), sigma[:most].square().to(q.dtype)


def nystrom(v: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenvectors and eigenvalues of Nyström's approximation Y(VᵀY)⁻¹Yᵀ of H, given Y = HV."""
    wide = widest_dtype(y.device)
    with products_in("float32", y.device):
        core = (v.mT @ y).to(wide)
        vectors, values = eigenbasis((core + core.mT) / 2)
        assert vectors is not None and values is not None  # since it is a matrix
        # An eigenvalue that is no more than rounding would be divided by itself.
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
    def has_eigenbasis(self) -> bool:
        return True

    @property
    def passes(self) -> int:
        """One for each iteration."""
        return self.iterations

    def reduction(
        self,
        measure: SampleMeasure,
        blocks: Sequence[Block],
        parameters: Mapping[str, nn.Parameter],
        known: Mapping[str, Tensor],
    ) -> Reduction:
        """Return the sum of HV: V is random in the first pass, and the last pass's eigenvectors in others."""
        directions = {}
        for block in blocks:
            weights = parameters[block.parameters[0]]
            like = torch.empty(0, dtype=at_least_single(weights.dtype), device=weights.device)
            directions[block.name] = self._directions(block, known, like)
        return ProductReduction(measure.phi, blocks, parameters, directions)

    def prepare_next_pass(
        self, blocks: Sequence[Block], means: Mapping[str, Tensor], earlier: Mapping[str, Matrix], decay: float
    ) -> dict[str, Tensor]:
        """Return every block's eigenvectors and eigenvalues, by Nyström's approximation."""
        found: dict[str, Tensor] = {}
        for block in blocks:
            y, trace = (means[f"{block.name}/{key}"] for key in ("Y", "trace"))
            u, values = nystrom(self._directions(block, means, y), y)
            found |= {f"{block.name}/U": u, f"{block.name}/L": values, f"{block.name}/trace": trace}
        return found

    def _directions(self, block: Block, known: Mapping[str, Tensor], like: Tensor) -> Tensor:
        """Return V of a pass: the eigenvectors of the pass before, or random columns in the first."""
        if (u := known.get(f"{block.name}/U")) is not None:
            return u
        generator = torch.Generator().manual_seed(SEED)
        columns = min(block.length, self.rank + OVERSAMPLING)
        found: Tensor = decomposed(torch.linalg.qr, torch.randn(block.length, columns, generator=generator).to(like))[0]
        return found

    def matrices(
        self, measure: SampleMeasure, blocks: Sequence[Block], means: Mapping[str, Tensor]
    ) -> dict[str, Matrix]:
        """Return the first ``rank`` directions of every block."""
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
        """Return the cost of U: Q is two products with it."""
        length = block.length
        rank, columns = min(length, self.rank), min(length, self.rank + OVERSAMPLING)
        return Cost((length + 1) * rank + 1, length * columns + 1, 2 * length * rank, description_of(rank, block))

    def restore(self, block: Block, tensors: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> Matrix:
        """Return U and Λ, of more than ``rank`` directions after several tasks whose sum is exact."""
        rank = min(block.length, self.rank)
        if self.sums == "exact" and "L" in tensors:
            rank = min(block.length, max(rank, math.prod(tensors["L"].shape)))
        refuse_other_shapes(block, tensors, {"U": (block.length, rank), "L": (rank,), "trace": ()})
        return LowRankMatrix(block, tensors["U"], tensors["L"], tensors["trace"], damping=self.damping, rank=self._cut)
