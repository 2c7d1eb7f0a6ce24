"""The names that ``anchorhold`` itself has; the rarer ones are in its packages, such as ``anchorhold.measures``."""

from anchorhold.engine import sample_importance
from anchorhold.errors import AnchorholdError, AnchorholdWarning
from anchorhold.evaluation import forgetting
from anchorhold.forms import Diagonal, Kronecker, LowRank, Rotated, register_form
from anchorhold.guard import Guard, GuardOptions, averaged_weights
from anchorhold.holds import DarkExperience, Distillation, Projection, Replay, Variational, register_hold
from anchorhold.measures import (
    L2,
    MAS,
    SI,
    SIB,
    SIU,
    SOS,
    AbsoluteFisher,
    FineTune,
    Fisher,
    OnlineEWC,
    PosteriorPrecision,
    RootFisher,
    RWalk,
    register_measure,
)
from anchorhold.merging import choose_share, merge
from anchorhold.own_text import OwnText, write_text
from anchorhold.protection import protect
from anchorhold.retention import Tolerance
from anchorhold.task_free import TaskFree

__all__ = [
    "L2",
    "MAS",
    "SI",
    "SIB",
    "SIU",
    "SOS",
    "AbsoluteFisher",
    "AnchorholdError",
    "AnchorholdWarning",
    "DarkExperience",
    "Diagonal",
    "Distillation",
    "FineTune",
    "Fisher",
    "Guard",
    "GuardOptions",
    "Kronecker",
    "LowRank",
    "OnlineEWC",
    "OwnText",
    "PosteriorPrecision",
    "Projection",
    "RWalk",
    "Replay",
    "RootFisher",
    "Rotated",
    "TaskFree",
    "Tolerance",
    "Variational",
    "averaged_weights",
    "choose_share",
    "forgetting",
    "merge",
    "protect",
    "register_form",
    "register_hold",
    "register_measure",
    "sample_importance",
    "write_text",
]
