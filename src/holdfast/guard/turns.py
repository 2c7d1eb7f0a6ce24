"""Layers that are measured in turns: what a form adds up over samples then takes no more than was asked for.

Each turn goes through the samples by itself, so that a third of the memory takes some three times as long. What one has
found is put to rest, in fewer bits and elsewhere where that is asked for, before the next one begins.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor

from holdfast.errors import ConfigurationError
from holdfast.forms import Block, Form, Matrix
from holdfast.guard.memory import Memory
from holdfast.tensors.in_words import in_bytes
from holdfast.tensors.once import each_as_it_is
from holdfast.tensors.storage import running_dtype


def measuring_bytes(form: Form, block: Block, parameters: Mapping[str, Tensor]) -> int:
    """Return what the sums of a block take while it is measured."""
    return running_dtype(parameters[block.parameters[0]]).itemsize * form.cost(block, parameters).measuring


def turns_of(memory: Memory, most: int | None) -> list[list[Block]]:
    """Return the blocks of each turn, in their own order: all in one, unless a bound is given."""
    form = memory.driving.form
    blocks = memory.blocks(form)
    if most is None:
        return [blocks]
    if form.elementwise or len(blocks) < 2:
        raise ConfigurationError(
            f"within={most} with {memory.driver} in the form {form.name!r}, which has no layers to be measured in "
            "turns. Leave it out, or take a form of layers, such as form='rotated16'."
        )
    sizes = {block.name: measuring_bytes(form, block, memory.measured) for block in blocks}
    largest = max(sizes, key=lambda name: sizes[name])
    if sizes[largest] > most:
        raise ConfigurationError(
            f"within={most} bytes: the sums of {largest!r} alone take {in_bytes(sizes[largest])}. Give at least "
            f"{sizes[largest]}, keep its sides in blocks (outputs='blocks', inputs='blocks', largest_block=), or leave "
            "it out of protect=."
        )
    return in_turns(blocks, [sizes[block.name] for block in blocks], most)


def in_turns(blocks: Sequence[Block], sizes: Sequence[int], most: int) -> list[list[Block]]:
    """Return blocks in groups of neighbours, none larger than a bound that each of them is within."""
    turns: list[list[Block]] = []
    filled = most
    for block, size in zip(blocks, sizes, strict=True):
        if filled + size > most:
            turns.append([])
            filled = 0
        turns[-1].append(block)
        filled += size
    return turns


def put_to_rest(memory: Memory, matrices: Mapping[str, Matrix]) -> dict[str, Matrix]:
    """Return what was found as it will be kept, so that the next turn has the memory."""
    return {name: memory.resting_matrix(matrix, memory.driving, each_as_it_is) for name, matrix in matrices.items()}
