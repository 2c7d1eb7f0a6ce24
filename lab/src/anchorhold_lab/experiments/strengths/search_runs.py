"""The runs of a search, and what came out of them."""

from collections.abc import Callable, Sequence

from anchorhold_lab.experiments.running.bookkeeping import Summary
from anchorhold_lab.experiments.specs.spec import JudgeBy, Spec
from anchorhold_lab.experiments.store.store import Store
from anchorhold_lab.experiments.strengths.search_outcome import Point, Stopped


class PointRuns:
    """Makes the runs of points whose results the store lacks.

    Args:
        make: makes a run's spec from strength or relative_strength, reinitialise, seed and judge_by.
        store: where results are, and go to.
        run: makes runs into a store.
        relative: whether strengths are relative ones.
    """

    def __init__(
        self,
        make: Callable[..., Spec],
        store: Store,
        run: Callable[[Sequence[Spec], Store], Summary],
        *,
        relative: bool = False,
    ) -> None:
        self.make, self.store, self.run = make, store, run
        self.relative = relative
        self.stopped: Stopped | None = None
        """Why some runs have neither a result nor a failure, if so."""
        self.last_failure = ""

    def points(
        self, asked: Sequence[tuple[float, bool]], seeds: Sequence[int], judge_by: JudgeBy
    ) -> list[Point | None]:
        """Return the points of some strengths, with re-initialisation or without; ``None`` where runs are missing."""
        name = "relative_strength" if self.relative else "strength"
        specs = {
            (strength, reinitialise): [
                self.make(**{name: strength}, reinitialise=reinitialise, seed=seed, judge_by=judge_by) for seed in seeds
            ]
            for strength, reinitialise in asked
        }
        # In one go, since runs that differ in seed and strength train side by side.
        left = [spec for each in specs.values() for spec in each if self.store.status(spec.id) != "finished"]
        interrupted = self.run(left, self.store).interrupted if left else False
        if any(self.store.status(spec.id) not in ("finished", "failed") for spec in left):
            self.stopped = "interrupted" if interrupted else "waiting"
        return [self._point(strength, reinitialise, specs[strength, reinitialise]) for strength, reinitialise in asked]

    def _point(self, strength: float, reinitialise: bool, specs: Sequence[Spec]) -> Point | None:
        accuracies: list[float | None] = []
        for spec in specs:
            result = self.store.get(spec.id)
            if result is None:
                failures = self.store.failures(spec.id)
                if not failures:
                    return None
                self.last_failure = failures[-1].reason
            accuracies.append(None if result is None else result.average_accuracy)
        return Point(strength, reinitialise, tuple(accuracies), self.relative)
