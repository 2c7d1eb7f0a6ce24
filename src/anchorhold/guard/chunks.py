"""Layers that are measured in turns: what a form adds up over samples then takes no more than was asked for.

Each turn goes through the samples by itself, so that a third of the memory takes some three times as long. What one has
found is put to rest, in fewer bits and elsewhere where that is asked for, before the next one begins.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor

from anchorhold.errors import ConfigurationError
from anchorhold.forms import Block, Form, Matrix
from anchorhold.guard.core import Core
from anchorhold.settings import whole_number
from anchorhold.tensors.in_words import in_bytes
from anchorhold.tensors.storage import each_as_it_is, running_dtype


def measuring_bytes(form: Form, block: Block, parameters: Mapping[str, Tensor]) -> int:
    """Return what the sums of a block take while it is measured."""
    return running_dtype(parameters[block.parameters[0]]).itemsize * form.cost(block, parameters).measuring


def checked_bytes(within: int | None) -> int | None:
    """Return a number of bytes, or say what was expected of it."""
    return None if within is None else whole_number("within", within, "a whole number of bytes, at least 1", least=1)


def chunks_of(core: Core, most: int | None) -> list[list[Block]]:
    """Return the blocks of each turn, in their own order: all in one, unless a bound is given."""
    form = core.state.driving.form
    blocks = core.blocks(form)
    if most is None:
        return [blocks]
    if form.elementwise or len(blocks) < 2:
        raise ConfigurationError(
            f"within={most} with {core.state.driver} in the form {form.name!r}, which has no layers to be measured in "
            "turns. Leave it out, or take a form of layers, such as form='rotated16'."
        )
    groups = form.coupled_blocks(blocks, core.state.driving.added_to)
    sizes = [sum(measuring_bytes(form, block, core.measured) for block in group) for group in groups]
    if max(sizes) > most:
        raise _too_large(groups[sizes.index(max(sizes))], max(sizes), most)
    return in_turns(groups, sizes, most)


def _too_large(group: Sequence[Block], size: int, most: int) -> ConfigurationError:
    """Return what is wrong with a bound that the largest of what is measured at once is not within."""
    names = ", ".join(repr(block.name) for block in group)
    whose = f"{names} alone" if len(group) == 1 else f"{names}, which have the coordinates of their inputs in common,"
    return ConfigurationError(
        f"within={most} bytes: the sums of {whose} take {in_bytes(size)}. Give at least {size}, keep sides in blocks "
        "(outputs='blocks', inputs='blocks', largest_block=), or leave layers out of protect=."
    )


def in_turns(groups: Sequence[Sequence[Block]], sizes: Sequence[int], most: int) -> list[list[Block]]:
    """Return groups of blocks, neighbours in one turn, none larger than a bound that each of them is within."""
    turns: list[list[Block]] = []
    filled = most
    for group, size in zip(groups, sizes, strict=True):
        if filled + size > most:
            turns.append([])
            filled = 0
        turns[-1].extend(group)
        filled += size
    return turns


def all_to_storage(core: Core, matrices: Mapping[str, Matrix]) -> dict[str, Matrix]:
    """Return what was found as it will be kept, so that the next turn has the memory."""
    return {
        name: core.matrix_to_storage(matrix, core.state.driving, each_as_it_is) for name, matrix in matrices.items()
    }
