r"""How far an optimizer takes a weight for a unit of a gradient that stays: h, of which a learning rate is only a part.

With a gradient g that does not change, the steps of every optimizer here settle at :math:`-h\,g`:

- SGD with momentum μ and dampening d: :math:`h = \eta(1-d)/(1-\mu)`, Nesterov's or not;
- Adam, AdamW and NAdam: :math:`h = \eta/(\sqrt{\hat v}+\epsilon)`, with the largest :math:`\hat v` so far for amsgrad;
- RAdam: the same with its rectification, and η until that begins; Adamax: :math:`\eta/u`;
- RMSprop: :math:`\eta/((1-\mu)(\sqrt v+\epsilon))`, centred or not; Adagrad: its decayed rate over
  :math:`\sqrt{\sum g^2}+\epsilon`.

Momentum takes some :math:`1/(1-\mu)` steps to get there, in which the gradient has gone less far than this says. Weight
decay, decoupled or not, is the optimizer's own, and no part of h. All is read after the step that it is of.

A pull in the gradient has a bound with SGD. Beside the task's gradient, the penalty of one weight is a quadratic of
curvature :math:`\lambda = 2c\,\Omega`, and SGD on a quadratic is a linear recurrence, stable where the roots of its
characteristic polynomial lie within the unit circle. With learning rate η, momentum μ and dampening d that is

.. math:: \eta(1-d)\lambda < 2(1+\mu), \qquad\text{and with Nesterov's}\quad \eta\lambda < \frac{2(1+\mu)}{1+2\mu}.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop

from anchorhold.errors import OptimizerError
from anchorhold.forms import Form
from anchorhold.guard.core import Core

Group = Mapping[str, Any]


class EffectiveRate(NamedTuple):
    """h of one parameter, as a formula of what the optimizer keeps about each of its weights."""

    formula: Callable[..., Tensor] | None
    """``None`` where it is the same for all weights: the one number."""
    numbers: tuple[float, ...]
    kept: tuple[Tensor, ...] = ()

    @property
    def rate(self) -> float | None:
        """Return the one h of all weights, where there is one."""
        return self.numbers[0] if self.formula is None else None

    def of(self, kept: tuple[Tensor, ...]) -> float | Tensor:
        """Return h, from all or some of what is kept."""
        return self.numbers[0] if self.formula is None else self.formula(*kept, *self.numbers)

    def is_like(self, other: "EffectiveRate") -> bool:
        """Return whether both are by one formula, so that their weights may lie side by side."""
        return self.formula is other.formula and self.numbers == other.numbers


def _by_root(v: Tensor, rate: float, correction: float, epsilon: float) -> Tensor:
    return v.sqrt().div_(correction).add_(epsilon).reciprocal_().mul_(rate)  # new memory costs more than arithmetic


def _by_spread(v: Tensor, mean: Tensor, rate: float, epsilon: float) -> Tensor:
    return rate / (v - mean.square()).clamp_(min=0).sqrt_().add_(epsilon)


def _by_size(u: Tensor, rate: float) -> Tensor:
    return rate / u


def _sgd(group: Group, _state: Group, _step: float) -> EffectiveRate:
    momentum = float(group["momentum"])
    if momentum >= 1:
        raise OptimizerError(
            f"implicit=True with SGD of momentum={momentum:g}, whose steps never settle; expected one below 1."
        )
    damped = 1 - float(group["dampening"]) if momentum else 1.0
    return EffectiveRate(None, (float(group["lr"]) * damped / (1 - momentum),))


def _adam(group: Group, state: Group, step: float) -> EffectiveRate:
    v = state["max_exp_avg_sq" if group.get("amsgrad") else "exp_avg_sq"]
    correction = (1 - float(group["betas"][1]) ** step) ** 0.5
    return EffectiveRate(_by_root, (float(group["lr"]), correction, float(group["eps"])), (v,))


def _radam(group: Group, state: Group, step: float) -> EffectiveRate:
    rate, beta2 = float(group["lr"]), float(group["betas"][1])
    correction = 1 - beta2**step
    longest = 2 / (1 - beta2) - 1
    length = longest - 2 * step * beta2**step / correction
    if length <= 5:
        return EffectiveRate(None, (rate,))
    rectified = ((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)) ** 0.5
    return EffectiveRate(
        _by_root, (rate * rectified * correction**0.5, 1.0, float(group["eps"])), (state["exp_avg_sq"],)
    )


def _adamax(group: Group, state: Group, _step: float) -> EffectiveRate:
    return EffectiveRate(_by_size, (float(group["lr"]),), (state["exp_inf"],))


def _rmsprop(group: Group, state: Group, _step: float) -> EffectiveRate:
    rate, epsilon = float(group["lr"]) / (1 - float(group["momentum"])), float(group["eps"])
    if group["centered"]:
        return EffectiveRate(_by_spread, (rate, epsilon), (state["square_avg"], state["grad_avg"]))
    return EffectiveRate(_by_root, (rate, 1.0, epsilon), (state["square_avg"],))


def _adagrad(group: Group, state: Group, step: float) -> EffectiveRate:
    rate = float(group["lr"]) / (1 + (step - 1) * float(group["lr_decay"]))
    return EffectiveRate(_by_root, (rate, 1.0, float(group["eps"])), (state["sum"],))


KNOWN: dict[type[Optimizer], Callable[[Group, Group, float], EffectiveRate]] = {
    SGD: _sgd,
    Adam: _adam,
    AdamW: _adam,
    NAdam: _adam,
    RAdam: _radam,
    Adamax: _adamax,
    RMSprop: _rmsprop,
    Adagrad: _adagrad,
}
_BY_STEP = {inspect.unwrap(kind.step): read for kind, read in KNOWN.items()}
"""The same by how steps are taken, without what torch puts around that."""


def check_effective_rate(optimizer: Optimizer, form: Form) -> None:
    """Refuse an optimizer after whose steps weights cannot be pulled in a form."""
    if is_sgd(optimizer):
        for group in optimizer.param_groups:
            _sgd(group, {}, 1.0)  # refuses a momentum that never settles
    elif not form.elementwise:
        raise OptimizerError(
            f"implicit=True in the form {form.name!r} with {type(optimizer).__name__}, which moves each weight of a "
            "layer by a rate of its own: there are no coordinates in which the pull could be found. Use SGD, the form "
            "'diagonal', or Guard(..., options=GuardOptions(implicit=False)), which such an optimizer bears at any "
            "strength."
        )


def check_pull_every(optimizer: Optimizer, every: int) -> None:
    """Refuse an optimizer for several of whose steps no single pull is known."""
    if every > 1 and _BY_STEP.get(inspect.unwrap(type(optimizer).step)) is not _sgd:
        raise OptimizerError(
            f"pull_every={every} with {type(optimizer).__name__}: a pull for several steps at once goes by one rate "
            "for all weights of a layer, as torch.optim.SGD has it. Use SGD, or leave pull_every out; where a state "
            "has brought it along, set guard.options.pull_every = 1."
        )


def is_sgd(optimizer: Optimizer) -> bool:
    """Return whether an optimizer, one whose effective rate is known, moves all weights of a group by one rate."""
    return _reader(optimizer) is _sgd


def check_blocks(
    optimizer: Optimizer, form: Form, blocks: Iterable[Sequence[str]], owned: Mapping[str, nn.Parameter]
) -> None:
    """Refuse parameters of one matrix that do not all go equally far: its coordinates are not those of the pull."""
    rates = {name: each.rate for name, each in effective_rates(optimizer, owned).items()}
    for names in blocks:
        if owned.keys().isdisjoint(names) or len({rates.get(name, 0.0) for name in names}) == 1:
            continue
        moved = ", ".join(f"{name!r} by {rates.get(name) or 0.0:g}" for name in names)
        raise OptimizerError(
            f"implicit=True in the form {form.name!r} with one matrix of {moved}: those that this optimizer moves by "
            "different rates, or not at all, have no coordinates in which the pull could be found. Train them together "
            "at one learning rate, leave one out of protect, or leave implicit out."
        )


def _reader(optimizer: Optimizer) -> Callable[[Group, Group, float], EffectiveRate]:
    """Return how the effective rate of an optimizer is read, or refuse one of which it is not known."""
    # Also of a class derived from a known one, if it takes the same steps.
    read = _BY_STEP.get(inspect.unwrap(type(optimizer).step))
    if read is not None:
        return read
    raise OptimizerError(
        f"implicit=True with {type(optimizer).__name__}: a pull after its step has to be as long as the step is for "
        f"its gradient, which is known of {', '.join(kind.__name__ for kind in KNOWN)} alone, and by any other the "
        "weights would end elsewhere. Use one of those, or Guard(..., options=GuardOptions(implicit=False)), whose "
        "hold joins the gradient of any optimizer."
    )


def effective_rates(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]) -> dict[str, EffectiveRate]:
    """Return the effective rate of each parameter that took part in the last step."""
    read = _reader(optimizer)
    if read is _sgd:
        rates: dict[int, EffectiveRate] = {}
        for group in optimizer.param_groups:
            if float(group["lr"]) > 0:
                rates |= dict.fromkeys(map(id, group["params"]), _sgd(group, {}, 0.0))
        return {name: rates[id(p)] for name, p in parameters.items() if id(p) in rates}
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    states = {name: optimizer.state.get(p, {}) for name, p in parameters.items()}
    states = {name: state for name, state in states.items() if state}
    numbers = _numbers({name: state["step"] for name, state in states.items() if "step" in state})
    found = {}
    for name, state in states.items():
        group = groups[id(parameters[name])]
        if float(group["lr"]) > 0:
            found[name] = read(group, state, numbers.get(name, 0.0))
    return found


def _numbers(steps: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of steps; an accelerator, where some optimizers count them, is asked once for all."""
    away = {n: s for n, s in steps.items() if isinstance(s, Tensor) and s.device.type != "cpu"}
    found = {n: float(s) for n, s in steps.items() if n not in away}
    if away:
        found |= dict(zip(away, torch.stack([s.reshape(()) for s in away.values()]).tolist(), strict=True))
    return found


