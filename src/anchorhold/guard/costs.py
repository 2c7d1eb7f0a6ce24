"""What a guard will take of memory and time, block by block, and layers that are measured in chunks within a bound.

What a form adds up over samples takes no more than the bound then. Each chunk of layers goes through the samples by
itself, so that a third of the memory takes some three times as long. What one has found goes to storage, in fewer bits
and elsewhere where that is asked for, before the next one begins.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from anchorhold.errors import ConfigurationError
from anchorhold.forms import Block, Cost, Form, Matrix
from anchorhold.forms.sums import SumMatrix
from anchorhold.guard.core import Core
from anchorhold.settings import whole_number
from anchorhold.tensors.storage import each_as_it_is, running_dtype
from anchorhold.tensors.summaries import in_bytes

_SHOWN = 12
"""Blocks that a printed table lists, those that take most."""

LEAST_PULL = 10**8
"""Multiplications of a pull from which on products decide how long a step takes: a CPU's core makes them in 2 ms."""


@dataclass(frozen=True)
class BlockCost:
    """What one block takes."""

    name: str
    """The block's, which is its weight's."""
    weights: int
    """How many it has."""
    form: str
    """In which form it is kept."""
    kept: int
    """Bytes that are kept from task to task: Q, its own coordinates where pulls after steps have to find them, the
    anchor, and the linear term there, if the hold has one. With ``sums="exact"`` Q is each task's own, as many as there
    are by now."""
    measuring: int
    """Bytes of sums while a task is measured, in the pass that has most of them; beside the samples' own. Of a measure
    along the path: its running states, which are there all through training, and θ(0) where it looks at steps."""
    multiplications: int
    """Of one application of Q, or one pull by it, which is once a step, or a k-th of one where the hold acts every k
    steps; of an adapter's merged weight, of the products that it takes."""
    rows: float | None = None
    """Rows of inputs that the layer sees in a training batch, samples times positions; ``None`` where nobody said."""


@dataclass(frozen=True, repr=False)
class Costs:
    """What every block takes, and all of them together."""

    blocks: tuple[BlockCost, ...]
    form: str
    """The form that was asked for."""
    implicit: bool | None = False
    """Whether the hold acts after each step, as far as that is decided."""
    step: float | None = None
    """Multiplications of the task's own step, in the products of all layers forward and backward; ``None`` unless the
    rows of a batch are known. Those of attention between positions are not counted."""

    @property
    def kept(self) -> int:
        """Return the bytes that are kept from task to task."""
        return sum(block.kept for block in self.blocks)

    @property
    def measuring(self) -> int:
        """Return the bytes of sums while a task is measured, or of running states."""
        return sum(block.measuring for block in self.blocks)

    @property
    def multiplications(self) -> int:
        """Of one step's hold."""
        return sum(block.multiplications for block in self.blocks)

    @property
    def ratio(self) -> float | None:
        """Return how many unprotected steps a held one is expected to take; ``None`` unless rows are known."""
        return 1 + self.multiplications / self.step if self.step else None

    @property
    def weights(self) -> int:
        """Return how many weights are held."""
        return sum(block.weights for block in self.blocks)

    def __repr__(self) -> str:
        form = f"{self.form}, implicit" if self.implicit else self.form
        largest = sorted(self.blocks, key=lambda block: -block.kept)[:_SHOWN]
        others = len(self.blocks) - len(largest)
        wide = max([len(block.name) for block in largest] + [len("in all")])
        lines = [
            (
                f"{form}: {in_bytes(self.kept)} kept ({self.kept / max(1, self.weights):.3g} bytes a weight), "
                f"{in_bytes(self.measuring)} of sums while measuring, "
                f"{self.multiplications / max(1, self.weights):,.0f} multiplications a weight and step"
            ),
            f"  {'':{wide}}  {'weights':>12}  {'kept':>10}  {'measuring':>10}  {'a step':>10}  form",
        ]
        lines += [
            f"  {block.name:{wide}}  {block.weights:>12,}  {in_bytes(block.kept):>10}  "
            f"{in_bytes(block.measuring):>10}  {block.multiplications:>10.2g}  {block.form}"
            for block in largest
        ]
        if others:
            lines.append(f"  and {others} smaller ones")
        if self.ratio is not None and self.multiplications >= LEAST_PULL:
            rows = max((block.rows for block in self.blocks if block.rows), default=0.0)
            lines.append(
                f"  a held step is expected to take {self.ratio:.3g} unprotected ones, at {rows:,.0f} rows a batch"
            )
        return "\n".join(lines)


