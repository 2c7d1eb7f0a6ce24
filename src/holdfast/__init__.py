"""Keeps neural networks from forgetting: importance-based regularisation for PyTorch.

>>> guard = holdfast.Consolidator(model, holdfast.SOS(), strength=500.0)
>>> guard.attach(optimizer)          # every optimizer.step() is now observed, and held back where it matters
>>> guard.consolidate(batches)       # at the end of each task
"""

import holdfast.integrations.huggingface_batches  # noqa: F401 (lets language models' batches be read as theirs)
from holdfast.errors import (
    BatchError,
    ConfigurationError,
    DataError,
    HoldfastError,
    HoldfastWarning,
    MissingExtraError,
    ModelError,
    NotFiniteError,
    OptimizerError,
    OrderError,
    ProtectError,
    StateError,
    StoreError,
)
from holdfast.forms import Dense, Form, Kronecker, LowRank, Rotated, register_form
from holdfast.guard import Consolidator, TaskImportance, averaged_weights
from holdfast.holds import Hold, register_hold
from holdfast.measures import (
    L2,
    MAS,
    SI,
    SIB,
    SIU,
    SOS,
    AbsoluteFisher,
    FineTune,
    Fisher,
    Magnitude,
    Measure,
    PathMeasure,
    PosteriorPrecision,
    RootFisher,
    SampleMeasure,
    WeightMeasure,
    measure,
    measures,
    register_measure,
)
from holdfast.measures.recurrences import unbiased_alpha
from holdfast.merging import merge
from holdfast.persample.engine import SampleAccumulator, SampleImportance, sample_importance
from holdfast.persample.phi import ABSOLUTE, SQUARE
from holdfast.persample.scores import CustomScore, LogLikelihood, OutputNorm, Score

__version__ = "0.1.0"

__all__ = [
    "ABSOLUTE",
    "L2",
    "MAS",
    "SI",
    "SIB",
    "SIU",
    "SOS",
    "SQUARE",
    "AbsoluteFisher",
    "BatchError",
    "ConfigurationError",
    "Consolidator",
    "CustomScore",
    "DataError",
    "Dense",
    "FineTune",
    "Fisher",
    "Form",
    "Hold",
    "HoldfastError",
    "HoldfastWarning",
    "Kronecker",
    "LogLikelihood",
    "LowRank",
    "Magnitude",
    "Measure",
    "MissingExtraError",
    "ModelError",
    "NotFiniteError",
    "OptimizerError",
    "OrderError",
    "OutputNorm",
    "PathMeasure",
    "PosteriorPrecision",
    "ProtectError",
    "RootFisher",
    "Rotated",
    "SampleAccumulator",
    "SampleImportance",
    "SampleMeasure",
    "Score",
    "StateError",
    "StoreError",
    "TaskImportance",
    "WeightMeasure",
    "averaged_weights",
    "measure",
    "measures",
    "merge",
    "register_form",
    "register_hold",
    "register_measure",
    "sample_importance",
    "unbiased_alpha",
]
