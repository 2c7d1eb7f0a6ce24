"""What is held of adapters where nobody has said so: merged weights wherever they are known to be worth it.

With LoRA on a GPT, Kronecker factors of merged weights lost less than half of what those of the adapters' own
parameters did, averaged, and about half as trained, for as much memory (``docs/guides/adapters.md``); rotated
coordinates of merged weights lost the same. A diagonal gained little, and is as large as the weights themselves: where
nothing is said, it is of adapters' own parameters.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from torch import nn
from torch.nn.parameter import is_lazy

from holdfast.errors import ConfigurationError
from holdfast.forms.of_layers.layers import LayerForm
from holdfast.guard.merged_space import MergedSpace, Space

if TYPE_CHECKING:
    from holdfast.guard.memory import Memory


def default_space(memory: "Memory", parameters: Mapping[str, nn.Parameter]) -> Space:
    """Return the space of a guard that may have either, where these are the protected parameters."""
    if not _keeps_more_merged(memory) or any(map(is_lazy, parameters.values())):
        return "weights"
    try:
        merged = _merged(memory, parameters)
    except ConfigurationError:  # no adapters, or such as can only be held by their own parameters
        return "weights"
    strengths = memory.driving.strengths
    patterns = [*memory.selection.patterns, *(strengths.given if strengths is not None else ())]
    return "weights" if any(_names_parts(pattern, merged) for pattern in patterns) else "merged"


def why_not_merged(memory: "Memory") -> str:
    """Return why adapters that nobody said anything of are held by their own parameters, where one of them is why."""
    if memory.space_given or memory.space == "merged" or not _keeps_more_merged(memory):
        return ""
    try:
        _merged(memory, memory.parameters)
    except ConfigurationError as error:
        return str(error).removeprefix("space='merged': ").partition(". ")[0]
    return ""


def _keeps_more_merged(memory: "Memory") -> bool:
    """Whether a guard's form and measure are such as are known to keep more of merged weights."""
    return isinstance(memory.driving.form, LayerForm) and memory.driving.measure.needs.data


def _merged(memory: "Memory", parameters: Mapping[str, nn.Parameter]) -> MergedSpace:
    """Return a model's adapters in merged space, or refuse those that cannot be held so."""
    merged = MergedSpace.of(memory.model, parameters, "merged")
    merged.refuse_parts()
    merged.blocks_of(memory.driving.form, merged.coordinates(merged.without_layers(parameters)))
    return merged


def _names_parts(pattern: str, merged: MergedSpace) -> bool:
    """Whether a pattern is of an adapter's own parameters, such as ``"*lora_*"``, and not of all that its layer has."""
    return any(
        not fnmatchcase(weight, pattern) and any(fnmatchcase(name, pattern) for name in parts)
        for weight, parts in merged.parts.items()
    )
