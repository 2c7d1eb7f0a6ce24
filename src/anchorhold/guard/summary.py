"""A guard in a few lines: what is held, by what, since when, how strongly, and how far weights have moved."""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from anchorhold.adapters import has_adapters
from anchorhold.errors import ConfigurationError
from anchorhold.guard.arguments.default_space import why_not_merged
from anchorhold.guard.arguments.strengths import total_trace
from anchorhold.guard.core import Core, GuardState
from anchorhold.guard.distributed.sharded_matrices import ShardedMatrix
from anchorhold.guard.ledger import diagonal_of
from anchorhold.guard.stepping.default_pull import Owned, why_explicit
from anchorhold.holds.of_weights.quadratic import penalty_value
from anchorhold.measures import FineTune
from anchorhold.tensors.sharding import is_sharded, local
from anchorhold.tensors.storage import to_compute, widest_dtype
from anchorhold.tensors.summaries import amount, spread


def describe(core: Core, attached: Sequence[Optimizer], held_back: Owned) -> str:
    """Return what there is to say about a guard; of a sharded model, this process's part."""
    try:
        core.space_of(core.runtime.parameters)  # the one that is known may be of adapters that were taken away
        held = _held(core)
    except ConfigurationError as error:
        held = [f"as it is now, the model cannot be held: {error}"]
    lines = [_what(core, held_back)]
    if (rate := core.state.exchange_rate) is not None:  # in nats, bits and probabilities
        whose = "token" if core.state.tokens_of_all not in (None, 1) else "sample"
        bought = "1 nat" if rate == 1 else f"{rate:g} nats"
        nat = f"a nat is {1 / math.log(2):.2f} bits, a probability {math.e:.2f} times smaller"
        lines.append(f"1 nat lost of an old {whose} counts as {bought} of the new loss ({nat})")
    lines += [*held, *_beside(core), *_kept(core.state)]
    optimizers = ", ".join(type(optimizer).__name__ for optimizer in attached) or "no optimizer"
    steps = f"{core.task.most_steps} step{'' if core.task.most_steps == 1 else 's'} of task {core.state.tasks + 1}"
    waiting = max((each.steps for each in core.task.waiting.values()), default=0)
    lines.append(f"attached to {optimizers}; {steps} seen" + (f", {waiting} since the last pull" if waiting else ""))
    return "\n  ".join(lines)


def _what(core: Core, held_back: Owned) -> str:
    kept_as = core.state.driving.form
    form = "" if kept_as.elementwise else f" in the form {kept_as.name!r}"
    damping, defaults = vars(kept_as).get("damping"), {each.name: each.default for each in dataclasses.fields(kept_as)}
    form += "" if damping in (None, defaults.get("damping")) else f" with a damping of {damping:g}"
    measure = core.state.driving.measure
    usual = {field.name: field.default for field in dataclasses.fields(measure)}
    changed = [f"{name}={value!r}" for name, value in vars(measure).items() if usual.get(name) != value]
    settings = f"{type(measure).__name__}({', '.join(changed)})"
    named = settings if type(measure).__name__ == core.state.driver else f"{core.state.driver}, {settings}"
    how = _when_it_pulls(core, held_back) + _adapters(core)
    return f"Guard of {type(core.runtime.model).__name__}: {named}{form}, {_how_strongly(core.state)}{how}"


def _when_it_pulls(core: Core, held_back: Owned) -> str:
    """Return whether the hold acts after steps, and what has decided it where nobody has."""
    if isinstance(core.state.driving.measure, FineTune):
        return ""  # which has no importance to pull by
    if core.state.implicit.value or not core.state.implicit.is_open or core.space_kind.why_explicit:
        after = "after steps" if (every := core.state.pull_every.value) == 1 else f"after every {every} steps"
        return f", pulling {after}" if core.state.implicit.value else ", pulling in the gradient"
    why = why_explicit(core, held_back)
    open_yet = core.state.implicit.value is None and not why
    return ", pulling after steps if they are SGD's" if open_yet else f", pulling in the gradient {why}".rstrip()


def _adapters(core: Core) -> str:
    """Return what is held of adapters, where there are any."""
    if core.space_kind.description:
        return f", {core.space_kind.description}"
    protected = {id(parameter) for parameter in core.runtime.parameters.values()}
    if not has_adapters(core.runtime.model, protected):
        return ""
    why = why_not_merged(core)
    return ", adapters by their own parameters" + (f", since {why}" if why else "")


