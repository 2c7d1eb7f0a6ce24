"""Runs that can be trusted: a run is a frozen spec, its hash is its name, and its result is kept for good.

>>> store = Store("results")
>>> execute([paper_spec("permuted-digits", "SI", seed=seed) for seed in range(3)], store)
>>> store.frame()[["measure", "seed", "average_accuracy"]]
"""

from typing import TYPE_CHECKING

from anchorhold_lab.on_demand import on_demand

if TYPE_CHECKING:
    from anchorhold_lab.experiments.running.bookkeeping import Summary
    from anchorhold_lab.experiments.running.events import (
        CheckpointRejected,
        Event,
        RunFailed,
        RunFinished,
        RunProgress,
        RunSkipped,
        RunStarted,
        StoreDamaged,
    )
    from anchorhold_lab.experiments.running.executor import execute
    from anchorhold_lab.experiments.specs.command_lines import command_of
    from anchorhold_lab.experiments.specs.paper_specs import paper_spec
    from anchorhold_lab.experiments.specs.scenario_kinds import SCENARIOS, ScenarioKind, register_scenario
    from anchorhold_lab.experiments.specs.source_files import Source, load_source
    from anchorhold_lab.experiments.specs.spec import Spec
    from anchorhold_lab.experiments.specs.usual_protocols import Protocol
    from anchorhold_lab.experiments.store.run_results import Entry, Failure, Result
    from anchorhold_lab.experiments.store.store import Store
    from anchorhold_lab.experiments.strengths.search_outcome import Point, SearchOutcome
    from anchorhold_lab.experiments.strengths.strength_search import SEARCH_SEEDS, search
    from anchorhold_lab.experiments.strengths.tried_settings import best_tried

__all__ = [
    "SCENARIOS",
    "SEARCH_SEEDS",
    "CheckpointRejected",
    "Entry",
    "Event",
    "Failure",
    "Point",
    "Protocol",
    "Result",
    "RunFailed",
    "RunFinished",
    "RunProgress",
    "RunSkipped",
    "RunStarted",
    "ScenarioKind",
    "SearchOutcome",
    "Source",
    "Spec",
    "Store",
    "StoreDamaged",
    "Summary",
    "best_tried",
    "command_of",
    "execute",
    "load_source",
    "paper_spec",
    "register_scenario",
    "search",
]

__getattr__ = on_demand(
    __name__,
    {
        "running.bookkeeping": ("Summary",),
        "running.events": (
            "CheckpointRejected",
            "Event",
            "RunFailed",
            "RunFinished",
            "RunProgress",
            "RunSkipped",
            "RunStarted",
            "StoreDamaged",
        ),
        "running.executor": ("execute",),
        "specs.command_lines": ("command_of",),
        "specs.paper_specs": ("paper_spec",),
        "specs.scenario_kinds": (
            "SCENARIOS",
            "ScenarioKind",
            "register_scenario",
        ),
        "specs.source_files": (
            "Source",
            "load_source",
        ),
        "specs.spec": ("Spec",),
        "specs.usual_protocols": ("Protocol",),
        "store.run_results": (
            "Entry",
            "Failure",
            "Result",
        ),
        "store.store": ("Store",),
        "strengths.search_outcome": (
            "Point",
            "SearchOutcome",
        ),
        "strengths.strength_search": ("SEARCH_SEEDS", "search"),
        "strengths.tried_settings": ("best_tried",),
    },
)
