"""The holds that are not element by element, or are a user's own: what they add to the gradients of a step."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from holdfast.guard.batch_norm.folding import FoldedQuadratic
from holdfast.guard.memory import Memory
from holdfast.guard.steps.bundles import Bundle, Single
from holdfast.guard.steps.optimizers import give_each_its_own_gradient
from holdfast.holds import Quadratic
from holdfast.holds.base import checked_pull
from holdfast.holds.quadratic import add_penalty_gradient, add_pull, penalty_value
from holdfast.tensors.pieces import in_pieces


def pulls_of(memory: Memory, owned: Mapping[str, nn.Parameter]) -> list[dict[str, Tensor]]:
    """Return the gradients of holds that are not element by element, and of those beside the guard's own."""
    holds = memory.beside_the_quadratic
    elementwise = memory.driving.form.elementwise
    if memory.anchor and memory.strength:
        if memory.folding.pairs:
            holds.append(FoldedQuadratic(memory.folding, elementwise=elementwise))
        elif not elementwise:
            holds.append(Quadratic())
    found = []
    for each in holds:
        moving = _with_their_blocks(memory, owned) if isinstance(each, Quadratic) else owned
        with torch.set_grad_enabled(each.runs_model):
            added = each.gradient(memory.held(moving))
        found.append(
            {name: pull.detach() for name, pull in checked_pull(each, added, owned, memory.parameters).items()}
        )
    return found


def _with_their_blocks(memory: Memory, owned: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """Return parameters with all others of their blocks: those pull at them too, whoever moves them.

    A folded one moves the maps that it is part of, so it is their blocks that count.
    """
    moving = owned.keys() | memory.folding.coordinates(owned).keys()
    blocks = [matrix.block.parameters for matrix in memory.driving.held.values()]
    names = {name for block in blocks if not moving.isdisjoint(block) for name in block}
    return {**owned, **{name: parameter for name, parameter in memory.parameters.items() if name in names}}


def add_pulls(
    stepping: Sequence[Bundle],
    owned: Mapping[str, nn.Parameter],
    pulls: Sequence[Mapping[str, Tensor]],
    factor: float,
    *,
    in_place: bool,
) -> None:
    """Add them to what the optimiser gets; where measures will want the task's gradient, to a copy."""
    if not pulls:
        return
    places = {name: (bundle, i) for bundle in stepping for i, name in enumerate(bundle.names)}
    for added in pulls:
        for name, pull in added.items():
            parameter, (bundle, place) = owned[name], places[name]
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
                bundle.handed[place] = None if in_place else parameter.grad
            elif not in_place and bundle.handed[place] is None:
                bundle.handed[place] = parameter.grad = parameter.grad.clone()
            add_pull(parameter.grad, pull, factor)


@torch.no_grad()
def add_all_in_place(memory: Memory, stepping: Sequence[Bundle], owned: Mapping[str, nn.Parameter]) -> Tensor:
    """Add the gradients of all holds in place, for a closure, and return their value."""
    elementwise = memory.driving.form.elementwise and memory.strength
    for name, parameter in owned.items():
        if elementwise and name in memory.anchor and name not in memory.folding.names:
            bundle = Single(memory, name, parameter, held=True)
            (omega, anchor), grad = bundle.anchored(), bundle.task_gradient()
            for g, theta, piece, theta_star in in_pieces([grad, parameter.detach(), omega, anchor]):
                add_penalty_gradient(g, theta, piece, theta_star, factor=2 * memory.strength, out=g)
    memory.folding.agree(memory.ranks)  # each evaluation has moved each rank's statistics
    pulls = pulls_of(memory, owned)
    give_each_its_own_gradient({name: owned[name] for pull in pulls for name in pull})
    add_pulls(stepping, owned, pulls, 1.0, in_place=True)
    held = memory.folding.coordinates(_with_their_blocks(memory, owned))
    value = penalty_value(held, memory.driving.held, memory.anchor, memory.strength)
    for each in memory.beside_the_quadratic:
        own = each.value(memory.held(owned))
        value = value if own is None else value + own.detach().to(value.device)
    return value
