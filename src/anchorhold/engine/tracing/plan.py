"""Plan how a model's uses of its parameters are read: once for samples of one shape, on the first two of them.

The model runs on each of the two alone and on both together. Where its tensors grow is where samples lie.
"""

import hashlib
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, saved_tensors_hooks
from torch.utils._pytree import tree_flatten

from anchorhold.engine.batches import Batch, Forward
from anchorhold.engine.isolation import versions_of
from anchorhold.engine.rules.base import Part, without
from anchorhold.engine.tracing.samples import SampleLayout, layout_of, layout_of_shapes, same_values, samples_stay_apart
from anchorhold.engine.tracing.uses import Use, read_graph, record
from anchorhold.errors import ModelError

CPU_PASS = 32 * 2**20
"""Bytes of a backward pass that keep a CPU busy. While one row is less, several are sent as one (by vmap); beyond, one
row after the other is faster: every layer's backward pass runs as written, and in cache.
"""

ACCELERATOR_PASS = 256 * 2**20
"""The same on an accelerator, where few and large kernels are fast."""

MANY_ROWS = 16
"""Rows (labels) of a sample that are gathered at once at most, so that a chunk still holds many samples."""

PLANS_BYTES = 2**26
"""Bytes that the plans of one measurement may take: each holds a sample's outputs, over a large vocabulary maybe."""


@dataclass(frozen=True)
class Reading:
    """How one use is read: where its input and δ hold each sample.

    Args:
        signature: the use's own.
        input: where samples lie in its input; ``None`` where that belongs to all of them alike.
        arrivals: where samples lie in the gradients that arrive; ``None`` for a single sample.
        broadcast: whether its output was broadcast over the samples, so that gradients are read at the additions.
        shapes: of its input and of its output, for one sample.
    """

    signature: object
    input: SampleLayout | None
    arrivals: tuple[SampleLayout | None, ...]
    broadcast: bool
    shapes: tuple[torch.Size, torch.Size]

    def fits(self, use: Use, samples: int) -> bool:
        """Return whether a use is the one that was read, with tensors of so many samples."""
        if use.signature != self.signature:
            return False
        if self.broadcast:
            shapes = [shape for _, shape in use.additions]
            return len(shapes) == len(self.arrivals) and all(
                layout is not None and len(shape) > layout.dim and shape[layout.dim] == samples
                for shape, layout in zip(shapes, self.arrivals, strict=True)
            )
        given = (use.rule.input.shape, use.shape)
        for shape, layout, here in zip(self.shapes, (self.input, *self.arrivals), given, strict=True):
            if here != (shape if layout is None else layout.shape(shape, samples)):
                return False
        return True


@dataclass
class Site:
    """A use in one chunk, with where its gradients arrive and how to tell samples apart there."""

    use: Use
    reading: Reading
    wanted: Mapping[str, Part]

    @cached_property
    def edges(self) -> list[GradientEdge]:
        """The places in autograd's graph where its gradients arrive."""
        if self.reading.broadcast:
            return [edge for edge, _ in self.use.additions]
        return [] if self.use.edge is None else [self.use.edge]

    def input(self, samples: int) -> Tensor:
        """Return the call's input with samples first."""
        a = self.use.rule.input.detach()
        return a.expand(samples, *a.shape) if self.reading.input is None else self.reading.input.samples_first(a)

    def delta(self, arrived: list[Tensor | None]) -> Tensor | None:
        """Return δ as ``[V, N, ...]``, or ``None`` where nothing arrived."""
        use, reading, total = self.use, self.reading, None
        shapes = [shape for _, shape in use.additions] if reading.broadcast else [use.shape]
        for delta, shape, layout in zip(arrived, shapes, reading.arrivals, strict=True):
            if delta is None:
                continue
            one = delta.reshape(len(delta), *shape)
            if layout is None:
                one = one.unsqueeze(1)
            elif reading.broadcast:
                one = layout.unbroadcast(one, use.shape, 1)
            elif reading.input is None:  # an expanded parameter
                one = layout.unbroadcast(one, use.rule.input.shape, 1)
            else:
                one = layout.samples_first(one, lead=1)
            total = one if total is None else total + one
        return total


