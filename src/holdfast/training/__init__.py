"""Learning tasks one after another: a run is a :class:`Learner`, and an engine takes its steps."""

from holdfast.training.fast import FastRuns
from holdfast.training.learner import Learner
from holdfast.training.observing import Observer
from holdfast.training.plain import PlainRun
from holdfast.training.progress import Engine, Outcome, Progress
from holdfast.training.settings import Settings

__all__ = ["Engine", "FastRuns", "Learner", "Observer", "Outcome", "PlainRun", "Progress", "Settings"]
