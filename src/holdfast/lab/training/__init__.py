"""Learning tasks one after another: a run is a :class:`Learner`, and an engine takes its steps."""

from holdfast.lab.training.fast import FastRuns
from holdfast.lab.training.learner import Learner
from holdfast.lab.training.plain_run import PlainRun
from holdfast.lab.training.protocol import Settings
from holdfast.lab.training.telling.observer import Observer
from holdfast.lab.training.telling.progress import Engine, Outcome, Progress
from holdfast.lab.training.telling.retention import Seen, TaskRetention

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
