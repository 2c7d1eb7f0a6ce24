"""What runs have found, as items and claims ask for it."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from anchorhold.errors import AnchorholdError, DamagedError
from anchorhold_lab.analysis import Estimate, estimate
from anchorhold_lab.experiments import Result, Spec, Store
from anchorhold_lab.experiments.store.run_results import Status
from studies.benzing2020.needed_runs import accuracy_runs
from studies.benzing2020.presets import Benchmark, Preset


class NotMeasuredError(AnchorholdError):
    """Runs that are needed have no result yet; the message says which."""


class Results:
    """The results of a preset's runs in a store, as far as there are any when they are first asked for.

    Args:
        store: where they are.
        preset: the size of the study.
        damaged_searches: why a strength could not be searched for, by benchmark and algorithm, where the store is
            damaged.
    """

    def __init__(
        self, store: Store, preset: Preset, damaged_searches: Mapping[tuple[str, str], str] | None = None
    ) -> None:
        self.store = store
        self.preset = preset
        self.damaged_searches = damaged_searches or {}
        # Many items and claims look at the same runs, some of which have seen 10⁵ weights.
        self._observations: dict[str, dict[str, Any]] = {}
        self._read: dict[str, tuple[Result | None, str]] = {}

    def finished(self, specs: Sequence[Spec]) -> list[Result]:
        """Return the results there are."""
        return [result for spec in specs if (result := self.result(spec)) is not None]

    def result(self, spec: Spec) -> Result | None:
        """Return a run's result; ``None`` if there is none, or the run is damaged."""
        return self._result_and_damage(spec)[0]

    def damage(self, spec: Spec) -> str:
        """Return which of a run's files cannot be used, and what to do about it; nothing if all is well."""
        return self._result_and_damage(spec)[1]

    def status(self, spec: Spec) -> Status | Literal["damaged"]:
        """Return how a run stands; one of whose files some cannot be used is damaged, whatever the others say."""
        return "damaged" if self.damage(spec) else self.store.status(spec.id)

    def why_missing(self, spec: Spec) -> str | None:
        """Return why a run has no result, where something is known about that."""
        if damage := self.damage(spec):
            return damage
        failures = self.store.failures(spec.id)
        return failures[-1].reason if failures else None

    def accuracies(self, benchmark: Benchmark, algorithm: str) -> list[float]:
        """Return the average accuracy of each finished run of an algorithm, in per cent."""
        specs = accuracy_runs(self.preset, benchmark, algorithm)
        return [100 * result.average_accuracy for result in self.finished(specs)]

    def accuracy_by_seed(self, benchmark: Benchmark, algorithm: str) -> dict[int, float]:
        """Return the same by the seeds of the runs; at least one has finished."""
        specs = accuracy_runs(self.preset, benchmark, algorithm)
        found = {run.spec.seed: 100 * run.average_accuracy for run in self.finished(specs)}
        if not found:
            raise NotMeasuredError(f"no run of {algorithm} on {benchmark} has finished")
        return found

    def accuracy(self, benchmark: Benchmark, algorithm: str) -> Estimate:
        """Return the mean of these, with its standard error."""
        return estimate(self.accuracy_by_seed(benchmark, algorithm).values())

    def observed(self, specs: Sequence[Spec], probe: str) -> list[dict[str, Any]]:
        """Return what a probe saw in each finished run; at least one has finished.

        What was seen is large, so that a store may be passed on without it: such a run counts as not made.
        """
        seen = [self._observed(result.spec.id) for result in self.finished(specs)]
        found = [each[probe] for each in seen if probe in each]
        if not found:
            where = specs[0].scenario
            why = "has left in the store what it saw" if seen else "has finished"
            raise NotMeasuredError(f"none of the {len(specs)} runs on {where} that look at {probe} {why}")
        return found

    def _result_and_damage(self, spec: Spec) -> tuple[Result | None, str]:
        """Return a run's result, if all that is reported of it can be read, and what cannot."""
        if spec.id not in self._read:
            try:
                result = self.store.get(spec.id)
                if result is None:
                    self.store.failures(spec.id)
                elif spec.probes:
                    self._observed(spec.id)
                self._read[spec.id] = result, ""
            except DamagedError as error:
                self._read[spec.id] = None, str(error)
        return self._read[spec.id]

    def _observed(self, id: str) -> dict[str, Any]:
        if id not in self._observations:
            self._observations[id] = self.store.observations(id) if self.store.has_observations(id) else {}
        return self._observations[id]
