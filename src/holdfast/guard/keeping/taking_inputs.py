"""Taking inputs in, with what the model says of them now: what every later look at them is compared with."""

from collections.abc import Iterable
from typing import Any

from holdfast.errors import BatchError, ConfigurationError
from holdfast.guard.memory import Memory
from holdfast.guard.steps.attachment import Attachment
from holdfast.persample.batches import Forward
from holdfast.retention.kept_set import KeptSet, keep, taken
from holdfast.retention.predictions import NO_CLASSES
from holdfast.tensors.sharding import is_sharded


def keep_inputs(
    memory: Memory,
    attachment: Attachment,
    inputs: Iterable[Any],
    name: str | None,
    forward: Forward | None,
    samples: int,
) -> KeptSet:
    """Keep some inputs of a name, or of the next number, in one process or in several."""
    _refuse_unless_classes(memory)
    chosen = memory.ranks.together(lambda: memory.kept.free_name(name))
    memory.kept.refuse_in_place_of_expected(chosen, in_a_task=bool(memory.steps))
    batches = memory.ranks.together(lambda: taken(inputs, samples))
    _refuse_unless_run_alike(memory, len(batches))
    with attachment.set_aside():
        kept = memory.ranks.together(lambda: keep(memory.model, batches, chosen, forward))
    memory.kept.add(kept)
    if attachment.attached():
        attachment.watcher.calls.watch(memory.model)
    return kept


def _refuse_unless_run_alike(memory: Memory, batches: int) -> None:
    """Refuse inputs on which one process would run a sharded model more often than others: all must take part."""
    if memory.ranks.size == 1 or not any(map(is_sharded, memory.model.parameters())):
        return
    counts = memory.ranks.each(lambda: batches)
    if len(set(counts)) > 1:
        raise BatchError(
            f"The processes give {counts} batches to be kept, with a sharded model: FSDP gathers parameters only where "
            "all of them run alike. Give as many on each."
        )


def _refuse_unless_classes(memory: Memory) -> None:
    """Refuse to keep inputs of a model that a measure was told to be no classifier: the KL would be of a softmax."""
    for name, ledger in memory.ledgers.items():
        likelihood = getattr(ledger.measure, "likelihood", None)
        if likelihood in ("gaussian", "bernoulli"):
            raise ConfigurationError(f"keep() beside {name} with likelihood={likelihood!r}. {NO_CLASSES}")
