"""What is differentiated: the scores of a sample's outputs."""

from anchorhold.persample.scores.base import CustomScore, Per, PositionScore, Rows, Score
from anchorhold.persample.scores.likelihood import Labels, LogLikelihood
from anchorhold.persample.scores.likelihoods import LikelihoodName
from anchorhold.persample.scores.output_norm import OutputNorm
from anchorhold.persample.scores.output_reading import OutputReading, Told
from anchorhold.persample.scores.positions import IGNORED, Positions
from anchorhold.persample.scores.problem_type import problem_type

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
