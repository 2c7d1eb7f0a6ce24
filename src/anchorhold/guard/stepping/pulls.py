"""The holds that are not element by element, or are a user's own: what they add to the gradients of a step."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn

from anchorhold.errors import AnchorholdError
from anchorhold.guard.core import Core
from anchorhold.guard.stepping.bundles import Bundle, Single
from anchorhold.guard.stepping.optimizers.accepted import give_each_its_own_gradient
from anchorhold.guard.stepping.training_calls import TrainingCalls
from anchorhold.holds import Hold, Quadratic
from anchorhold.holds.base import Held, checked_pull, is_looked_at
from anchorhold.holds.of_batches.batch_hold import BatchHold
from anchorhold.holds.of_weights.quadratic import add_penalty_gradient, add_pull, penalty_value
from anchorhold.tensors.pieces import in_pieces
from anchorhold.tensors.sharding import is_sharded, local
from anchorhold.tensors.storage import running_dtype


class Moving(NamedTuple):
    """What a step moves, as holds are asked about it."""

    owned: Mapping[str, nn.Parameter]
    """The protected parameters, by name."""
    trained: Mapping[str, nn.Parameter]
    """All of them, those that are not protected too."""
    calls: TrainingCalls
    factor: float = 1.0
    """The loss scale that is still in the gradients."""
    counted: bool = False
    """Whether the step is among those that were taken already."""


class Pull(NamedTuple):
    """What one hold adds to gradients."""

    names: Collection[str]
    """Of the parameters that it pulls at."""
    parts: Iterable[dict[str, Tensor]]
    """Gradients by parameter: made already, or each part as it is asked for."""


def pulls_of(core: Core, moving: Moving) -> list[Pull]:
    """Return the gradients of holds that are not element by element, and of those beside the guard's own."""
    if core.state.implicit.value and not core.options.holds:
        return []
    holds = list(core.options.holds) if core.state.implicit.value else core.beside_the_quadratic
    last: list[Pull] = []
    if core.state.anchor and core.state.strength and not core.state.implicit.value:
        quadratic = core.space.quadratic(elementwise=core.state.driving.form.elementwise)
        if quadratic is not None and (core.space.mapped or any(map(is_looked_at, moving.owned.values()))):
            holds.append(quadratic)
        elif quadratic is not None:
            # Each block's is made when the one before is added: all would be a second model. It goes by the weights
            # alone, which stay as they are until the step, and nobody looks whether it is of numbers before that.
            held = _held(core, _with_their_blocks(core, moving.owned), moving)
            blocks = [matrix.block.parameters for matrix in held.importance.values()]
            pulled = held.parameters.keys() & moving.trained.keys()
            names = {name for block in blocks for name in block if name in pulled}
            last = [Pull(names, Quadratic().parts(held, pulled))]
    made = [pull for pull in (_pull_of(core, each, moving) for each in holds) if pull]
    return [*(Pull(tuple(pull), [pull]) for pull in made), *last]


def _pull_of(core: Core, hold: Hold, moving: Moving) -> dict[str, Tensor]:
    """Return what one hold adds, its part of the step taken from the task's where it has one."""
    whole = {name: p for name, p in moving.trained.items() if p.requires_grad and not is_sharded(p)}
    if core.runtime.ranks.size == 1 or not hold.runs_model or hold.waits(core.state.tasks) or not whole:
        pull = _asked(core, hold, moving)  # FSDP has brought together what is sharded
    else:
        pull = _mean_over_ranks(core, hold, moving, whole)
    if pull and hold.projects:
        given = {name: p.grad for name, p in moving.trained.items() if p.grad is not None}
        dense = {name: grad.to_dense() if grad.is_sparse else grad for name, grad in given.items()}
        # Without the loss scale, by which add_pulls() multiplies what is returned here.
        task = {n: g if moving.factor == 1 else g.to(running_dtype(g)) / moving.factor for n, g in dense.items()}
        return {name: tensor.detach() for name, tensor in hold.joined(pull, task).items()}
    return _in_its_place(pull, hold.share, moving) if pull and hold.share else pull


