"""That all ranks are at the same place of the same run, which is asked before a task ends on any of them.

What differs is named: a setting, a count of steps, or the parameter whose weights or importance are not the same.
"""

from collections.abc import Mapping

from torch import Tensor

from anchorhold.adapters import in_parts
from anchorhold.guard.memory import Memory
from anchorhold.settings import written
from anchorhold.tensors.checksums import checksum
from anchorhold.tensors.sharding import is_sharded


def refuse_unless_same_run(memory: Memory, asked: Mapping[str, object]) -> None:
    """Raise on every rank unless all of them are at the same place of the same run, and are asked for the same."""
    if memory.ranks.size == 1:
        return
    facts: dict[str, object] = {
        "the number of consolidated tasks": memory.tasks,
        "the measures": memory.settings,
        "the measure that drives the penalty": memory.driver,
        "its form": (type(memory.driving.form).__name__, written(memory.driving.form)),
        "the protected parameters": {name: tuple(p.shape) for name, p in memory.parameters.items()},
        "the steps of this task": memory.steps,
        "the strength and the decay": (memory.strength, memory.decay),
        "the strength as it was given": memory.said_strength,
        "where the hold is centred": (memory.anchor_kind, memory.gradient_term),
        "whether the hold is implicit": memory.implicit,
        "the space": memory.space,
        "the tolerance": None if memory.tolerance is None else memory.tolerance.nats,
        "the kept sets": list(memory.kept),
        "the holds": {hold.name: (hold.strength, hold.share, hold.settings()) for hold in memory.holds},
        **asked,
    }
    totals: dict[str, list[Tensor]] = {}
    for ledger in memory.ledgers.values():
        for matrix in ledger.total.values():
            totals.setdefault(matrix.block.parameters[0], []).extend(matrix.state().values())
    for name, change in memory.merged_anchor.items():
        kept = [*in_parts(change).values(), *totals.get(name, ())]
        facts[f"what is known about the merged {name!r} (by checksum)"] = checksum(kept)
    # Each rank has its own part of a sharded tensor; all others are copies.
    for name, parameter in memory.parameters.items():
        if not is_sharded(parameter):
            every = (memory.anchor, memory.tilt, memory.start, *memory.running())
            kept = [tensors[name] for tensors in every if name in tensors]
            facts[f"the weights {name!r} (by checksum)"] = checksum([parameter])
            facts[f"what is known about {name!r} (by checksum)"] = checksum([*kept, *totals.get(name, ())])
    memory.ranks.refuse_unless_equal(facts)
