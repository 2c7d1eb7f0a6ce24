"""What is added up over samples: the diagonal, also in other coordinates, layers' factors, and whole gradients."""

from holdfast.persample.reductions.base import Arrival, Reduction, at_least_single
from holdfast.persample.reductions.diagonal import DiagonalReduction
from holdfast.persample.reductions.factor_sums import COUNTS, FactorReduction, Side, Sides, factors_of, sums_shape
from holdfast.persample.reductions.layer_matrix import Block, joined, taken_apart
from holdfast.persample.reductions.rotated import Basis, RotatedReduction, Sharing
from holdfast.persample.reductions.whole_gradients import OuterReduction, ProductReduction, as_vector, in_shapes

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