def _asked(core: Core, hold: Hold, moving: Moving) -> dict[str, Tensor]:
    """Return a hold's gradient on this process, or refuse what is none."""
    owned = _with_their_blocks(core, moving.owned) if isinstance(hold, Quadratic) else moving.owned
    # The hooks run under no_grad; only a hold that runs the model goes backward through it.
    with torch.set_grad_enabled(hold.runs_model), moving.calls.paused():
        added = hold.gradient(_held(core, owned, moving))
    known = core.runtime.parameters.keys() | moving.trained.keys()
    return {name: tensor.detach() for name, tensor in checked_pull(hold, added, moving.trained, known).items()}


def _held(core: Core, owned: Mapping[str, nn.Parameter], moving: Moving) -> Held:
    held = core.held(owned, trained=moving.trained, call=moving.calls.last)
    return held._replace(steps=held.steps - 1) if moving.counted else held


def _in_its_place(pull: dict[str, Tensor], share: float, moving: Moving) -> dict[str, Tensor]:
    """Return ρ(g_old − g), which makes (1 − ρ)g + ρg_old of the step's gradient; the first is weighted by ρ already."""
    wide = {name: torch.promote_types(tensor.dtype, torch.float32) for name, tensor in pull.items()}
    apart = _lie_apart(list(pull.values()))
    for name, parameter in moving.trained.items():
        if parameter.grad is None:
            continue
        # The loss scale is in the gradient, and comes to the pull when it is added: until then both are without.
        grad, factor = parameter.grad, -share / moving.factor
        if name in pull and apart and grad.dtype == pull[name].dtype == wide[name]:
            pull[name].add_(grad, alpha=factor)  # new memory would cost more than the arithmetic
        else:
            place = grad.to(torch.promote_types(grad.dtype, torch.float32)).mul(factor)
            pull[name] = place + pull[name] if name in pull else place
    return pull


def _lie_apart(tensors: Sequence[Tensor]) -> bool:
    """Return whether each of some tensors can be written to without another's changing."""
    if any(tensor.is_sparse for tensor in tensors):
        return False
    own = [local(tensor) for tensor in tensors]
    places = {tensor.data_ptr() for tensor in own if tensor.numel()}
    return len(places) == sum(tensor.numel() > 0 for tensor in own) and all(t.is_contiguous() for t in own)