def _how_strongly(state: GuardState) -> str:
    strengths, rate = state.driving.strengths, state.exchange_rate
    if state.tolerance is not None:
        now = "" if state.control.log_start is None else f", strength {state.strength:.3g} now"
        return f"tolerance {state.tolerance.nats:g} nats{now}"
    if rate is not None and not state.strength:
        return f"exchange rate {rate:g}, of which the first consolidation makes a strength"
    if rate is not None:
        tokens = state.tokens_of_all
        of_tokens = "" if tokens in (None, 1) else f" for {tokens:.4g} scored tokens a sample"
        return f"exchange rate {rate:g}, which is strength {state.strength:.3g}{of_tokens}"
    if strengths is None:
        return f"strength {state.strength:g}"
    return "strength " + ", ".join(f"{c:g} for {name!r}" for name, c in strengths.times(state.strength).items())


def strength_record(core: Core) -> dict[str, float | None]:
    """Return c, κ, T and tr Q, by name; κ is what c amounts to, whoever has given it."""
    state, tokens = core.state, core.state.tokens_of_all
    driving = state.driving
    rate = None
    if driving.measure.is_in_nats and driving.strengths is None and tokens is not None and state.is_anchored:
        rate = 2 * tokens * state.strength_so_far if state.exchange_rate is None else state.exchange_rate
    trace = total_trace(driving.measured) if driving.total else None
    return {"strength": state.strength_so_far, "exchange_rate": rate, "tokens": tokens, "trace": trace}


def _kept(state: GuardState) -> list[str]:
    """Return how much is lost of what was kept, as it was last seen."""
    if not state.kept:
        lacking = "none yet, and it takes some before the first held step"
        return [] if state.tolerance is None else [f"keeps inputs for its tolerance: {lacking}"]
    sets = ", ".join(f"{each.name!r} ({each.samples} samples)" for each in state.kept.values())
    latest = state.control.latest
    if not latest:
        return [f"keeps {sets}; not looked at in this task yet"]
    worst = max(latest, key=lambda name: latest[name])
    beyond = state.tolerance is not None and latest[worst] > state.tolerance.nats
    more = ", beyond the tolerance until consolidate() or pull_back()" if beyond else ""
    often = f"; looks every {state.control.every} steps" if state.control.every else ""
    seen = "" if state.control.at < 0 else f" after step {state.control.at}"
    trace = state.control.trace
    in_turn = trace and (trace[-1].step, trace[-1].kl) == (state.control.at, latest[worst])
    some = " (at some of them)" if in_turn and len(state.kept[worst].chunks) > 1 else ""
    predicted = trace[-1].predicted if in_turn and state.exchange_rate is not None else None
    foreseen = "" if predicted is None else f", {predicted:.3g} by the second order that the exchange rate goes by"
    lost = f"{latest[worst]:.3g} nats were lost of {worst!r} at the last look{seen}{some}{foreseen}"
    return [f"keeps {sets}; {lost}{more}{often}"]


def _held(core: Core) -> list[str]:
    protected = {name: p for name, p in core.runtime.parameters.items() if not is_lazy(p)}
    if not core.state.is_anchored and core.state.tasks:
        return [f"holds nothing: what was consolidated was forgotten; protects {amount(protected.values())}"]
    if not core.state.is_anchored:
        return [f"holds nothing yet; protects {amount(protected.values())}, from the first consolidation on"]
    if core.options.holds and (not core.state.strength or isinstance(core.state.driving.measure, FineTune)):
        return [f"holds no weight to its place; protects {amount(protected.values())}"]  # others do the keeping
    verb = "holds" if core.state.strength else "at strength 0 does not hold"
    with_importance = core.state.driving.held_names
    with_importance |= {n for weight, parts in core.space.parts.items() if weight in with_importance for n in parts}
    anchored = core.state.anchor.keys() | core.space.in_parts  # an adapter's may be of another rank by now
    known = {name: p for name, p in protected.items() if name in anchored and name in with_importance}
    held = {name: p for name, p in known.items() if p.shape == core.state.anchor.get(name, p).shape}
    mean = core.options.anchor_kind == "mean" and core.state.tasks > 1
    where = f"{core.state.tasks} tasks, their mean by importance" if mean else f"task {core.state.tasks}"
    where += ", with the gradients of losses there" if core.options.gradient_term else ""
    lines = [f"{verb} {amount(held.values())} to what they were after {where}"]
    if replaced := [name for name in known if name not in held]:
        lines.append(f"consolidated with another shape, which attach() refuses: {replaced[0]}{_and_more(replaced)}")
    unheld = len(protected) - len(known)
    if unheld:
        lines.append(
            f"not held: {unheld} protected parameter{'s' if unheld > 1 else ''} that came or thawed later, or forgotten"
        )
    if gone := [name for name in core.state.anchor if name not in protected]:
        lines.append(f"consolidated, and no longer in the model: {gone[0]}{_and_more(gone)}")
    diagonal = {name: local(omega) for name, omega in core.state.driving.diagonal.items()}
    lines.append(f"importance {spread(diagonal.values())}")
    there = {name: p for name, p in held.items() if name in core.state.anchor and name not in core.space.in_parts}
    if there or core.state.merged_anchor:
        lines.append(_moved(core, there))
    if any(map(is_sharded, held.values())):
        lines.append("(the model is sharded: these are the numbers of this process's part)")
    return lines


