r"""Watching micro-batches go by at a learning rate of 0: importance without a step, and without per-sample gradients.

Each micro-batch goes forward and backward through the model as in training, so that FSDP2 gathers a layer at a time and
tensor parallelism takes its part, and all that is kept is spread as the parameters are. A single process, and one of a
DDP job, has micro-batches of its own; those that FSDP2 shards a model over share one, made of a batch from each.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from anchorhold.engine.batches import Batch, Forward, KeptInputs, call_model, check_batches
from anchorhold.engine.isolation import evaluation_with_gradients
from anchorhold.engine.refusals import refuse_merged, refuse_nested_backward
from anchorhold.errors import BatchError, ModelError, OrderError
from anchorhold.guard.batches import (
    Reader,
    check_read_alike,
    look_at_classes,
    warn_if_alone_among_several,
)
from anchorhold.guard.core import Core, GuardState
from anchorhold.guard.distributed.ranks import is_fully_sharded, refuse_unless_averaging
from anchorhold.guard.microbatches.batch_scores import BatchScore, Scored
from anchorhold.guard.microbatches.gradient_sums import (
    GradientSums,
    MeanKey,
    Watched,
    nothing_seen,
    refuse_unless_finite,
    weights_sum,
)
from anchorhold.guard.microbatches.support import MEAN_LOSS, MicrobatchSupport, taken_measures
from anchorhold.guard.monitor import Monitor
from anchorhold.guard.stepping.observed import gradients_by_backward
from anchorhold.guard.task_classes import together
from anchorhold.measures.base import Seen
from anchorhold.tensors.sharding import is_sharded, like_parameter, local
from anchorhold.tensors.storage import put_back, running_dtype, to_compute


def measure_microbatches(
    core: Core, monitors: Sequence[Monitor], batches: Iterable[Any], forward: Forward | None
) -> None:
    """Show micro-batches to the guard's measures, and keep what they make of them until the task is consolidated."""
    ranks = core.runtime.ranks
    taken = ranks.together(lambda: _checked(core))
    given = ranks.together(lambda: check_batches(batches))
    if not any(map(is_sharded, core.measured.values())):
        warn_if_alone_among_several(ranks)
    call = KeptInputs(forward or call_model)
    before = {} if core.task.watched is None else core.task.watched.progress
    scores = [BatchScore(core, asked, call, before.get(asked)) for asked in taken.of_samples]
    path = BatchScore(core, MEAN_LOSS, call) if taken.along_path else None
    every = scores if path is None else [*scores, path]
    reader = Reader(given, every)
    with _path_kept(core), evaluation_with_gradients(core.runtime.model, core.measured.values()):
        sums = _go_through(core, taken, scores, path, reader)
        check_read_alike(ranks, every)
        if not all(score.counted or score.full_before for score in every):
            raise nothing_seen()
        ranks.together(lambda: _refuse_unless_finite(core.state, taken, sums))
    classes = together(ranks.each(lambda: reader.classes))
    look_at_classes(monitors, classes, every)
    watched = core.task.watched or Watched(weights_sum(core.runtime.model))
    for asked, found in sums.items():
        watched.sums.setdefault(asked, GradientSums()).add_all(found)
    watched.progress |= {score.asked: score.progress for score in scores}
    watched.classes |= classes
    core.task.watched = watched


def _checked(core: Core) -> MicrobatchSupport:
    """Return what is asked for, or refuse a model that it cannot be had of."""
    taken = taken_measures(core)
    refuse_merged(core.runtime.model, core.measured)
    if core.task.watched is not None:
        core.task.watched.refuse_unless_at(core.runtime.model)
    if is_fully_sharded(core.runtime.model):
        refuse_unless_averaging(core.runtime.model)
        for name, parameter in core.measured.items():
            if not is_sharded(parameter) and core.runtime.ranks.size > 1:
                raise ModelError(
                    f"gradients.microbatches() with {name!r}, which FSDP leaves as it is beside layers that it shards: "
                    "nothing brings its gradients together. Call fully_shard(model) on the whole model too."
                )
            if not parameter.requires_grad:
                raise OrderError(
                    f"gradients.microbatches() with {name!r}, which is held and frozen: FSDP finds no gradient of it. "
                    "Unfreeze it for the while, or call consolidate(batches)."
                )
    return taken


@contextlib.contextmanager
def _path_kept(core: Core) -> Iterator[None]:
    """Put back what measures along the path have gathered, if anything goes wrong."""
    steps = dict(core.task.steps)
    running = {
        label: {state: {n: t.clone() for n, t in tensors.items()} for state, tensors in ledger.running.items()}
        for label, ledger in core.state.ledgers.items()
        if ledger.measure.needs.path
    }
    try:
        yield
    except BaseException:
        core.task.steps = steps
        for label, kept in running.items():
            core.state.ledgers[label].running = kept
        core.runtime.version += 1
        raise


