r"""Noticing a hold so strong that an optimiser such as Adam has next to no step left for the task.

Adam divides by the size of the whole gradient, the task's g and the pull :math:`p = 2cQ(\theta-\theta^*)` together, so
that no strength makes it diverge: weights swing around the anchor by about the learning rate instead. What it still
does for the task is to first order

.. math:: \rho = \sum_i \frac{g_i^2}{\sqrt{g_i^2 + p_i^2}} \Big/ \sum_i |g_i|

of what the same step would do without a hold. Where a hold and a task are in balance, :math:`p = -g`, that is 0.7. On
digits the strengths that keep most leave 0.55 or more of the first steps, those a thousand times as large 0.03 on the
split ones and 0.3 to 0.5 on the permuted ones, where many weights have next to no importance.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from anchorhold.guard.memory import Memory
from anchorhold.guard.noticing.distances import some_of, times_away
from anchorhold.guard.noticing.stability import may_be_told_implicit, sgd_groups
from anchorhold.guard.noticing.telling import is_capturing, tell
from anchorhold.tensors.sharding import local
from anchorhold.tensors.storage import widest_dtype

STEPS = 8
"""Steps of a task that are looked at: the first, from weights that are where they are held."""
LATER = 128
"""Those before this one are looked at too: weights drawn anew are on their way back at first, where the pull is to be
large, and rates that warm up leave all of them where they are."""
NEAR = 0.5
"""What a first step has left for the task where weights begin near the anchor."""
LEAST = 0.02
"""What has to be left of a step, or it is told. A study of text still learns at strengths that leave 6 %."""
SWING = 1.0
"""Times their own size: weights that are farther away than that do not just swing around their anchor."""


@dataclass
class _Account:
    """What some steps of an optimiser could have done for a task, and do beside the pull."""

    first: Tensor
    """ρ of the task's first step."""
    left: Tensor
    whole: Tensor


class TaskShare:
    """Compares the task's gradient with what the optimiser gets, in a few steps of each task."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self._accounts: WeakKeyDictionary[Optimizer, _Account] = WeakKeyDictionary()
        self._noted: dict[str, Tensor] = {}
        self._step = 0
        """Of the task, counted from 0, that was noted."""
        self._told: float | None = None
        """The strength that was told of."""

    def note(self, optimizer: Optimizer, owned: Mapping[str, nn.Parameter], *, counted: bool = False) -> None:
        """Note the task's own gradient, before the hold's joins it; ``counted`` if the step is already counted."""
        memory = self.memory
        self._noted = {}
        held = memory.is_anchored and memory.strength and not memory.implicit
        # A tolerance looks after its strength, and what further holds add is not of the strength's size.
        if not held or memory.tolerance is not None or memory.holds or self._told == memory.strength:
            return
        self._step = step = max((memory.steps.get(name, 0) for name in owned), default=0) - counted
        if (STEPS <= step < LATER - STEPS) or step >= LATER or is_capturing() or sgd_groups(optimizer):
            return
        held_by = memory.driving.held_names
        grads = {name: p.grad for name, p in owned.items() if name in held_by or name in memory.held_elsewhere}
        self._noted = {
            n: some_of(g) for n, g in grads.items() if g is not None and not g.is_sparse and local(g).numel()
        }

    def look(self, optimizer: Optimizer, owned: Mapping[str, nn.Parameter]) -> None:
        """Look at what the optimiser gets in its place, and say if that has been the pull's for some steps."""
        noted, self._noted = self._noted, {}
        parts = [_parts(task, owned[n].grad) for n, task in noted.items()]
        if not parts:
            return
        left, whole = torch.stack([part.to(parts[0].device) for part in parts]).sum(0)
        step = self._step
        if step == 0:
            self._accounts[optimizer] = _Account(left / whole, torch.zeros_like(left), torch.zeros_like(whole))
            return  # from the anchor itself nothing pulls yet
        account = self._accounts.get(optimizer)
        if account is None:  # the task was resumed
            account = self._accounts[optimizer] = _Account(torch.zeros_like(left), left * 0, whole * 0)
        if step == LATER - STEPS:
            account.left, account.whole = left * 0, whole * 0
        account.left, account.whole = account.left + left, account.whole + whole
        if step in (STEPS - 1, LATER - 1):
            self._decide(optimizer, owned, account, step + 1)

    def _decide(self, optimizer: Optimizer, owned: Mapping[str, nn.Parameter], account: _Account, steps: int) -> None:
        near = float(account.first) >= NEAR
        share = float(account.left / account.whole)
        # From afar the first steps go back to the anchor; and while a rate warms up, nothing has gone anywhere yet.
        # Where nothing is divided by the gradient's size they swing ever farther, which is told of in ``runaway.py``.
        if (near or steps == LATER) and share < LEAST and times_away(self.memory, owned) < SWING:
            self._told = c = self.memory.strength
            told = _TOO_STRONG.format(c=c, less=c / 100, kind=type(optimizer).__name__, share=share, least=LEAST)
            tell(told + (_IMPLICIT if may_be_told_implicit(self.memory, optimizer) else "."))


def _parts(task: Tensor, handed: Tensor | None) -> Tensor:
    """Return, of a parameter, what is left for the task of a step and what there would be without a hold."""
    pull = torch.zeros_like(task) if handed is None else some_of(handed) - task
    left = task.square() / torch.hypot(task, pull).clamp(min=torch.finfo(task.dtype).tiny)
    elements = 1 if handed is None else local(handed).numel() / task.numel()
    return torch.stack([left.sum(), task.abs().sum()]).to(widest_dtype(task.device)).mul(elements)


_TOO_STRONG = (
    "strength={c:g} is far too much for this task: beside the pull, {kind} has {share:.1%} of its first steps left for "
    "it, and expected are {least:.0%} or more. Such an optimiser divides by the size of the whole gradient, so that "
    "nothing diverges: weights swing around the anchor by about the learning rate, and next to nothing is learned. "
    "Take a smaller strength, {less:g} to begin with, or Guard(..., tolerance=), which finds one"
)
_IMPLICIT = "; implicit=True ends the swinging, and holds as strongly."
