"""What is differentiated: the scores of a sample's outputs."""

from anchorhold.engine.scores.base import CustomScore, Per, PositionScore, Rows, Score
from anchorhold.engine.scores.likelihoods import LikelihoodName
from anchorhold.engine.scores.output_reading import OutputReading, ReadingEvidence
from anchorhold.engine.scores.outputs import IGNORED, Positions
from anchorhold.engine.scores.standard import Labels, LogLikelihood, OutputNorm

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
    "ReadingEvidence",
    "Rows",
    "Score",
]