def costs_of(core: Core, rows: int | None = None) -> Costs:
    """Return what a guard takes for the parameters that it protects now.

    Args:
        core: what the guard is made of.
        rows: that each layer sees in a training batch; by default as many as in the batches that the last task was
            measured with, where that was here.
    """
    seen = _rows_of_blocks(core, rows)
    driving, found = core.state.driving, []
    form, storage, measure = driving.form, driving.storage, driving.measure
    for name, parameter in core.runtime.parameters.items():
        if is_lazy(parameter):
            raise ConfigurationError(
                f"{name!r} has no shape yet, so what it takes is not known. Run the model once on a batch before."
            )
    measured, counted = core.measured, set()
    for block in core.blocks(form):
        members = [measured[name] for name in block.parameters]
        cost, single = form.cost(block, measured), running_dtype(members[0]).itemsize
        weights = sum(parameter.numel() for parameter in members)
        usual = weights * (2 if core.has_linear_term else 1)
        anchors, applying = _anchor_and_pull(core, form, block, cost, usual)
        own = driving.total.get(block.name)
        if own is not None:  # known by now, of how many tasks it is, and how much of it another block has too
            new = [tensor for tensor in own.state().values() if id(tensor) not in counted]
            counted |= {id(tensor) for tensor in new}
            q = sum(tensor.nbytes for tensor in new)
        else:
            q = storage.importance_bytes(cost.kept, members[0])
        if core.state.implicit.value and block.is_matrix and not form.has_eigenbasis:
            q += single * (cost.kept + weights)  # eigenvectors as large as Q, and an eigenvalue for each direction
        parts = len(own.parts) if isinstance(own, SumMatrix) else 1
        if measure.needs.data:
            sums = measuring_bytes(form, block, measured)
        else:  # along the path: running states, and θ(0) where it looks at steps
            sums = sum(
                (len(measure.running) * running_dtype(p).itemsize + measure.needs.step * p.dtype.itemsize) * p.numel()
                for p in members
            )
        found.append(
            BlockCost(
                block.name,
                weights,
                cost.description,
                q + sum(map(core.options.storage.weights_bytes, members)) * anchors // max(1, weights),
                sums + (single * weights if core.options.gradient_term else 0),
                math.ceil(applying * parts / core.state.pull_every.value),
                seen.get(block.name),
            )
        )
    return Costs(tuple(found), form.name or type(form).__name__, core.state.implicit.value, step_products(core, seen))


def _anchor_and_pull(core: Core, form: Form, block: Block, cost: Cost, usual: int) -> tuple[int, int]:
    """Return how many numbers a block's anchor has, usually so many, and how many multiplications a pull takes."""
    anchors, applying = core.space.anchor_cost(block, form, cost, usual, core.state.merged_anchor)
    after_steps = core.state.implicit.value and block.is_matrix and not form.has_eigenbasis
    return anchors, applying * (2 if after_steps else 1)  # into the coordinates of a pull after steps, and back


def pull_products(core: Core, form: Form) -> int:
    """Return the multiplications a step of a pull of one task's importance, if it were kept in some form."""
    costs = [(block, form.cost(block, core.measured)) for block in core.space.blocks(form, core.measured)]
    every = sum(_anchor_and_pull(core, form, block, cost, 0)[1] for block, cost in costs)
    return math.ceil(every / core.state.pull_every.value)


