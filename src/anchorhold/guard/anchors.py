r"""Where the quadratic hold is centred: at the last task's solution, or where the penalties of all tasks together are.

Around the last solution, :math:`c\langle\theta-\theta^*, Q(\theta-\theta^*)\rangle` with :math:`Q = \sum_k Q_k` stands
for all tasks (Huszár 2018, arXiv 1712.03847). The sum of the tasks' own penalties, each around its own solution
:math:`\theta_k`, has the same Q and another centre, the mean :math:`(\sum_k Q_k)^{-1}\sum_k Q_k\theta_k`. For the
diagonal that is weight by weight :math:`(\Omega\theta^* + \omega\theta)/(\Omega + \omega)`, and it is the anchor. In
other forms no mean is solved for, which would divide by what is nearly 0: the anchor stays the last solution, and
the *linear term* r, minus half of the gradient of the sum there, is kept beside it,

.. math:: \sum_k \langle\theta-\theta_k, Q_k(\theta-\theta_k)\rangle + 2\langle\theta-\theta_k, g_k\rangle
          = \langle D, Q(D)\rangle - 2\langle D, r\rangle + \text{const}, \qquad D = \theta - \theta^*, \quad
          r = \sum_k Q_k(\theta_k - \theta^*) - g_k.

:math:`g_k` is the gradient of the task's own loss at :math:`\theta_k`, where it is asked for: with c = ½ this is SOLA
(Yin, Farajtabar, Li, Levine and Mott 2020, arXiv 2006.10974), which keeps
:math:`\Lambda = \sum_k H_k` and :math:`b = \sum_k H_k\theta_k - g_k`. b is a small difference of large numbers wherever
weights are larger than what they moved by, and r is that difference. With a new solution θ′ it becomes

.. math:: r' = \gamma\,(r + Q(\theta^* - \theta')) - g', \qquad Q' = \gamma Q + q'.

Where a task has converged under the hold with c = ½, its loss and the hold pull against each other equally, and r′ is
0: the last solution is then the centre of all tasks, gradient terms included.
"""

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from anchorhold.adapters import Change, mapped
from anchorhold.errors import ConfigurationError, NotFiniteError, OrderError
from anchorhold.forms import Matrix
from anchorhold.guard.core import Core, GuardState
from anchorhold.guard.measurement import TaskResult
from anchorhold.guard.refreshing import refresh
from anchorhold.holds.of_weights.quadratic import applied
from anchorhold.spaces import Space
from anchorhold.tensors.finite import is_finite
from anchorhold.tensors.sharding import local, wrap_local
from anchorhold.tensors.storage import running_dtype, to_compute


@torch.no_grad()
def new_anchor(core: Core, result: TaskResult | None, space: Space) -> dict[str, Tensor]:
    """Return what the parameters are held to once a task is taken in, changing nothing yet.

    Args:
        core: what the guard knows, the task not taken in.
        result: what the measure that holds the model found for it; where that is nothing, the anchor is where
            weights are.
        space: the coordinates in which the task was measured.
    """
    mean = core.options.anchor_kind == "mean" and not core.has_linear_term
    theta = {**core.runtime.parameters, **space.coordinates(core.runtime.parameters)}
    found = {}
    for name, parameter in core.runtime.parameters.items():
        solution = theta[name].detach()
        if mean and result is not None and name in core.state.anchor:
            solution = _mean(core.state, result, name, solution)
        else:
            solution = solution.clone()
        found[name] = core.options.storage.to_storage(solution, parameter)
    return found


@torch.no_grad()
def new_merged_anchor(core: Core) -> dict[str, Change]:
    """Return what adapters add to weights once a task is taken in, where those are held; changing nothing yet."""
    found: dict[str, Change] = {}
    for name, change in core.space.changes().items():
        rest = partial(core.options.storage.to_storage, parameter=core.measured[name])
        found[name] = mapped(mapped(change, Tensor.clone), rest)
    return found


def rebase(core: Core) -> None:
    """Hold merged weights to where they are now, by the importance that was measured before."""
    if not core.space_kind.has_changes:
        raise ConfigurationError(
            "refresh(rebase=True) without space='merged': there is no merged weight to count anew."
        )
    if not core.state.tasks:
        raise OrderError(
            "refresh(rebase=True) before the first consolidate(): nothing is held yet that could be counted anew. "
            "Consolidate what the model knows, with its adapters on; that counts from there."
        )
    refresh(core)
    here = new_merged_anchor(core)
    core.state.merged_anchor.update({name: here[name] for name in core.state.merged_anchor if name in here})
    anchor = new_anchor(core, None, core.space)
    core.state.anchor.update({name: anchor[name] for name in core.space.in_parts})


def _mean(state: GuardState, result: TaskResult, name: str, solution: Tensor) -> Tensor:
    """Return (Ωθ* + ωθ)/(Ω + ω) of a parameter, θ where that is 0/0."""
    driving, dtype = state.driving, running_dtype(solution)
    if name not in driving.total:
        return solution.clone()
    old, new = driving.shares(name, state.decay)
    theta_star, before, now = (
        local(to_compute(tensor, solution)).to(dtype)
        for tensor in (
            state.anchor[name],
            driving.measured[name].diagonal()[name],
            result.matrices[name].diagonal()[name],
        )
    )
    theta = local(solution).to(dtype)
    whole = old * before + new * now
    share = torch.where(whole > 0, old * before / whole, 0.0)
    return wrap_local(theta + share * (theta_star - theta), solution)


@torch.no_grad()
def new_linear_term(core: Core, result: TaskResult, anchor: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the linear term of the sum of all tasks at a new anchor; nothing where there is none.

    Args:
        core: what the guard knows, the task not taken in.
        result: what the measure that holds the model found for it.
        anchor: the new one.
    """
    driving = core.state.driving
    if not core.has_linear_term:
        return {}
    found: dict[str, Tensor] = {}
    # All of them first: where Q is in parts all processes take part, and none may have stopped by then.
    every = {key: _moved(core, q, anchor) for key, q in driving.measured.items() if key in result.matrices}
    for key, matrix in result.matrices.items():
        old, new = driving.shares(key, core.state.decay)
        moved = every.get(key, {})
        for name in matrix.block.parameters:
            parameter = core.runtime.parameters[name]
            linear_term = torch.zeros_like(parameter, dtype=running_dtype(parameter), requires_grad=False)
            if name in core.state.linear_term:
                linear_term = linear_term + old * to_compute(core.state.linear_term[name], parameter)
            if name in moved:
                linear_term = linear_term - old * moved[name]
            if core.options.gradient_term:
                linear_term = linear_term - new * result.gradient[name]
            found[name] = core.to_storage(linear_term, parameter)
            if not is_finite(found[name]):
                raise NotFiniteError(
                    f"The sum of all tasks' penalties has a gradient at {name!r} that is not finite, so nothing was "
                    "consolidated; the previous anchor and importance still hold. Look for overflow in the importance "
                    "and in this task's gradients."
                )
    return found


def _moved(core: Core, matrix: Matrix, anchor: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return Q(θ′ − θ*) of a block, from the old anchor to the new one."""
    there = {name: to_compute(anchor[name], core.runtime.parameters[name]) for name in matrix.block.parameters}
    return applied(matrix, there, core.state.anchor)