def _go_through(
    core: Core, taken: MicrobatchSupport, scores: list[BatchScore], path: BatchScore | None, reader: Reader
) -> dict[MeanKey, GradientSums]:
    """Go through all batches, all processes in step, and return the sums of all; their first ones count first."""
    ranks, sharded = core.runtime.ranks, is_fully_sharded(core.runtime.model)
    sums = {score.asked: GradientSums() for score in scores}
    last: Batch | None = None
    sizes = ranks.each(reader.read_next)
    while any(sizes):
        last, before = reader.batch or last, sum(sizes[: ranks.rank])
        if sharded and not all(sizes):
            ranks.together(partial(_refuse_unless_given, last))
        for score in scores:
            own = score.wanted(reader.batch, before)
            found = _shared_gradient(core, score, own, last) if sharded else _own_gradient(core, score, own)
            if found is not None:
                sums[score.asked].add(*found)
                sums[score.asked].outputs = None if score.reading is None else score.reading.description
            score.seen += sum(sizes)
        if path is not None:
            mean = _mean_gradient(core, path, reader.batch, last)
            if mean is not None:
                _step(core, taken, *mean)
                path.counted += mean[1]
            path.seen += sum(sizes)
        sizes = ranks.each(reader.read_next)
    if not sharded:
        like = {name: _nothing(parameter) for name, parameter in core.measured.items()}
        sums = {asked: own.of_all(ranks, like) for asked, own in sums.items()}
    for score in scores:
        score.counted = sums[score.asked].samples
    return sums


def _refuse_unless_finite(state: GuardState, taken: MicrobatchSupport, sums: Mapping[MeanKey, GradientSums]) -> None:
    """Refuse gradients that are not numbers, before they spoil what was seen before."""
    for own in sums.values():
        own.refuse_unless_finite()
    for label in taken.along_path:
        for tensors in state.ledgers[label].running.values():
            for name, tensor in tensors.items():
                refuse_unless_finite(name, [tensor])


_Found = tuple[dict[str, Tensor], int, int, int]
"""The mean gradient of a micro-batch, by parameter, how many samples it has, what they count, and its positions."""


def _own_gradient(core: Core, score: BatchScore, batch: Batch | None) -> _Found | None:
    """Return the gradient of this process's own micro-batch; raises on all processes if it does on one."""

    def find() -> _Found | None:
        if batch is None:
            return None
        scored = score.scored(score.outputs(batch), batch)
        if not scored.samples:
            return None
        mean = scored.total / scored.samples
        if core.task.watched is None:
            refuse_nested_backward(mean, core.measured)
        gradients = torch.autograd.grad(mean, list(core.measured.values()), allow_unused=True)
        return _by_name(core, gradients), *scored[1:]

    return core.runtime.ranks.together(find)


def _shared_gradient(core: Core, score: BatchScore, batch: Batch | None, last: Batch | None) -> _Found | None:
    """Return the gradient of a micro-batch that is made of all processes' batches.

    A process that has no batch left takes part with its last one, which then counts nothing: the others wait for its
    part of every layer.
    """
    ranks, run = core.runtime.ranks, batch or last
    assert run is not None
    outputs = score.outputs(run)
    found: list[Scored] = []

    def count() -> tuple[int, int, int]:
        found.append(score.scored(outputs, run))
        return found[0][1:] if batch is not None else (0, 0, 0)

    samples, counted, positions = (sum(each) for each in zip(*ranks.each(count), strict=True))
    if not samples:
        return None
    weight = ranks.size / samples if batch is not None else 0.0  # FSDP takes the mean over processes
    gradients = gradients_by_backward(found[0].total * weight, list(core.measured.values()), core.runtime.model, None)
    return _by_name(core, gradients), samples, counted, positions


def _refuse_unless_given(batch: Batch | None) -> None:
    if batch is None:
        raise BatchError(
            "gradients.microbatches() with a process that was given no batch at all, of a model that all of them have "
            "to run together. Give each of them one at least."
        )


def _mean_gradient(
    core: Core, score: BatchScore, batch: Batch | None, last: Batch | None
) -> tuple[dict[str, Tensor], int] | None:
    """Return the gradient of the mean loss over all processes' batches, as a step of training would have it."""
    if is_fully_sharded(core.runtime.model):
        shared = _shared_gradient(core, score, batch, last)
        if shared is None:
            return None
        gradients, samples, counted, _ = shared
        return {name: -gradient * (samples / counted) for name, gradient in gradients.items()}, samples
    own = _own_gradient(core, score, batch)
    gradients, samples, counted, _ = own or ({}, 0, 0, 0)
    every = core.runtime.ranks.each(lambda: (samples, counted))
    all_samples, all_counted = (sum(each) for each in zip(*every, strict=True))
    if not all_counted:
        return None
    share = -samples / all_counted
    total = {
        n: core.runtime.ranks.add_up(gradients[n] * share if own else _nothing(p)) for n, p in core.measured.items()
    }
    return total, all_samples


@torch.no_grad()
def _step(core: Core, taken: MicrobatchSupport, gradients: Mapping[str, Tensor], samples: int) -> None:
    """Let measures along the path see a gradient, as that of a step by which nothing moves."""
    for name, parameter in core.measured.items():
        number = core.task.steps.get(name, 0)
        for label, measure in taken.along_path.items():
            kept = core.state.ledgers[label].states_of(name, parameter)
            used = {state: to_compute(tensor, parameter) for state, tensor in kept.items()}
            seen = Seen(gradients[name], samples=samples, number=number)
            measure.update_({state: local(tensor) for state, tensor in used.items()}, seen)
            for state, tensor in used.items():
                put_back(tensor, kept[state])
        core.task.steps[name] = number + 1


def _by_name(core: Core, gradients: Iterable[Tensor | None]) -> dict[str, Tensor]:
    """Return gradients by name, this process's parts of them, in single precision at least; 0 for what was not used."""
    found = {}
    for (name, parameter), gradient in zip(core.measured.items(), gradients, strict=True):
        if gradient is None:
            found[name] = _nothing(parameter)
        else:
            dense = gradient.to_dense() if gradient.is_sparse else gradient
            found[name] = local(like_parameter(dense.detach(), parameter)).to(running_dtype(parameter))
    return found


def _nothing(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(local(parameter), dtype=running_dtype(parameter), requires_grad=False)
