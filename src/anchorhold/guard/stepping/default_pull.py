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

from anchorhold.errors import ConfigurationError, OptimizerError, warn
from anchorhold.guard.arguments.checked_arguments import checked_implicit, may_be_implicit
from anchorhold.guard.core import Core, GuardState, Setting
from anchorhold.guard.stepping.optimizers.effective_rate import check_blocks, check_effective_rate, is_sgd
from anchorhold.tensors.sharding import is_sharded
from anchorhold.tensors.storage import running_dtype

Owned = Mapping[Optimizer, Mapping[str, nn.Parameter]]
"""The optimizers whose steps are held, each with the protected parameters that it trains."""


def why_explicit(core: Core, held: Owned) -> str:
    """Return why a hold of which nobody has said so joins the gradients of these optimizers; nothing if it does not."""
    if why := _why_with_any(core):
        return why
    form = core.state.driving.form
    # A weight by itself may go by a rate of its own; the weights of a matrix need one for all.
    blocks = [] if form.elementwise else _blocks(core)
    try:
        for optimizer, owned in held.items():
            check_effective_rate(optimizer, form)
            if not is_sgd(optimizer):  # as a diagonal, where it could be either
                return f"with {type(optimizer).__name__}"
            if blocks:
                check_blocks(optimizer, form, blocks, owned)
    except OptimizerError as error:
        # The error is written for who asks for implicit=True; here its cause alone is told.
        reason = str(error).removeprefix("implicit=True ").removeprefix(f"in the form {form.name!r} ")
        return reason.partition(":")[0].partition(";")[0]
    return ""


def supports_implicit(core: Core, optimizer: Optimizer) -> bool:
    """Return whether this guard could have been made with ``implicit=True``, for this optimizer."""
    form = core.state.driving.form
    try:
        checked_implicit(True, form, core.options.batch_norm, has_linear_term=core.has_linear_term)
        check_effective_rate(optimizer, form)
    except (ConfigurationError, OptimizerError):
        return False
    return not core.space_kind.why_explicit


def _why_with_any(core: Core) -> str:
    """Return why a hold joins the gradients of all optimizers, where it does."""
    form = core.state.driving.form
    if why := core.space_kind.why_explicit:
        return why
    if beside := [hold.name for hold in core.options.holds if hold.by_weight]:
        return f"beside the hold {beside[0]!r}, whose pull on the same weights is in the gradient"
    if form.elementwise and (
        few := {str(p.dtype) for p in core.runtime.parameters.values() if running_dtype(p) != p.dtype}
    ):
        return f"with weights of {min(few).removeprefix('torch.')}, to which small pulls would be lost by rounding"
    if not form.elementwise and not form.has_eigenbasis and not _is_kept_as_computed(core):
        return "since its coordinates would be found anew at every step"
    return ""


def _is_kept_as_computed(core: Core) -> bool:
    """Return whether Q is kept where weights are, and as they are, so that what is found from it is found once."""
    storage = core.state.driving.storage
    return not any(
        is_sharded(p) or storage.dtype not in (None, running_dtype(p)) or storage.device not in (None, p.device)
        for p in core.runtime.parameters.values()
    )


def _blocks(core: Core) -> list[tuple[str, ...]]:
    """Return which parameters are held together, or will be."""
    if core.state.driving.held:
        return [matrix.block.parameters for matrix in core.state.driving.held.values()]
    if any(map(is_lazy, core.runtime.parameters.values())):
        return []  # the step that is held first sees
    return [block.parameters for block in core.blocks(core.state.driving.form)]


def give_up(state: GuardState, why: OptimizerError) -> None:
    """Let the hold join the gradient from now on, for good: it acted after steps by default, and this one is none."""
    # No longer open: the next optimizer that is attached decides nothing.
    state.implicit = Setting(False, "default")
    reason = str(why).removeprefix("implicit=True ").partition(". ")[0].removesuffix(".")
    warn(
        f"The hold has acted after each step, as it does by default with SGD, and cannot any more {reason}. From this "
        "step on it joins the gradient, as with implicit=False: a strength that SGD bears so may be far smaller."
    )


def set_implicit(core: Core, value: bool | None, held: Iterable[Optimizer]) -> None:
    """Hold in another way from now on, or refuse it and stay as it was."""
    form = core.state.driving.form
    is_open = value is None and may_be_implicit(form, core.options.batch_norm, has_linear_term=core.has_linear_term)
    found = (
        None
        if is_open
        else checked_implicit(value or False, form, core.options.batch_norm, has_linear_term=core.has_linear_term)
    )
    if found and (why := core.space_kind.why_explicit):
        raise ConfigurationError(
            f"implicit=True {why}, which take no steps of their own. Make a Guard with "
            "options=GuardOptions(space='weights'), or leave implicit as it is."
        )
    for optimizer in held if found else ():
        check_effective_rate(optimizer, form)
    core.state.implicit = Setting(found, "given" if value is not None else "open" if is_open else "default")
    if found:
        # Left open, it could become that of merged weights, which have no such pull.
        core.state.space = core.state.space.closed()
