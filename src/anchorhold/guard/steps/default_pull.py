"""Whether the hold acts after the step where nobody has said so: with SGD, wherever such a pull is at hand.

Explicitly, SGD bears a hold only up to a strength, which lies near the one that keeps most or below it. As a diagonal,
five tasks of permuted MNIST ended at 93.9 % with a hold after the steps of plain SGD and at 87.5 % with one in the
gradient, Split CIFAR at 58.7 and 55.1 %; with momentum, at 95.7 and 95.7 %, and at 70.0 and 68.2 %. Strengths within a
point of the best spanned 0.8 to 2.2 decades in place of 0.0 to 1.0, and explicit runs diverged a decade above their
best or sooner. In rotated coordinates permuted digits ended at 92.2 and 70.5 %, with momentum at 91.5 and 83.8 %, and
by Kronecker factors alike (``docs/guides/safe-at-any-strength.md``).

Weights of 16 bits are an exception for the diagonal: a pull that is written to them by itself, and not as part of a
step, is lost where it is less than half of their last digit.

Adam and its like bear any strength. As a diagonal both ways keep the same there (97.2 and 97.3 %, 70.5 and 70.2 %), and
in other coordinates there is no such pull, since each weight moves by a rate of its own: the hold is in the gradient.
"""

from collections.abc import Iterable, Mapping

from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from anchorhold.errors import ConfigurationError, OptimizerError
from anchorhold.guard.arguments.checked_arguments import checked_implicit, may_be_implicit
from anchorhold.guard.memory import Memory
from anchorhold.guard.noticing.telling import tell
from anchorhold.guard.steps.optimizers.reach import check_blocks, check_reach, is_sgd
from anchorhold.tensors.sharding import is_sharded
from anchorhold.tensors.storage import running_dtype

Owned = Mapping[Optimizer, Mapping[str, nn.Parameter]]
"""The optimisers whose steps are held, each with the protected parameters that it trains."""


def decide(memory: Memory, held: Owned) -> None:
    """Let the optimisers whose steps are held decide together, where it is left to them: after all of them, or none."""
    if memory.implicit_is_open and held:
        memory.implicit = not why_explicit(memory, held)


def why_explicit(memory: Memory, held: Owned) -> str:
    """Return why a hold of which nobody has said so joins the gradients of these optimisers; nothing if it does not."""
    if why := _why_with_any(memory):
        return why
    form = memory.driving.form
    blocks = [] if form.elementwise else _blocks(memory)
    try:
        for optimizer, owned in held.items():
            check_reach(optimizer, form)
            if not is_sgd(optimizer):  # as a diagonal, where it could be either
                return f"with {type(optimizer).__name__}"
            if blocks:
                check_blocks(optimizer, form, blocks, owned)
    except OptimizerError as error:
        said = str(error).removeprefix("implicit=True ").removeprefix(f"in the form {form.name!r} ")
        return said.partition(":")[0].partition(";")[0]
    return ""


def _why_with_any(memory: Memory) -> str:
    """Return why a hold joins the gradients of all optimisers, where it does."""
    form = memory.driving.form
    if memory.space == "merged":
        return "in the space of merged weights"
    if beside := [hold.name for hold in memory.holds if hold.by_weight]:
        return f"beside the hold {beside[0]!r}, whose pull on the same weights is in the gradient"
    if form.elementwise and (few := {str(p.dtype) for p in memory.parameters.values() if running_dtype(p) != p.dtype}):
        return f"with weights of {min(few).removeprefix('torch.')}, to which small pulls would be lost by rounding"
    if not form.elementwise and not form.has_eigenbasis and not _lies_at_hand(memory):
        return "since its coordinates would be found anew at every step"
    return ""


def _lies_at_hand(memory: Memory) -> bool:
    """Whether Q is kept where weights are, and as they are, so that what is found from it is found once."""
    storage = memory.driving.storage
    return not any(
        is_sharded(p) or storage.dtype not in (None, running_dtype(p)) or storage.device not in (None, p.device)
        for p in memory.parameters.values()
    )


def _blocks(memory: Memory) -> list[tuple[str, ...]]:
    """Return which parameters are held together, or will be."""
    if memory.driving.held:
        return [matrix.block.parameters for matrix in memory.driving.held.values()]
    if any(map(is_lazy, memory.parameters.values())):
        return []  # the step that is held first sees
    return [block.parameters for block in memory.blocks(memory.driving.form)]


def give_up(memory: Memory, why: OptimizerError) -> None:
    """Let the hold join the gradient from now on, for good: it acted after steps by default, and this one is none."""
    memory.implicit, memory.implicit_is_open = False, False
    said = str(why).removeprefix("implicit=True ").partition(". ")[0].removesuffix(".")
    tell(
        f"The hold has acted after each step, as it does by default with SGD, and cannot any more {said}. From this "
        "step on it joins the gradient, as with implicit=False: a strength that SGD bears so may be far smaller."
    )


def set_implicit(memory: Memory, value: bool | None, held: Iterable[Optimizer]) -> None:
    """Hold in another way from now on, or refuse it and stay as it was."""
    form = memory.driving.form
    is_open = value is None and may_be_implicit(form, memory.batch_norm, leans=memory.leans)
    found = None if is_open else checked_implicit(value or False, form, memory.batch_norm, leans=memory.leans)
    if found and memory.space == "merged":
        raise ConfigurationError(
            "implicit=True with adapters that are held by their merged weights, which take no steps of their own. Make "
            "a Guard with space='weights', or leave implicit as it is."
        )
    for optimizer in held if found else ():
        check_reach(optimizer, form)
    memory.implicit, memory.implicit_given, memory.implicit_is_open = found, value is not None, is_open
    memory.space_is_open = memory.space_is_open and not found
