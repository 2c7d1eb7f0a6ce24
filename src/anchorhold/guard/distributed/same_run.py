"""That all ranks are at the same place of the same run, which is asked before a task ends on any of them.

What differs is named: a setting, a count of steps, or the parameter whose weights or importance are not the same.
"""

from collections.abc import Mapping

from torch import Tensor

from anchorhold.adapters import in_parts
from anchorhold.guard.core import Core
from anchorhold.settings import written
from anchorhold.tensors.checksums import checksum
from anchorhold.tensors.sharding import is_sharded


def refuse_unless_same_run(core: Core, asked: Mapping[str, object]) -> None:
    """Raise on every rank unless all of them are at the same place of the same run, and are asked for the same."""
    if core.runtime.ranks.size == 1:
        return
    facts: dict[str, object] = {
        "the number of consolidated tasks": core.state.tasks,
        "the measures": core.state.settings,
        "the measure that drives the penalty": core.state.driver,
        "its form": (type(core.state.driving.form).__name__, written(core.state.driving.form)),
        "the protected parameters": {name: tuple(p.shape) for name, p in core.runtime.parameters.items()},
        "the steps of this task": core.task.steps,
        "the strength and the decay": (core.state.strength, core.state.decay),
        "the strength as it was given": core.state.said_strength,
        "where the hold is centred": (core.options.anchor_kind, core.options.gradient_term),
        "whether the hold is implicit": core.state.implicit.value,
        "the space": core.state.space.value,
        "the tolerance": None if core.state.tolerance is None else core.state.tolerance.nats,
        "the kept sets": list(core.state.kept),
        "the holds": {hold.name: (hold.strength, hold.share, hold.settings()) for hold in core.options.holds},
        **asked,
    }
    totals: dict[str, list[Tensor]] = {}
    for ledger in core.state.ledgers.values():
        for matrix in ledger.total.values():
            totals.setdefault(matrix.block.parameters[0], []).extend(matrix.state().values())
    for name, change in core.state.merged_anchor.items():
        kept = [*in_parts(change).values(), *totals.get(name, ())]
        facts[f"what is known about the merged {name!r} (by checksum)"] = checksum(kept)
    # Each rank has its own part of a sharded tensor; all others are copies.
    for name, parameter in core.runtime.parameters.items():
        if not is_sharded(parameter):
            every = (core.state.anchor, core.state.linear_term, core.task.start, *core.state.running())
            kept = [tensors[name] for tensors in every if name in tensors]
            facts[f"the weights {name!r} (by checksum)"] = checksum([parameter])
            facts[f"what is known about {name!r} (by checksum)"] = checksum([*kept, *totals.get(name, ())])
    core.runtime.ranks.refuse_unless_equal(facts)
