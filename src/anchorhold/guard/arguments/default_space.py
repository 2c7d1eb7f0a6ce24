"""What is held of adapters where nobody has said so: merged weights wherever they are known to be worth it.

With LoRA on a GPT, Kronecker factors of merged weights lost less than half of what those of the adapters' own
parameters did, averaged, and about half as trained, for as much memory (``docs/guides/adapters.md``); rotated
coordinates of merged weights lost the same. A diagonal gained little, and is as large as the weights themselves: where
nothing is said, it is of adapters' own parameters.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase

from torch import nn
from torch.nn.parameter import is_lazy

from anchorhold.adapters import every_adapter
from anchorhold.errors import ConfigurationError
from anchorhold.forms.layers import LayerForm
from anchorhold.guard.memory import Memory
from anchorhold.guard.merged_space import MergedSpace, Space
from anchorhold.guard.noticing.telling import tell

_TOLD = "adapters that are not held merged"


def default_space(memory: Memory, parameters: Mapping[str, nn.Parameter]) -> Space:
    """Return the space of a guard that may have either, where these are the protected parameters."""
    if not _keeps_more_merged(memory) or any(map(is_lazy, parameters.values())):
        return "weights"
    try:
        merged = _merged(memory, parameters)
    except ConfigurationError:  # no adapters, or such as can only be held by their own parameters
        return "weights"
    return "weights" if any(_names_parts(pattern, merged.parts) for pattern in _patterns(memory)) else "merged"


def why_not_merged(memory: Memory) -> str:
    """Return why adapters that nobody said anything of are held by their own parameters, where one of them is why."""
    if not _might_be_merged(memory):
        return ""
    try:
        _merged(memory, memory.parameters)
    except ConfigurationError as error:
        return _in_short(error)
    return ""


def tell_of_unmerged(memory: Memory) -> None:
    """Say once which adapter is why all are held by their own parameters, where others could be held merged."""
    if _TOLD in memory.told or not _might_be_merged(memory):
        return
    names = {id(p): name for name, p in memory.parameters.items()}
    found = list(every_adapter(memory.model, names.keys()))
    refused = [each for each in found if each.refusal is not None]
    parts = {
        each.weight: [names[id(p)] for p in each.adapter.parameters() if id(p) in names]
        for each in found
        if each.adapter
    }
    if not refused or len(refused) == len(found) or any(_names_parts(each, parts) for each in _patterns(memory)):
        return
    memory.told.add(_TOLD)
    tell(
        f"All {len(found)} adapters are held by their own parameters, which keeps less than their merged weights, "
        f"since {len(refused)} cannot be held merged: {_in_short(refused[0].refusal)}. Leave "
        f"{'that one' if len(refused) == 1 else 'those'} out of protect= to hold the others merged, or give "
        "space='weights' if this is meant."
    )


def _might_be_merged(memory: Memory) -> bool:
    """Whether adapters are held by their own parameters though nobody said so, and merged weights would keep more."""
    return not memory.space_given and memory.space != "merged" and _keeps_more_merged(memory)


def _in_short(refusal: object) -> str:
    """Return what a refusal of merged space says of an adapter, without what to do about it."""
    return str(refusal).removeprefix("space='merged': ").partition(". ")[0]


def _keeps_more_merged(memory: Memory) -> bool:
    """Whether a guard's form and measure are such as are known to keep more of merged weights."""
    return isinstance(memory.driving.form, LayerForm) and memory.driving.measure.needs.data


def _merged(memory: Memory, parameters: Mapping[str, nn.Parameter]) -> MergedSpace:
    """Return a model's adapters in merged space, or refuse those that cannot be held so."""
    merged = MergedSpace.of(memory.model, parameters, "merged")
    merged.refuse_parts()
    merged.blocks_of(memory.driving.form, merged.coordinates(merged.without_layers(parameters)))
    return merged


def _patterns(memory: Memory) -> list[str]:
    """Return all patterns of names that a user has given."""
    strengths = memory.driving.strengths
    return [*memory.selection.patterns, *(strengths.given if strengths is not None else ())]


def _names_parts(pattern: str, parts: Mapping[str, list[str]]) -> bool:
    """Whether a pattern is of an adapter's own parameters, such as ``"*lora_*"``, and not of all that its layer has."""
    return any(
        not fnmatchcase(weight, pattern) and any(fnmatchcase(name, pattern) for name in own)
        for weight, own in parts.items()
    )