@dataclass
class Plan:
    """How to read each use of a model's parameters, and how much memory a sample takes.

    Args:
        readings: one for each use; ``None`` where it cannot be read.
        outputs: of the first sample.
        bytes_per_row: of a sample's δ, as it is gathered for each row, and of what the rules need for it.
        bytes_on_the_way: that a row of a sample takes while it goes backward.
        bytes_per_sample: whatever the rows: what the forward pass keeps, and one row on the way.
    """

    readings: list[Reading | None]
    outputs: Tensor
    bytes_per_row: int
    bytes_on_the_way: int
    bytes_per_sample: int

    def fits(self, uses: list[Use], samples: int) -> bool:
        """Return whether these uses are the ones that the plan was made for."""
        if len(uses) != len(self.readings):
            return False
        for reading, use in zip(self.readings, uses, strict=True):
            if reading is not None and not reading.fits(use, samples):
                return False
        return True

    def sites(
        self,
        uses: list[Use],
        outputs: Tensor,
        parameters: Mapping[str, nn.Parameter],
        coupled: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    ) -> tuple[list[Site], set[str]]:
        """Return where to collect gradients in a chunk, and the parameters that this does not cover.

        A parameter that is coupled with one that is not covered is not covered either.
        """
        without_rule, edges = read_graph(outputs, parameters)
        read = []
        for use, reading in zip(uses, self.readings, strict=True):
            if use.shape.numel() == 0:
                continue  # an expert that no sample was sent to
            seen = use.edge is not None and not use.input_changed and not use.differentiated
            if seen and use.edge is not None and reading is not None and reading.broadcast:
                # Every consumer must be an addition that was seen.
                seen = edges[use.edge.node] == len(use.additions)
            if seen and reading is not None:
                read.append((use, reading))
            else:
                without_rule |= {part.name for part in use.parts.values()}
        without_rule |= {other for name in without_rule for other in coupled.get(name, ())} & parameters.keys()
        sites = []
        for use, reading in read:
            wanted = without(use.parts, without_rule)
            if wanted:
                sites.append(Site(use, reading, wanted))
        return sites, without_rule

    def samples_within(self, budget: int, rows: int) -> int:
        """Return how many samples a chunk may hold: with all their rows, or with the first few of very many."""
        return max(1, budget // self.bytes_of_sample(rows))

    def bytes_of_sample(self, rows: int) -> int:
        """Return what one sample takes, with all its rows or with the first few of very many."""
        return self.bytes_per_row * min(rows, MANY_ROWS) + self.bytes_per_sample

    def rows_within(self, budget: int, samples: int) -> int:
        """Return how many rows of so many samples may be gathered at once."""
        return max(1, (budget - self.bytes_per_sample * samples) // (self.bytes_per_row * samples))

    def rows_together(self, budget: int, samples: int) -> int:
        """Return how many rows of so many samples are best sent backward as one."""
        wanted = CPU_PASS if self.outputs.device.type == "cpu" else ACCELERATOR_PASS
        return max(1, min(wanted, budget) // (self.bytes_on_the_way * samples))


def plan_key(
    model: nn.Module, parameters: Mapping[str, nn.Parameter], forward: object, inputs: Any
) -> tuple[object, ...]:
    """Return all that a plan follows from: the model, its weights, how it is called, and the two samples.

    Where data decide on a model's path, two others would give another plan, and other bits.
    """
    # A reference that does not keep the model: a sharded one's twin is made for a pass, whole, and goes after it.
    watched = tuple(zip(parameters, map(id, parameters.values()), strict=True))
    # By versions, which a step counts up: the numbers themselves would take a copy of every weight.
    weights = tuple(versions_of(model.parameters()))
    leaves, structure = tree_flatten(inputs)
    return weakref.ref(model), id(forward), watched, weights, str(structure), *map(_content, leaves)


def _content(leaf: object) -> object:
    """Return what is equal where an input's content is: a tensor's dtype, shape and digest, or the object itself."""
    if not isinstance(leaf, Tensor):
        return repr(leaf)
    if type(leaf) is not Tensor or leaf.layout is not torch.strided:
        return object()  # equal to nothing else
    # A lazy conjugate or negative cannot be viewed as bytes, and its memory holds other numbers.
    data = leaf.detach().cpu().resolve_conj().resolve_neg()
    data = torch.view_as_real(data) if data.is_complex() else data
    numbers = data.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return leaf.dtype, leaf.shape, hashlib.blake2b(numbers, digest_size=16).digest()


class Plans:
    """Plans that the passes and the measures of one measurement share, so that none is made twice.

    Making a plan runs the model three times, on samples alone and in a pair, and its check once more.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[object, ...], Plan] = {}

    def find(self, key: tuple[object, ...]) -> Plan | None:
        """Return the plan under this ``plan_key``, or ``None``."""
        return self._kept.get(key)

    def keep(self, key: tuple[object, ...], plan: Plan) -> None:
        """Keep a plan, and drop the oldest ones beyond ``PLANS_BYTES``."""
        self._kept[key] = plan
        # The newest stays, however large: its measurement is going on.
        while len(self._kept) > 1 and sum(kept.outputs.nbytes for kept in self._kept.values()) > PLANS_BYTES:
            del self._kept[next(iter(self._kept))]


def plan_for_one(uses: list[Use], outputs: Tensor) -> Plan:
    """Return the plan for a single sample, where everything belongs to it."""
    return _plan(
        [Reading(u.signature, None, (None,), False, (u.rule.input.shape, u.shape)) for u in uses], uses, outputs
    )


def make_plan(
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    forward: Forward,
    pair: Batch,
    accept: Callable[[Tensor], object],
) -> Plan | None:
    """Run the model on two samples, alone and together, and work out where samples lie in every use.

    ``accept`` is called with the first sample's outputs before anything goes backward, and may raise.

    Returns ``None`` where the model takes different paths for the two, or puts them in another order on its way, so
    that it must be given one at a time.
    """
    one, outputs_of_one = record(model, parameters, forward, pair[:1].inputs)
    saved = _Saved()
    try:
        with saved_tensors_hooks(saved.pack, saved.unpack):
            two, outputs = record(model, parameters, forward, pair.inputs)
    except RuntimeError as error:
        if "saved tensor hooks" not in str(error):
            raise
        two, outputs = record(model, parameters, forward, pair.inputs)  # a model that uses torch.func allows no hooks
    if layout_of_shapes(outputs_of_one.shape, outputs.shape) != SampleLayout(0):
        raise ModelError(
            f"The model's outputs have shape {tuple(outputs_of_one.shape)} for one sample and {tuple(outputs.shape)} "
            "for two; expected [N, ...]. Give a `forward` whose outputs have one row a sample. A model that compares "
            "the samples of a batch with each other (contrastive learning) has no per-sample gradient: compare each "
            "with candidates that are the same for all."
        )
    check_independent(model, outputs_of_one, outputs[:1])
    check_independent(model, record(model, parameters, forward, pair[1:].inputs)[1], outputs[1:])
    if [use.signature for use in one] != [use.signature for use in two]:
        return None
    readings = [_read(a, b) for a, b in zip(one, two, strict=True)]
    plan = _plan(readings, two, outputs, saved.bytes)
    accept(plan.outputs)
    sites, _ = plan.sites(two, outputs, parameters)
    return plan if not sites or samples_stay_apart(outputs, sites) else None


def check_independent(model: nn.Module, alone: Tensor, among_others: Tensor) -> None:
    """Raise unless a sample's outputs are the same on its own as among others.

    One sample does not tell of all: what looks back along the batch, as a recurrent layer does that takes samples for
    positions, leaves the first one as it is, and what looks ahead the last.
    """
    if same_values(alone, among_others):
        return
    hint = ""
    for name, module in model.named_modules():
        if getattr(module, "batch_first", True) is False:  # takes samples for positions, given [N, T, ...]
            hint = (
                f" {name or 'The model'} ({type(module).__name__}) was made without batch_first=True, so it takes its "
                "input as [positions, samples, ...]: if it is given [samples, positions, ...], it runs along the "
                "samples. Make it with batch_first=True, or transpose what goes in and what comes out."
            )
            break
    raise ModelError(
        "The model's outputs for one sample change when other samples are in the batch, so no per-sample gradient "
        "exists: its layers mix samples or draw random numbers in eval mode, or an input that belongs to no "
        f"sample happens to have as many entries as the batch has samples (then use another batch size).{hint}"
    )


def _read(one: Use, two: Use) -> Reading | None:
    """Return how to read a use, given it for one sample and for two."""
    shapes = (one.rule.input.shape, one.shape)
    input_grows = one.rule.input.shape != two.rule.input.shape
    if not input_grows and one.shape == two.shape:
        added = [layout_of_shapes(a[1], b[1]) for a, b in zip(one.additions, two.additions, strict=False)]
        if not added or len(one.additions) != len(two.additions) or any(x is None or x.places != 1 for x in added):
            return None
        return Reading(one.signature, None, tuple(added), True, shapes)
    output = layout_of_shapes(one.shape, two.shape)
    if not input_grows:
        return None if output is None or output.places != 1 else Reading(one.signature, None, (output,), False, shapes)
    layout = layout_of(one.rule.input, two.rule.input)
    if layout is None or output is None or (output.dim, output.places) != (layout.dim, layout.places):
        return None
    return Reading(one.signature, layout, (layout,), False, shapes) if one.rule.reads(layout.dim) else None


def _plan(readings: list[Reading | None], uses: list[Use], outputs: Tensor, saved: int = 0) -> Plan:
    """Return a plan with an estimate of the memory: what a forward pass keeps, and each row on its way back."""
    samples = max(1, len(outputs))
    made = row = sample = 0
    for use in uses:
        made += use.bytes
        row = max([row, *map(use.rule.row_numel, use.parts)])
        sample = max(sample, use.rule.sample_numel())
    row, sample = row * outputs.element_size(), sample * outputs.element_size()
    kept = max(saved, made)
    # The softmax of a row is worked out in float64, with a few intermediates.
    scores = 6 * 8 * outputs.numel() // samples
    # At least 1, as the bytes of a row below: both are divided by.
    way = max(1, 2 * kept // samples)
    return Plan(readings, outputs.detach()[:1], made // samples + scores + row + 1, way, way + kept // samples + sample)


class _Saved:
    """Counts the bytes that autograd keeps for the backward pass, parameters aside."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}

    @property
    def bytes(self) -> int:
        return sum(self.seen.values())

    def pack(self, tensor: Tensor) -> Tensor:
        # Views of one tensor share its memory, and count once.
        base = tensor if tensor._base is None else tensor._base
        if not base.is_leaf and tensor.layout is torch.strided:  # a sparse one has no memory that could be told apart
            storage = tensor.untyped_storage()
            self.seen[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # a saved output that kept its own graph would never be freed

    def unpack(self, tensor: Tensor) -> Tensor:
        return tensor
