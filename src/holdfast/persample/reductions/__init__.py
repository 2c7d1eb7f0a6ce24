"""What is added up over samples: the diagonal, the layers' factors, and the diagonal in other coordinates."""

from holdfast.persample.reductions.base import Arrival, Reduction, at_least_single
from holdfast.persample.reductions.diagonal import DiagonalReduction
from holdfast.persample.reductions.factors import FactorReduction, Side, Sides, factors_of
from holdfast.persample.reductions.layer_matrix import Block, joined, taken_apart
from holdfast.persample.reductions.rotated import Basis, RotatedReduction, Sharing

__all__ = [
    "Arrival",
    "Basis",
    "Block",
    "DiagonalReduction",
    "FactorReduction",
    "Reduction",
    "RotatedReduction",
    "Sharing",
    "Side",
    "Sides",
    "at_least_single",
    "factors_of",
    "joined",
    "taken_apart",
]