# How strong a pull in the gradient SGD bears


def sgd_groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the groups that SGD moves: an optimizer's own, or, of SAM and its like, those of the one inside."""
    stepping = next((o for o in (optimizer, *vars(optimizer).values()) if isinstance(o, SGD)), None)
    return [] if stepping is None else stepping.param_groups


def sgd_rates(optimizer: Optimizer) -> list[tuple[Any, ...]]:
    """Return what SGD's bound depends on, group by group."""
    return [
        (float(group["lr"]), group["momentum"], group["dampening"], group["nesterov"], group["weight_decay"])
        for group in sgd_groups(optimizer)
    ]


def largest_strength(core: Core, optimizer: Optimizer, owned: Mapping[str, nn.Parameter]) -> float:
    """Return the strength up to which an optimizer is stable by itself, half of it for the task's own curvature.

    Those that have no such bound bear any, and so does an implicit hold.
    """
    if core.state.implicit.value:
        return math.inf
    names = {id(parameter): name for name, parameter in owned.items()}
    most = math.inf
    largest = core.largest_importance
    for group in sgd_groups(optimizer):
        held = {names[id(p)] for p in group["params"] if id(p) in names} & largest.keys()
        omega = max((largest[name] for name in held), default=0.0)
        if omega > 0 and float(group["lr"]) > 0:
            bound = largest_curvature(
                float(group["lr"]), group["momentum"], group["dampening"], nesterov=group["nesterov"]
            )
            most = min(most, max(0.5 * (bound - group["weight_decay"]) / (2 * omega), 1e-38))
    return most


def rounded_down(value: float) -> float:
    """Return a positive number with one digit that is not larger than it; 0 for others."""
    if not 0 < value < math.inf:
        return 0.0
    unit = 10.0 ** math.floor(math.log10(value))
    return math.floor(value / unit) * unit


def largest_curvature(rate: float, momentum: float, dampening: float, *, nesterov: bool) -> float:
    """Return up to which curvature of a quadratic SGD is stable."""
    if nesterov:
        return 2 * (1 + momentum) / ((1 + 2 * momentum) * rate)
    # Without momentum, torch's SGD has no dampening either.
    scale = rate * (1 - dampening) if momentum else rate
    return 2 * (1 + momentum) / scale if scale > 0 else float("inf")
