"""What is differentiated: the scores of a sample's outputs."""

from holdfast.persample.scores.base import IGNORED, CustomScore, Positions, PositionScore, Rows, Score
from holdfast.persample.scores.likelihood import Labels, LogLikelihood
from holdfast.persample.scores.output_norm import OutputNorm

__all__ = [
    "IGNORED",
    "CustomScore",
    "Labels",
    "LogLikelihood",
    "OutputNorm",
    "PositionScore",
    "Positions",
    "Rows",
    "Score",
]
