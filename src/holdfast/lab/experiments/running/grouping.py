"""Which runs train together: those that differ in nothing but seed and strength."""

import dataclasses
import math
from collections.abc import Sequence

from holdfast.lab.experiments.specs.spec import Spec
from holdfast.lab.experiments.store.checkpoints import has_checkpoint
from holdfast.lab.experiments.store.store import Store


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that train together."""

    members: tuple[Spec, ...]
    """All of them, in the order in which they train."""
    wanted: tuple[Spec, ...]
    """Those whose result is still to be written; the others take part because they did when the group was begun."""


def plan(specs: Sequence[Spec], store: Store, side_by_side: int) -> list[Group]:
    """Return all runs in groups.

    First come those that were begun together, which go on together however many are asked for now: a checkpoint is of
    all of them. Then come the others, as many as fit.
    """
    left = {spec.id: spec for spec in specs}
    groups = []
    for ids in store.begun_groups():
        wanted = tuple(left[run] for run in ids if run in left and store.status(run) == "started")
        over = sum(store.status(run) in ("finished", "failed") for run in ids)
        if wanted and len(wanted) + over == len(ids):
            groups.append(Group(tuple(store.spec(run) for run in ids), wanted))
            for spec in wanted:
                del left[spec.id]
    alike: dict[Spec | str, list[Spec]] = {}
    for run, spec in left.items():
        alone = spec.engine == "plain" or has_checkpoint(store.run_folder(run))
        alike.setdefault(run if alone else dataclasses.replace(spec, seed=0, strength=0.0), []).append(spec)
    for found in alike.values():
        # Ten where eight fit are five and five: two by themselves would leave most of the device idle.
        size = math.ceil(len(found) / math.ceil(len(found) / side_by_side))
        chunks = [tuple(found[i : i + size]) for i in range(0, len(found), size)]
        groups += [Group(chunk, chunk) for chunk in chunks]
    return groups
