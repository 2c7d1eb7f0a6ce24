"""Running the cases, and what the table says of each."""

import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata

import torch

from benchmarks.audit import adapters
from benchmarks.audit.cases import Case
from benchmarks.audit.comparison import Agreement, Importance, compare, relative_error
from benchmarks.audit.definitions import AFTER_TRAINING, after_training
from benchmarks.audit.problem import Problem

REPRODUCED = 1e-4
"""An explanation counts if it gives a library's float32 numbers to within this."""


@dataclass
class Row:
    """One method of one library against one definition, over batch sizes."""

    library: str
    version: str
    method: str
    against: str
    why: str
    agreements: dict[int, Agreement] = field(default_factory=dict)
    explained: dict[int, float] = field(default_factory=dict)
    """How far the formula that explains it is from the library's numbers, relative, by batch size."""

    @property
    def reproduced(self) -> float | None:
        """The largest of these errors; ``None`` where there is no formula."""
        return max(self.explained.values()) if self.explained else None


@dataclass(frozen=True)
class Library:
    """A library that can be imported."""

    package: str
    version: str
    cases: list[Case]


def adapter_names() -> list[str]:
    """Return the names of all adapters."""
    return [module.name for module in pkgutil.iter_modules(adapters.__path__)]


def library(name: str) -> Library | str:
    """Return the library behind an adapter, or a line that says why it cannot be had."""
    try:
        adapter = importlib.import_module(f"{adapters.__name__}.{name}")
    except ImportError as error:
        return f"{name}: not installed ({error})"
    # What is run from a checkout has no version but its commit.
    version = getattr(adapter, "VERSION", None) or metadata.version(adapter.PACKAGE)
    return Library(adapter.PACKAGE, version, adapter.cases())


def rows(problem: Problem, library: str, version: str, cases: Iterable[Case], batches: Iterable[int]) -> list[Row]:
    """Run a library's cases at the batch sizes."""
    wanted = list(batches)
    return [row for case in cases for row in _rows_of(problem, library, version, case, wanted)]


def _rows_of(problem: Problem, library: str, version: str, case: Case, batches: list[int]) -> list[Row]:
    found_rows = [Row(library, version, case.method, against, case.why) for against in case.against]
    for batch in (b for b in batches if case.batches is None or b in case.batches):
        torch.manual_seed(0)
        found = case.measure(problem, batch)
        explanation = found.along_path.get("explained") if case.explained is None else case.explained(problem, batch)
        for row in found_rows:
            row.agreements[batch] = compare(found.importance, _definition(row.against, problem, found.along_path))
            if explanation is not None:
                row.explained[batch] = relative_error(found.importance, explanation)
    return found_rows


def _definition(name: str, problem: Problem, along_path: Mapping[str, Importance]) -> Importance:
    return after_training(name, problem) if name in AFTER_TRAINING else along_path[name]
