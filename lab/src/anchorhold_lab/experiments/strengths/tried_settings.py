"""Settings that are tried one by one, where what is to be found is more than a strength.

Ways that are compared have as many tries each, by the same seeds on the same validation data.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from anchorhold_lab.experiments.running.bookkeeping import Summary
from anchorhold_lab.experiments.specs.spec import Spec
from anchorhold_lab.experiments.store.store import Store
from anchorhold_lab.experiments.strengths.search_outcome import Point


def best_tried(
    tried: Sequence[Mapping[str, Any]],
    make: Callable[..., Spec],
    seeds: Sequence[int],
    store: Store,
    run: Callable[[Sequence[Spec], Store], Summary],
) -> Mapping[str, Any] | None:
    """Return the try with the best mean accuracy on validation data; ``None`` if runs are missing, or all failed.

    Among equals the first is taken. Of a try some of whose runs failed, nothing is taken as long as another has none.

    Args:
        tried: changes of a spec, each a try.
        make: makes a spec from changes, seed and judge_by.
        seeds: the seeds by which each is judged.
        store: where results are, and go to.
        run: makes runs into a store.
    """
    specs = [[make(seed=seed, judge_by="validation", **changes) for seed in seeds] for changes in tried]
    left = [spec for each in specs for spec in each if store.status(spec.id) != "finished"]
    if left:
        run(left, store)
    if any(store.status(spec.id) not in ("finished", "failed") for spec in left):
        return None
    points = [_point(each, store) for each in specs]
    best = min(range(len(points)), key=lambda number: points[number].rank, default=None)
    return None if best is None or not points[best].finished else tried[best]


def _point(specs: Sequence[Spec], store: Store) -> Point:
    results = [store.get(spec.id) for spec in specs]
    return Point(0.0, False, tuple(None if result is None else result.average_accuracy for result in results))
