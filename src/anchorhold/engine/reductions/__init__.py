"""What is added up over samples: the diagonal, also in other coordinates, layers' factors, and whole gradients."""

from anchorhold.engine.reductions.base import Arrival, DiagonalReduction, Reduction, at_least_single
from anchorhold.engine.reductions.factors import COUNTS, FactorReduction, Side, Sides, factors_of, sums_shape
from anchorhold.engine.reductions.layers import Block, joined, taken_apart
from anchorhold.engine.reductions.rotated import Basis, RotatedReduction, Sharing
from anchorhold.engine.reductions.whole_gradients import OuterReduction, ProductReduction, as_vector, in_shapes

__all__ = [
    "COUNTS",
    "Arrival",
    "Basis",
    "Block",
    "DiagonalReduction",
    "FactorReduction",
    "OuterReduction",
    "ProductReduction",
    "Reduction",
    "RotatedReduction",
    "Sharing",
    "Side",
    "Sides",
    "as_vector",
    "at_least_single",
    "factors_of",
    "in_shapes",
    "joined",
    "sums_shape",
    "taken_apart",
]
