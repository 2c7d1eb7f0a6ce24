"""Letting go of parameters on purpose, and saying what else goes with them."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from anchorhold.errors import ProtectError, warn
from anchorhold.guard.arguments.selection import close_to
from anchorhold.guard.core import Core


def forget_all(core: Core, patterns: Sequence[str]) -> None:
    """Drop all that is known of some parameters, or refuse names and patterns that nothing is known of."""
    known = list({**core.runtime.parameters, **core.state.anchor, **core.state.merged_anchor})
    names = list(dict.fromkeys(name for pattern in patterns for name in _matching(pattern, known)))
    measured = core.state.driving.measured
    blocks = [matrix.block.parameters for matrix in measured.values()]
    blocks += [tuple(parts) for weight, parts in core.space.parts.items() if weight in measured]
    others = [n for block in blocks if not set(names).isdisjoint(block) for n in block if n not in names]
    if others:
        more = f" and {len(others) - 1} other parameter{'s' if others[2:] else ''}" if others[1:] else ""
        warn(
            f"What is forgotten had its importance in one matrix with {others[0]!r}{more}, so that nothing holds "
            "those any more either. Consolidate again, with data of what is to be kept."
        )
    for name in names:
        forget(core, name)


def _matching(pattern: str, known: list[str]) -> list[str]:
    """Return the parameters that a name or a pattern stands for, or refuse one that stands for none."""
    if not isinstance(pattern, str):
        raise ProtectError(
            f"forget({pattern!r}): expected names or patterns, one after the other, such as forget('head.weight', "
            "'head.bias') or forget('head.*')."
        )
    if pattern in known:  # first: a name may have brackets of its own
        return [pattern]
    if found := [name for name in known if fnmatchcase(name, pattern)]:
        return found
    what = "matches no" if set(pattern) & set("*?[") else "is not a"
    raise ProtectError(f"{pattern!r} {what} protected parameter, so nothing was forgotten. {close_to(pattern, known)}")


def forget(core: Core, name: str) -> None:
    """Drop everything known about a parameter, and about the block that it is part of."""
    for weight in [weight for weight, parts in core.space.parts.items() if name in parts]:
        forget(core, weight)
    core.state.merged_anchor.pop(name, None)
    for kept in (core.state.anchor, core.task.start, *core.state.running()):
        kept.pop(name, None)
    blocks = [matrix.block.parameters for matrix in core.state.driving.held.values()]
    for other in {name, *(n for parameters in blocks if name in parameters for n in parameters)}:
        core.state.linear_term.pop(other, None)  # without its quadratic it would pull for ever
        core.task.waiting.pop(other, None)
    for ledger in core.state.ledgers.values():
        for matrices in (ledger.total, ledger.held):
            for block in [key for key, matrix in matrices.items() if name in matrix.block.parameters]:
                del matrices[block]
                ledger.weights.pop(block, None)
        if ledger.damping:  # by the mean of what is left
            ledger.commit(ledger.total)
    for hold in core.options.holds:
        hold.forget(name)
    core.task.steps.pop(name, None)
    core.runtime.replaced -= {name}
    core.runtime.version += 1
