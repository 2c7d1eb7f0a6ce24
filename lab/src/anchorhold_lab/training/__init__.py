"""Learning tasks one after another: a run is a :class:`Learner`, and an engine takes its steps."""

from anchorhold_lab.training.fast import FastRuns
from anchorhold_lab.training.learner import Learner
from anchorhold_lab.training.plain_run import PlainRun
from anchorhold_lab.training.protocol import Settings
from anchorhold_lab.training.telling.observer import Observer
from anchorhold_lab.training.telling.progress import Engine, Outcome, Progress
from anchorhold_lab.training.telling.retention import Seen, TaskRetention

__all__ = [
    "Engine",
    "FastRuns",
    "Learner",
    "Observer",
    "Outcome",
    "PlainRun",
    "Progress",
    "Seen",
    "Settings",
    "TaskRetention",
]
