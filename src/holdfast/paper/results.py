"""What runs have found, as items and claims ask for it."""

from collections.abc import Sequence
from typing import Any

from holdfast.analysis.statistics import Estimate, estimate
from holdfast.errors import HoldfastError
from holdfast.experiments import Result, Spec, Store
from holdfast.paper.presets import Benchmark, Preset
from holdfast.paper.runs import accuracy_runs


class NotMeasuredError(HoldfastError):
    """Runs that are needed have no result yet; the message says which."""


class Results:
    """The results of a preset's runs in a store, as far as there are any."""

    def __init__(self, store: Store, preset: Preset) -> None:
        self.store = store
        self.preset = preset
        self._observations: dict[str, dict[str, Any]] = {}

    def finished(self, specs: Sequence[Spec]) -> list[Result]:
        """Return the results there are."""
        return [result for spec in specs if (result := self.store.get(spec.id)) is not None]

    def accuracies(self, benchmark: Benchmark, algorithm: str) -> list[float]:
        """Return the average accuracy of each finished run of an algorithm, in per cent."""
        specs = accuracy_runs(self.preset, benchmark, algorithm)
        return [100 * result.average_accuracy for result in self.finished(specs)]

    def accuracy(self, benchmark: Benchmark, algorithm: str) -> Estimate:
        """Return the mean of these, with its standard error."""
        found = self.accuracies(benchmark, algorithm)
        if not found:
            raise NotMeasuredError(f"no run of {algorithm} on {benchmark} has finished")
        return estimate(found)

    def observed(self, specs: Sequence[Spec], probe: str) -> list[dict[str, Any]]:
        """Return what a probe saw in each finished run; at least one has finished."""
        found = [self._observed(result.spec.id)[probe] for result in self.finished(specs)]
        if not found:
            raise NotMeasuredError(f"none of the {len(specs)} runs that have the probe {probe!r} has finished")
        return found

    def _observed(self, id: str) -> dict[str, Any]:
        # Many items look at the same few runs, each of which has seen 10⁵ weights.
        if id not in self._observations:
            self._observations[id] = self.store.observations(id)
        return self._observations[id]
