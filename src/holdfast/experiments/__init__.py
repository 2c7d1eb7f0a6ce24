"""Runs that can be trusted: a run is a frozen spec, its hash is its name, and its result is kept for good.

>>> store = Store("results")
>>> execute([paper_spec("permuted-digits", "SI", seed=seed) for seed in range(3)], store)
>>> store.frame()[["measure", "seed", "average_accuracy"]]
"""

from holdfast.experiments.bookkeeping import Summary
from holdfast.experiments.entries import Entry
from holdfast.experiments.events import (
    CheckpointRejected,
    Event,
    RunFailed,
    RunFinished,
    RunProgress,
    RunSkipped,
    RunStarted,
)
from holdfast.experiments.executor import execute
from holdfast.experiments.presets import paper_spec
from holdfast.experiments.results import Failure, Result
from holdfast.experiments.scenarios import SCENARIOS, ScenarioKind
from holdfast.experiments.search import search
from holdfast.experiments.search_outcome import Point, SearchOutcome
from holdfast.experiments.spec import Spec
from holdfast.experiments.store import Store

__all__ = [
    "SCENARIOS",
    "CheckpointRejected",
    "Entry",
    "Event",
    "Failure",
    "Point",
    "Result",
    "RunFailed",
    "RunFinished",
    "RunProgress",
    "RunSkipped",
    "RunStarted",
    "ScenarioKind",
    "SearchOutcome",
    "Spec",
    "Store",
    "Summary",
    "execute",
    "paper_spec",
    "search",
]
