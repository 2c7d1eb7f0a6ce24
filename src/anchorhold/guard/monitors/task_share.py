r"""Warn of a hold so strong that an optimizer such as Adam has next to no step left for the task.

Adam divides by the size of the whole gradient, the task's g and the pull :math:`p = 2cQ(\theta-\theta^*)` together, so
that no strength makes it diverge: weights swing around the anchor by about the learning rate instead. What it still
does for the task is to first order

.. math:: \rho = \sum_i \frac{g_i^2}{\sqrt{g_i^2 + p_i^2}} \Big/ \sum_i |g_i|

of what the same step would do without a hold. Where a hold and a task are in balance, :math:`p = -g`, that is 0.7. On
digits the strengths that keep most leave 0.55 or more of the first steps, those a thousand times as large 0.03 on the
split ones and 0.3 to 0.5 on the permuted ones, where many weights have next to no importance.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import Optimizer

from anchorhold.errors import warn
from anchorhold.guard.monitor import FIRST_STEPS, LATER_STEP, LEAST_SHARE, Monitor, Step, is_capturing
from anchorhold.guard.monitors.distances import some_of, times_away
from anchorhold.guard.stepping.default_pull import supports_implicit
from anchorhold.guard.stepping.optimizers.effective_rate import sgd_groups
from anchorhold.tensors.sharding import local
from anchorhold.tensors.storage import widest_dtype

if TYPE_CHECKING:
    from anchorhold.guard.core import Core

NEAR = 0.5
"""What a first step has left for the task where weights begin near the anchor."""
SWING = 1.0
"""Times their own size: weights that are farther away than that do not just swing around their anchor."""


@dataclass
class _Account:
    """What some steps of an optimizer could have done for a task, and do beside the pull."""

    first: Tensor
    """ρ of the task's first step."""
    left: Tensor
    whole: Tensor


class TaskShare(Monitor):
    """Compare the task's gradient with what the optimizer gets, in a few steps of each task."""

    name = "task-share"

    def __init__(self, core: "Core") -> None:
        super().__init__(core)
        self._accounts: WeakKeyDictionary[Optimizer, _Account] = WeakKeyDictionary()
        self._noted: dict[str, Tensor] = {}
        self._warned_of: float | None = None
        """The strength that the user was warned of."""

    def before_pull(self, step: Step) -> None:
        """Note the task's own gradient, before the hold's joins it."""
        core, taken = self.core, step.taken
        self._noted = {}
        held = not core.state.implicit.value and core.state.strength and core.state.is_anchored
        # A tolerance looks after its strength, and what further holds add is not of the strength's size.
        if not held or core.state.tolerance is not None or core.options.holds or self._warned_of == core.state.strength:
            return
        is_measured = taken < FIRST_STEPS or LATER_STEP - FIRST_STEPS <= taken < LATER_STEP
        if not is_measured or is_capturing() or sgd_groups(step.optimizer):
            return
        held_by = core.state.driving.held_names
        names = [name for name in step.parameters if name in held_by or name in core.space.held_elsewhere]
        grads = {name: step.parameters[name].grad for name in names}
        self._noted = {
            n: some_of(g) for n, g in grads.items() if g is not None and not g.is_sparse and local(g).numel()
        }

    def after_pull(self, step: Step) -> None:
        """Look at what the optimizer gets in its place, and warn if that has been the pull's for some steps."""
        noted, self._noted = self._noted, {}
        if not noted:
            return
        optimizer, taken = step.optimizer, step.taken
        parts = [_parts(task, step.parameters[n].grad) for n, task in noted.items()]
        left, whole = torch.stack([part.to(parts[0].device) for part in parts]).sum(0)
        if taken == 0:
            self._accounts[optimizer] = _Account(left / whole, torch.zeros_like(left), torch.zeros_like(whole))
            return  # from the anchor itself nothing pulls yet
        account = self._accounts.get(optimizer)
        if account is None:  # the task was resumed
            account = self._accounts[optimizer] = _Account(torch.zeros_like(left), left * 0, whole * 0)
        if taken == LATER_STEP - FIRST_STEPS:
            account.left, account.whole = left * 0, whole * 0
        account.left, account.whole = account.left + left, account.whole + whole
        if taken not in (FIRST_STEPS - 1, LATER_STEP - 1):
            return
        # From afar the first steps go back to the anchor; and while a rate warms up, nothing has gone anywhere yet.
        # Where nothing is divided by the gradient's size weights swing ever farther: ``runaway.py`` warns of that.
        is_due = float(account.first) >= NEAR or taken + 1 == LATER_STEP
        share = float(account.left / account.whole)
        if is_due and share < LEAST_SHARE and times_away(self.core, step.parameters) < SWING:
            self._warned_of = c = self.core.state.strength
            kind = type(optimizer).__name__
            message = _TOO_STRONG.format(c=c, less=c / 100, kind=kind, share=share, least=LEAST_SHARE)
            warn(message + (_IMPLICIT if supports_implicit(self.core, optimizer) else "."))


def _parts(task: Tensor, handed: Tensor | None) -> Tensor:
    """Return, of a parameter, what is left for the task of a step and what there would be without a hold."""
    pull = torch.zeros_like(task) if handed is None else some_of(handed) - task
    left = task.square() / torch.hypot(task, pull).clamp(min=torch.finfo(task.dtype).tiny)
    elements = 1 if handed is None else local(handed).numel() / task.numel()
    return torch.stack([left.sum(), task.abs().sum()]).to(widest_dtype(task.device)).mul(elements)


_TOO_STRONG = (
    "strength={c:g} is far too much for this task: beside the pull, {kind} has {share:.1%} of its first steps left for "
    "it, and expected are {least:.0%} or more. Such an optimizer divides by the size of the whole gradient, so that "
    "nothing diverges: weights swing around the anchor by about the learning rate, and next to nothing is learned. "
    "Take a smaller strength, {less:g} to begin with, or Guard(..., tolerance=), which finds one"
)
_IMPLICIT = "; implicit=True ends the swinging, and holds as strongly."
