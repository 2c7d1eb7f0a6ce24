"""Taking inputs in, with what the model says of them now: what every later look at them is compared with."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_flatten

from anchorhold.engine.batches import Forward
from anchorhold.errors import BatchError, ConfigurationError, warn
from anchorhold.guard.core import Core, GuardState, Runtime
from anchorhold.guard.stepping.attachment import Attachment
from anchorhold.retention.diagnosis import measured_from, never_binds
from anchorhold.retention.kept_set import KeptSet, keep, taken
from anchorhold.retention.predictions import NO_CLASSES
from anchorhold.tensors.sharding import is_sharded
from anchorhold.tensors.summaries import checksum

_MEASURED = "measured from"
MANY = 0.1
"""The part of a set that was measured from, from which it is told: a few may be alike by chance."""
FEW = 10
"""The samples below which a set is told to be too small for a tolerance.

What others of its kind have lost is told by the standard error of those that are kept, and that is itself off by
1/√(2(n − 1)) of it: by half for three samples, by a quarter for ten. Of fewer nobody can say how little they tell.
"""


def keep_inputs(
    core: Core,
    attachment: Attachment,
    inputs: Iterable[Any],
    name: str | None,
    forward: Forward | None,
    samples: int,
) -> KeptSet:
    """Keep some inputs of a name, or of the next number, in one process or in several."""
    for measure, ledger in core.state.ledgers.items():  # of what is no classifier, the KL would be of a softmax
        likelihood = getattr(ledger.measure, "likelihood", None)
        if likelihood in ("gaussian", "bernoulli"):
            raise ConfigurationError(f"keep() beside {measure} with likelihood={likelihood!r}. {NO_CLASSES}")
    chosen = core.runtime.ranks.together(lambda: core.state.kept.free_name(name))
    core.state.kept.refuse_in_place_of_expected(chosen, in_a_task=bool(core.task.steps))
    batches = core.runtime.ranks.together(lambda: taken(inputs, samples))
    sharded = core.runtime.ranks.size > 1 and any(map(is_sharded, core.runtime.model.parameters()))
    if sharded and len(set(counts := core.runtime.ranks.each(lambda: len(batches)))) > 1:
        raise BatchError(
            f"The processes give {counts} batches to be kept, with a sharded model: FSDP gathers parameters only where "
            "all of them run alike. Give as many on each."
        )
    if core.state.is_anchored and core.is_trained and chosen not in core.state.kept.dropped:
        steps = max(core.task.steps.values())
        warn(
            f"keep() after {steps} step{'' if steps == 1 else 's'} of task {core.state.tasks + 1}: what is lost of the "
            f"set {chosen!r} counts from the weights of now, and what was lost in these steps does not. Keep inputs "
            "before training starts, right after consolidate()."
        )
    with attachment.set_aside():
        # Processes that share a sharded model's parts have to run it alike, and each would cut its own as they are.
        kept = core.runtime.ranks.together(lambda: keep(core.runtime.model, batches, chosen, forward, cut=not sharded))
    core.state.kept.add(kept)
    _warn_unless_several(core, kept)
    _warn_if_all_give_the_same(core.runtime, kept)
    warn_unless_binding(core.state, [kept])
    warn_if_measured_from(core.state, [kept])
    if attachment.attached():
        attachment.watcher.calls.watch(core.runtime.model)
    return kept


def _warn_unless_several(core: Core, kept: KeptSet) -> None:
    """Say so where a tolerance would be met on so few samples that nobody could say how far others are from them."""
    count = FEW if core.state.tolerance is None else sum(core.runtime.ranks.each(lambda: kept.samples))
    if count == 1:
        warn(
            f"The set {kept.name!r} has one sample, and the tolerance is met on that alone: it tells nothing of "
            "others of its kind, however many tokens it has. Keep a few hundred, or a long text in pieces."
        )
    elif count < FEW:
        warn(
            f"The set {kept.name!r} has {count} samples, and the tolerance is met on those alone: others of their kind "
            f"may lose far more or less, and of fewer than {FEW} the standard error says little of how much. Keep a "
            "few hundred, or a long text in pieces."
        )


def _warn_if_all_give_the_same(runtime: Runtime, kept: KeptSet) -> None:
    """Say so where processes keep the same inputs, each of which then counts several times."""
    if runtime.ranks.size == 1:
        return
    own = checksum(leaf for chunk in kept.chunks for leaf in tree_flatten(chunk.batch)[0] if isinstance(leaf, Tensor))
    every = runtime.ranks.each(lambda: own)
    times = max(map(every.count, every))
    if times > 1:
        warn(
            f"{times} of {len(every)} processes keep the same inputs as the set {kept.name!r}: each counts {times} "
            f"times, and the standard error of what is lost looks smaller than it is by a factor of {times**0.5:.2g}. "
            "Give each process inputs of its own, as with a DistributedSampler."
        )


def warn_if_measured_from(state: GuardState, kept: Iterable[KeptSet]) -> None:
    """Say once of a set that importance was measured from its inputs: it tells too little of what others lose."""
    if not any(state.measured_from.tasks):
        return
    for each in [each for each in kept if not each.warned.about(_MEASURED)]:
        shared, count = state.measured_from.shared_with(each.sample_marks), len(each.sample_marks)
        if shared and shared >= MANY * count:
            each.warned.once(_MEASURED, measured_from(each.name, shared, count))


def warn_unless_binding(state: GuardState, kept: Iterable[KeptSet]) -> None:
    """Say so where a tolerance is more than all that can be lost of a set."""
    for each in kept if state.tolerance is not None else ():
        assert state.tolerance is not None
        if (message := never_binds(each.name, each.classes, state.tolerance.nats)) is not None:
            warn(message)
