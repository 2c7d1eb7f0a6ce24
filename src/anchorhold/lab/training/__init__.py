"""Learning tasks one after another: a run is a :class:`Learner`, and an engine takes its steps."""

from anchorhold.lab.training.fast import FastRuns
from anchorhold.lab.training.learner import Learner
from anchorhold.lab.training.plain_run import PlainRun
from anchorhold.lab.training.protocol import Settings
from anchorhold.lab.training.telling.observer import Observer
from anchorhold.lab.training.telling.progress import Engine, Outcome, Progress
from anchorhold.lab.training.telling.retention import Seen, TaskRetention

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
