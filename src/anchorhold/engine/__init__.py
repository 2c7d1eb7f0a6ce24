"""The engine: per-sample gradients of a model's scores, added up as a measure or a form wants them.

What is differentiated stands in ``scores``, how a layer's gradients follow in ``rules``, what is added up in
``reductions``, how a forward pass is read in ``tracing``, and how families of models read their batches in
``conventions``. ``accumulator`` puts them together.
"""

from anchorhold.engine.accumulator import SampleAccumulator, SampleImportance, sample_importance
from anchorhold.engine.conventions import register_convention
from anchorhold.engine.phi import ABSOLUTE, IDENTITY, SQUARE, Phi
from anchorhold.engine.reductions import Arrival, DiagonalReduction, Reduction
from anchorhold.engine.rules import Part, Rule, register_rule
from anchorhold.engine.scores import CustomScore, LogLikelihood, OutputNorm, PositionScore, Rows, Score
from anchorhold.engine.tracing.plan import Plans

__all__ = [
    "ABSOLUTE",
    "IDENTITY",
    "SQUARE",
    "Arrival",
    "CustomScore",
    "DiagonalReduction",
    "LogLikelihood",
    "OutputNorm",
    "Part",
    "Phi",
    "Plans",
    "PositionScore",
    "Reduction",
    "Rows",
    "Rule",
    "SampleAccumulator",
    "SampleImportance",
    "Score",
    "register_convention",
    "register_rule",
    "sample_importance",
]