def step_products(core: Core, rows: Mapping[str, float]) -> float | None:
    """Return the multiplications of a step of the task itself: forward, and backward to inputs and to weights.

    Args:
        core: what the guard is made of.
        rows: that each block sees in a batch; layers beside those see as many as the one that sees most.
    """
    if not rows:
        return None
    of_parameters = {
        id(core.measured[name]): rows[block.name]
        for block in core.blocks(core.state.driving.form)
        if block.name in rows
        for name in block.parameters
    }
    others, total = max(rows.values()), 0.0
    looked_up = {id(m.weight) for m in core.runtime.model.modules() if isinstance(m, nn.Embedding)}
    multiplied = {
        id(p): p
        for module in core.runtime.model.modules()
        if not isinstance(module, nn.Embedding)
        for p in module.parameters(recurse=False)
        if p.ndim > 1 and not is_lazy(p)
    }
    for key, parameter in multiplied.items():
        seen = others if key in looked_up else of_parameters.get(key, others)
        total += (3 if parameter.requires_grad else 2) * seen * parameter.numel()
    return total or None


def _rows_of_blocks(core: Core, rows: int | None) -> Mapping[str, float]:
    """Return how many rows each block's layer sees in a training batch, as far as that is known."""
    if rows is None:
        return core.runtime.rows
    number = whole_number("rows", rows, "a whole number of rows, at least 1", least=1)
    return dict.fromkeys((block.name for block in core.blocks(core.state.driving.form)), float(number))


# Layers measured in chunks


def measuring_bytes(form: Form, block: Block, parameters: Mapping[str, Tensor]) -> int:
    """Return what the sums of a block take while it is measured."""
    return running_dtype(parameters[block.parameters[0]]).itemsize * form.cost(block, parameters).measuring


def checked_bytes(within: int | None) -> int | None:
    """Return a number of bytes, or say what was expected of it."""
    return None if within is None else whole_number("within", within, "a whole number of bytes, at least 1", least=1)


def chunks_of(core: Core, most: int | None) -> list[list[Block]]:
    """Return the blocks of each chunk, in their own order: all in one, unless a bound is given.

    Raise :class:`ConfigurationError` if the form has no layers, or one alone is larger than the bound.
    """
    form = core.state.driving.form
    blocks = core.blocks(form)
    if most is None:
        return [blocks]
    if form.elementwise or len(blocks) < 2:
        raise ConfigurationError(
            f"within={most} with {core.state.driver} in the form {form.name!r}, which has no layers to be measured in "
            "chunks. Leave it out, or take a form of layers, such as form='rotated16'."
        )
    groups = form.coupled_blocks(blocks, core.state.driving.added_to)
    sizes = [sum(measuring_bytes(form, block, core.measured) for block in group) for group in groups]
    if max(sizes) > most:
        group, size = groups[sizes.index(max(sizes))], max(sizes)
        names = ", ".join(repr(block.name) for block in group)
        shared = f"{names}, which have the coordinates of their inputs in common,"
        whose = f"{names} alone" if len(group) == 1 else shared
        raise ConfigurationError(
            f"within={most} bytes: the sums of {whose} take {in_bytes(size)}. Give at least {size}, keep sides in "
            "blocks (outputs='blocks', inputs='blocks', largest_block=), or leave layers out of protect=."
        )
    return in_chunks(groups, sizes, most)


def in_chunks(groups: Sequence[Sequence[Block]], sizes: Sequence[int], most: int) -> list[list[Block]]:
    """Return groups of blocks, neighbours in one chunk, none larger than a bound that each of them is within."""
    chunks: list[list[Block]] = []
    filled = most
    for group, size in zip(groups, sizes, strict=True):
        if filled + size > most:
            chunks.append([])
            filled = 0
        chunks[-1].extend(group)
        filled += size
    return chunks


def all_to_storage(core: Core, matrices: Mapping[str, Matrix]) -> dict[str, Matrix]:
    """Return matrices as they will be kept, so that the next chunk has the memory."""
    ledger = core.state.driving
    return {name: core.matrix_to_storage(matrix, ledger, each_as_it_is) for name, matrix in matrices.items()}
