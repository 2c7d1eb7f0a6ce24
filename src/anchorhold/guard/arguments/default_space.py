"""What is held of adapters where nobody has said so: merged weights wherever they are known to be worth it.

With LoRA on a GPT, Kronecker factors of merged weights lost less than half of what those of the adapters' own
parameters did, averaged, and about half as trained, for as much memory (``docs/guides/adapters.md``); rotated
coordinates of merged weights lost the same. A diagonal gained little, and is as large as the weights themselves: where
nothing is said, it is of adapters' own parameters.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from torch import nn
from torch.nn.parameter import is_lazy

from anchorhold.adapters import every_adapter
from anchorhold.errors import ConfigurationError
from anchorhold.forms.layers import LayerForm
from anchorhold.guard.core import Core, GuardState
from anchorhold.spaces import Merged, SpaceName

_UNMERGED = "adapters that are not held merged"


def default_space(core: Core, parameters: Mapping[str, nn.Parameter]) -> SpaceName:
    """Return the space of a guard that may have either, where these are the protected parameters."""
    if not _keeps_more_merged(core.state) or any(map(is_lazy, parameters.values())):
        return "weights"
    try:
        merged = _merged(core, parameters)
    except ConfigurationError:  # no adapters, or such as can only be held by their own parameters
        return "weights"
    return "weights" if any(_names_parts(pattern, merged.parts) for pattern in _patterns(core)) else "merged"


def why_not_merged(core: Core) -> str:
    """Return why adapters that nobody said anything of are held by their own parameters, where one of them is why."""
    if not _might_be_merged(core.state):
        return ""
    try:
        _merged(core, core.runtime.parameters)
    except ConfigurationError as error:
        return _in_short(error)
    return ""


def warn_of_unmerged(core: Core) -> None:
    """Say once which adapter is why all are held by their own parameters, where others could be held merged."""
    if core.runtime.warned.about(_UNMERGED) or not _might_be_merged(core.state):
        return
    names = {id(p): name for name, p in core.runtime.parameters.items()}
    found = list(every_adapter(core.runtime.model, names.keys()))
    refused = [each for each in found if each.refusal is not None]
    parts = {
        each.weight: [names[id(p)] for p in each.adapter.parameters() if id(p) in names]
        for each in found
        if each.adapter
    }
    if not refused or len(refused) == len(found) or any(_names_parts(each, parts) for each in _patterns(core)):
        return
    core.runtime.warned.once(
        _UNMERGED,
        f"All {len(found)} adapters are held by their own parameters, which keeps less than their merged weights, "
        f"since {len(refused)} cannot be held merged: {_in_short(refused[0].refusal)}. Leave "
        f"{'that one' if len(refused) == 1 else 'those'} out of protect= to hold the others merged, or give "
        "space='weights' if this is meant.",
    )


def _might_be_merged(state: GuardState) -> bool:
    """Whether adapters are held by their own parameters though nobody said so, and merged weights would keep more."""
    return not state.space.is_given and state.space.value != "merged" and _keeps_more_merged(state)


def _in_short(refusal: object) -> str:
    """Return what a refusal of merged space says of an adapter, without what to do about it."""
    return str(refusal).removeprefix("space='merged': ").partition(". ")[0]


def _keeps_more_merged(state: GuardState) -> bool:
    """Whether a guard's form and measure are such as are known to keep more of merged weights."""
    return isinstance(state.driving.form, LayerForm) and state.driving.measure.needs.data


def _merged(core: Core, parameters: Mapping[str, nn.Parameter]) -> Merged:
    """Return a model's adapters in merged space, or refuse those that cannot be held so."""
    merged = Merged(core.runtime.model, parameters, {})
    merged.check()
    merged.check_form(core.state.driving.form, merged.without_layers(parameters))
    return merged


def _patterns(core: Core) -> list[str]:
    """Return all patterns of names that a user has given."""
    strengths = core.state.driving.strengths
    return [*core.options.selection.patterns, *(strengths.given if strengths is not None else ())]


def _names_parts(pattern: str, parts: Mapping[str, Sequence[str]]) -> bool:
    """Whether a pattern is of an adapter's own parameters, such as ``"*lora_*"``, and not of all that its layer has."""
    return any(
        not fnmatchcase(weight, pattern) and any(fnmatchcase(name, pattern) for name in own)
        for weight, own in parts.items()
    )
