"""What is differentiated: the scores of a sample's outputs."""

from holdfast.persample.scores.base import CustomScore, Per, PositionScore, Rows, Score
from holdfast.persample.scores.likelihood import Labels, LogLikelihood
from holdfast.persample.scores.likelihoods import LikelihoodName
from holdfast.persample.scores.output_norm import OutputNorm
from holdfast.persample.scores.output_reading import OutputReading, Told
from holdfast.persample.scores.positions import IGNORED, Positions
from holdfast.persample.scores.problem_type import problem_type

__all__ = [
    "IGNORED",
    "CustomScore",
    "Labels",
    "LikelihoodName",
    "LogLikelihood",
    "OutputNorm",
    "OutputReading",
    "Per",
    "PositionScore",
    "Positions",
    "Rows",
    "Score",
    "Told",
    "problem_type",
]
