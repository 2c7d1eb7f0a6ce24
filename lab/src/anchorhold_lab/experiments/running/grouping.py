"""Which runs train together: those that differ in nothing but seed and strength."""

import dataclasses
import math
from collections.abc import Callable, Sequence

from anchorhold.errors import DamagedError
from anchorhold_lab.experiments.specs.spec import Spec
from anchorhold_lab.experiments.store.checkpoints import has_checkpoint
from anchorhold_lab.experiments.store.store import Store


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that train together."""

    members: tuple[Spec, ...]
    """All of them, in the order in which they train."""
    wanted: tuple[Spec, ...]
    """Those whose result is still to be written; the others take part because they did when the group was begun."""


def plan(specs: Sequence[Spec], store: Store, side_by_side: int, complain: Callable[[str], None]) -> list[Group]:
    """Return all runs in groups.

    First come those that were begun together, which go on together however many are asked for now: a checkpoint is of
    all of them. Then come the others, as many as fit, and those whose group cannot be read, of which it is told.

    Args:
        specs: the runs.
        store: where they were begun.
        side_by_side: how many may train together.
        complain: is told of every file that cannot be used.
    """
    left = {spec.id: spec for spec in specs}
    groups = []
    for damage in store.group_damage():
        complain(damage)
    for ids in store.begun_groups():
        wanted = tuple(left[run] for run in ids if run in left and store.status(run) == "started")
        over = sum(store.status(run) in ("finished", "failed") for run in ids)
        if wanted and len(wanted) + over == len(ids):
            try:
                members = tuple(left[run] if run in left else store.spec(run) for run in ids)
            except DamagedError as error:
                complain(f"{error} Without it, the runs that were begun together with this one begin anew.")
                continue
            groups.append(Group(members, wanted))
            for spec in wanted:
                del left[spec.id]
    alike: dict[Spec | str, list[Spec]] = {}
    for run, spec in left.items():
        alone = spec.engine == "plain" or has_checkpoint(store.run_folder(run))
        kind = dataclasses.replace(spec, seed=0, strength=0.0, relative_strength=None)
        alike.setdefault(run if alone else kind, []).append(spec)
    for found in alike.values():
        # Ten where eight fit are five and five: two by themselves would leave most of the device idle.
        size = math.ceil(len(found) / math.ceil(len(found) / side_by_side))
        chunks = [tuple(found[i : i + size]) for i in range(0, len(found), size)]
        groups += [Group(chunk, chunk) for chunk in chunks]
    return groups
