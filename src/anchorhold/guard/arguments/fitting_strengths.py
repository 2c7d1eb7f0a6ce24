"""Whether strengths by pattern fit what a guard protects: a pattern for each parameter, one strength for each block."""

from fnmatch import fnmatchcase

from torch import nn
from torch.nn.parameter import is_lazy

from anchorhold.adapters import every_adapter
from anchorhold.errors import ConfigurationError
from anchorhold.guard.arguments.strengths import PatternStrengths
from anchorhold.guard.core import Core
from anchorhold.spaces import Space


def check_strengths(core: Core, strengths: PatternStrengths) -> None:
    """Refuse strengths by pattern that do not fit what is protected."""
    # First: no pattern is of adapters' own parameters alone where the weights are held that they are merged with.
    for pattern in strengths.given if core.space.parts else ():
        parts = [name for name in core.space.in_parts if fnmatchcase(name, pattern)]
        if parts and not any(fnmatchcase(name, pattern) for name in core.measured):
            weight = min(name for name, own in core.space.parts.items() if min(parts) in own)
            raise ConfigurationError(
                f"strength[{pattern!r}] is of adapters' own parameters, such as {min(parts)!r}, and here adapters "
                f"are held by their merged weights. Give a pattern that matches the names of those, such as "
                f"{weight!r}, or make a Guard with options=GuardOptions(space='weights')."
            )
    strengths.check_used(core.measured.keys() | core.frozen.keys())
    check_blocks(core, strengths, core.space, core.runtime.parameters)
    check_coupled(core.space, strengths)


def check_blocks(core: Core, strengths: PatternStrengths, space: Space, parameters: dict[str, nn.Parameter]) -> None:
    """Refuse a parameter without a strength, and a block with several."""
    measured = space.measured(parameters)
    # First: no pattern is of the weights alone that adapters change where their own parameters are held.
    unused = [each for each in strengths.given if not any(fnmatchcase(name, each) for name in measured)]
    held = {id(p) for p in measured.values()} if unused else ()
    for found in every_adapter(core.runtime.model, held) if unused else ():
        if pattern := next((each for each in unused if fnmatchcase(found.weight, each)), None):
            raise ConfigurationError(
                f"strength[{pattern!r}] is of weights that adapters change, such as {found.weight!r}, and here "
                "adapters are held by their own parameters. Give options=GuardOptions(space='merged'), which holds "
                "those weights, or a pattern of the adapters' parameters."
            )
    for name in measured:
        strengths.of(name)
    form = core.state.driving.form
    if form.elementwise or any(map(is_lazy, parameters.values())):
        return
    for block in space.blocks(form, measured):
        strengths.check_together(block.parameters, f"in the form {form.name!r} one matrix holds both")


def check_coupled(space: Space, strengths: PatternStrengths) -> None:
    """Refuse strengths that differ where a space can only have one."""
    for names, why in space.coupled:
        strengths.check_together(names, why)