def _mean_over_ranks(core: Core, hold: Hold, moving: Moving, whole: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Return the mean of all ranks' gradients, in one sum for all that is not sharded: FSDP has done its part.

    Ranks may have looked at samples of different heads: what no rank has a gradient for stays without one. A rank on
    which the hold fails takes part all the same, so that the others are told instead of waiting for it.
    """
    pull: dict[str, Tensor] = {}
    failure: Exception | None = None
    try:
        pull = _asked(core, hold, moving)
    except Exception as error:
        if len(whole) < len(moving.trained):
            raise  # the others wait for what FSDP gathers
        failure = error
    device = next(iter(whole.values())).device
    dtype = max((running_dtype(p) for p in whole.values()), key=lambda dtype: dtype.itemsize)
    parts = [pull[name] if name in pull else torch.zeros_like(p) for name, p in whole.items()]
    flat = torch.cat([part.to(device, dtype).reshape(-1) for part in parts])
    # In the same sum: which gradients this rank has, and whether its hold has failed.
    found = flat.new_tensor([float(name in pull) for name in whole] + [float(failure is not None)])
    total = core.runtime.ranks.add_up(torch.cat([flat, found]))
    flat, (*present, failed) = total[: flat.numel()] / core.runtime.ranks.size, total[flat.numel() :].tolist()
    if failure is not None:
        raise failure
    if failed:
        raise AnchorholdError(
            f"The hold {hold.name!r} failed on {int(failed)} of the {core.runtime.ranks.size} ranks, whose own errors "
            "say why. The step was not taken on any of them."
        )
    sizes = [p.numel() for p in whole.values()]
    means = zip(whole.items(), flat.split(sizes), present, strict=True)
    return pull | {name: mean.view_as(p).to(p.device) for (name, p), mean, ranks in means if ranks}


def _with_their_blocks(core: Core, owned: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """Return parameters with all others of their blocks: those pull at them too, whoever moves them.

    One that is part of a map moves its coordinates, so it is their blocks that count.
    """
    moving = owned.keys() | core.space.coordinates(owned).keys()
    blocks = [matrix.block.parameters for matrix in core.state.driving.held.values()]
    names = {name for block in blocks if not moving.isdisjoint(block) for name in block}
    return {**owned, **{name: parameter for name, parameter in core.runtime.parameters.items() if name in names}}


def add_pulls(
    stepping: Sequence[Bundle],
    trained: Mapping[str, nn.Parameter],
    pulls: Sequence[Pull],
    factor: float,
    *,
    in_place: bool,
) -> None:
    """Add pulls to what the optimizer gets; where measures want the task's gradient after the step, to a copy.

    What is not protected is not measured, so that its own gradient is written to. No part is kept once it is added.
    """
    if not pulls:
        return
    places = {name: (bundle, i) for bundle in stepping for i, name in enumerate(bundle.names)}
    for part in chain.from_iterable(pull.parts for pull in pulls):
        for name in list(part):
            parameter, (bundle, place) = trained[name], places.get(name, (None, 0))
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
                if bundle is not None:
                    bundle.handed[place] = None if in_place else parameter.grad
            elif bundle is not None and not in_place and bundle.handed[place] is None:
                bundle.handed[place] = parameter.grad = parameter.grad.clone()
            add_pull(parameter.grad, part.pop(name), factor)


class HeldBack(NamedTuple):
    """What all holds come to, beside the loss of a closure."""

    value: Tensor
    task_share: float
    """What the task's own loss counts."""


@torch.no_grad()
def add_all_in_place(core: Core, stepping: Sequence[Bundle], moving: Moving) -> HeldBack:
    """Add the gradients of all holds in place, for a closure, and return their value."""
    elementwise = core.state.driving.form.elementwise and core.state.strength and not core.state.implicit.value
    core.space.agree(core.runtime.ranks.take_first)  # each evaluation has moved each rank's statistics
    pulls = pulls_of(core, moving)
    give_each_its_own_gradient({name: moving.trained[name] for pull in pulls for name in pull.names})
    for name, parameter in moving.owned.items():
        if elementwise and name in core.state.anchor and name not in core.space.held_elsewhere:
            bundle = Single(core, name, parameter, held=True)
            (omega, anchor), grad = bundle.anchored(), bundle.task_gradient()
            for g, theta, piece, theta_star in in_pieces([grad, parameter.detach(), omega, anchor]):
                add_penalty_gradient(g, theta, piece, theta_star, factor=2 * core.state.strength, out=g)
    add_pulls(stepping, moving.trained, pulls, 1.0, in_place=True)
    held = core.space.coordinates(_with_their_blocks(core, moving.owned))
    strength = (
        0.0 if core.state.implicit.value else core.state.strength
    )  # what acts after the step is no part of the loss
    value = penalty_value(held, core.state.driving.held, core.state.anchor, strength)
    task_share = 1.0
    for each in core.options.holds if core.state.implicit.value else core.beside_the_quadratic:
        if each.projects:  # which is no loss
            continue
        if isinstance(each, BatchHold):  # which has just found it on its way to the gradient
            own = None if each.last is None else each.weight * each.last
        else:
            own = each.value(_held(core, moving.owned, moving))
        if own is not None:
            value = value + own.detach().to(value.device)
            task_share -= each.share or 0.0
    return HeldBack(value, task_share)