@torch.no_grad()
def _moved(core: Core, held: Mapping[str, Tensor]) -> str:
    """Return how far weights are from the anchor, and what the penalty comes to.

    Adapters are told of by D of the weights that they are merged with, whose own length is never read.
    """
    penalty = lean = 0.0
    since = "from there" if core.options.anchor_kind == "mean" and not core.has_linear_term else "since"
    diagonal, coordinates = diagonal_of(core.state.driving.held), core.space.coordinates(held)
    strengths = core.state.driving.strengths
    moved: dict[str, float] = {}
    sizes: dict[str, float] = {}
    for name, parameter in held.items():
        if name not in coordinates:  # part of a folded map, and held as that
            continue
        # Squares of large weights overflow in single precision.
        theta = local(coordinates[name].detach()).to(widest_dtype(parameter.device))
        anchor = local(to_compute(core.state.anchor[name], parameter)).to(theta.dtype)
        square = (theta - anchor).square_()
        moved[name], sizes[name] = float(square.sum()), float(anchor.square().sum())
        if name in diagonal:
            penalty += core.state.strength * float((local(to_compute(diagonal[name], parameter)) * square).sum())
        if name in core.state.linear_term:
            factor = 1.0 if strengths is None else strengths.factor([name])
            lean += factor * float(
                (local(to_compute(core.state.linear_term[name], parameter)) * (theta - anchor)).sum()
            )
    for name, d in core.space.displacements(core.state.merged_anchor).items():
        moved[name] = float(d.to(widest_dtype(d.device)).square().sum())
    if not math.isfinite(sum(moved.values())):
        return "some weights are not finite any more: training has diverged"
    if not any(moved.values()):
        return f"no weight has moved {since}"
    so_far = f"moved {since} by {math.sqrt(sum(moved.values())):.3g}{_farthest(moved, sizes)}"
    if any(isinstance(matrix, ShardedMatrix) for matrix in core.state.driving.total.values()):
        return f"{so_far}; guard.penalty(), asked on every process, tells the penalty"  # others would have to be here
    if not core.state.driving.form.elementwise:
        maps = core.space.coordinates(core.runtime.parameters)
        penalty = float(penalty_value(maps, core.state.driving.held, core.state.anchor, core.state.strength))
    penalty -= 2 * core.state.strength * lean
    penalty += core.value_of_changes(core.state.driving.held, core.state.strength)
    return f"{so_far}; the penalty is {penalty:.3g}"


def _farthest(moved: Mapping[str, float], sizes: Mapping[str, float]) -> str:
    """Return how much of weights' length their way is, and which went farthest, from squares; some sizes may lack."""
    if len(sizes) < len(moved):
        name = max(moved, key=moved.__getitem__)
        return f" in merged weights{' and others' if sizes else ''}, most in {name} ({math.sqrt(moved[name]):.3g})"
    shares = {n: own / sizes[n] if sizes[n] else math.inf if own else 0.0 for n, own in moved.items()}
    name, size = max(shares, key=shares.__getitem__), sum(sizes.values())
    far = f", {_percent(sum(moved.values()) / size)} of their length" if size else ""
    return far + (f", most in {name} ({_percent(shares[name])})" if len(moved) > 1 else "")


def _percent(share: float) -> str:
    percent = 100 * math.sqrt(share) if math.isfinite(share) else math.inf
    return f"{percent:.0f} %" if 10 <= percent < math.inf else f"{percent:.2g} %" if percent < 10 else "it was 0"


def _beside(core: Core) -> list[str]:
    lines = []
    if core.state.frozen_norms:
        lines.append(f"running statistics frozen in {_norms(core.state.frozen_norms)}")
    if core.state.folded_norms:
        lines.append(f"folded into the layers before them: {_norms(core.state.folded_norms)}")
    for hold in core.options.holds:
        told = hold.told() or f"strength {hold.strength:g}"
        waits = ", from the first consolidation on" if hold.waits(core.state.tasks) else ""
        last = getattr(hold, "last", None)
        loss = "" if last is None else f"; its loss was {float(last):.3g} at the last step"
        lines.append(f"beside it holds {hold.name}: {told}{waits}{loss}")
    if watching := [name for name in core.state.ledgers if name != core.state.driver]:
        lines.append(f"watched by {', '.join(watching)}")
    return lines


def _norms(names: Collection[str]) -> str:
    first, *others = sorted(names)
    return f"the batch norm {first!r}{_and_more([first, *others])}"


def _and_more(names: Sequence[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
