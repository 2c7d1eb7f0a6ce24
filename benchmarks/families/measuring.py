"""The verdict on a model: what the library measures, beside the formula."""

import math
from collections.abc import Callable, Mapping
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from anchorhold import MAS, AbsoluteFisher, Fisher
from anchorhold.engine import SampleImportance
from anchorhold.measures import SampleMeasure
from benchmarks.families import brute_force
from benchmarks.families.brute_force import Importance
from benchmarks.families.family import Case
from benchmarks.families.verdicts import (
    FALLBACK,
    REFUSED,
    RIGHT,
    RIGHTLY_REFUSED,
    WARNED,
    WRONG,
    Outcome,
    listening,
    worst,
)

Measured = Callable[[SampleMeasure, nn.Module, Mapping[str, nn.Parameter] | None, list[Any], Any], SampleImportance]

NEGLIGIBLE = 1e-6
"""Gradients of a parameter that are smaller than the largest one's by this are rounding, as far as can be told."""

SINGLE_ROUNDING = 1e-7
"""Where a model computes in single precision, gradients that should be 0 are as large as this, beside the largest."""


def measured(
    measure: SampleMeasure,
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter] | None,
    batches: list[Any],
    forward: Any,
) -> SampleImportance:
    """Have the library measure."""
    return measure.accumulator(model, parameters, forward).result_of(batches)


def judge(make: Callable[[], Case], library: Measured = measured) -> Outcome:
    """Return the verdict on a family of models.

    Args:
        make: makes the model and its samples.
        library: what measures; another one in the tests that see to it that a wrong measure is called wrong.
    """
    torch.manual_seed(0)
    case = make()
    _prepare(case)
    forward = case.formula or case.forward or brute_force.call
    given = case.given if case.given is not None else _pair(case.inputs, case.targets)
    tensors = {**dict(case.model.named_parameters()), **dict(case.model.named_buffers())}
    before = {name: value.detach().clone() for name, value in tensors.items()}
    with brute_force.differentiable(case.model):
        expected = _each_alone(case, forward) if case.mixes else _expected(case, forward)
    with torch.no_grad():
        for name, value in before.items():  # what a layer that shortens its own weights has made of them
            tensors[name].copy_(value)
    outcomes = []
    for name, measure in _measures(case).items():
        outcomes += [
            _outcome(case, name, measure, batches, expected.get(name), library)
            for batches in ([given], None if case.whole else _last_one_alone(given))
            if batches is not None
        ]
    changed = [name for name, value in before.items() if not torch.equal(value, tensors[name])]
    if changed:
        outcomes.append(Outcome(WRONG, None, (f"measuring changes {_listed(changed, len(before))}",)))
    return worst(outcomes)


def _outcome(
    case: Case,
    name: str,
    measure: SampleMeasure,
    batches: list[Any],
    expected: Importance | None,
    library: Measured,
) -> Outcome:
    parameters = None
    if case.parameters is not None:
        parameters = {n: p for n, p in case.model.named_parameters() if fnmatch(n, case.parameters)}
    with listening() as heard:
        try:
            found = library(measure, case.model, parameters, batches, case.forward)
        except Exception as error:  # noqa: BLE001 (which is what is to be found)
            outcome = Outcome.of_error(error, name)
            return (
                Outcome(RIGHTLY_REFUSED, None, outcome.notes) if case.mixes and outcome.verdict == REFUSED else outcome
            )
    if expected is None:
        return Outcome(WRONG, None, (f"{name}: measured, though samples depend on each other",))
    notes = [f"warns: {warning}" for warning in heard.warnings]
    if case.mixes:
        notes.append("samples of a batch depend on each other; each was measured alone")
    missing = [n for n in expected if n not in found.values and fnmatch(n, case.parameters or "*")]
    if missing:
        note = f"{name}: nothing is measured of {_listed(missing, len(expected))}"
        return Outcome(WARNED if notes else WRONG, None, (note, *notes))
    differences = differences_of(found.values, expected, measure.phi, case.tolerance)
    largest = max(differences.values())
    if not largest <= case.tolerance:
        where = max(differences, key=lambda key: math.inf if math.isnan(differences[key]) else differences[key])
        kind = "in one batch" if len(batches) == 1 else "with a batch of one sample"
        return Outcome(WRONG, largest, (f"{name}, {kind}: {where} differs", *notes))
    for way in dict.fromkeys(found.fallback.values()):
        names = [key for key, value in found.fallback.items() if value == way]
        notes.append(f"{way}: {_listed(names, len(found.values))}")
    return Outcome(FALLBACK if found.fallback else RIGHT, largest, tuple(notes))


def differences_of(
    found: Mapping[str, Tensor], expected: Importance, phi: Callable[[Tensor], Tensor], tolerance: float = 1e-8
) -> dict[str, float]:
    """Return ‖found − expected‖ / ‖expected‖ of every parameter that was measured."""
    wanted = {name: value for name, value in expected.items() if name in found}
    size = max(float(value.norm()) for value in wanted.values())
    negligible = NEGLIGIBLE if tolerance <= 1e-8 else SINGLE_ROUNDING / tolerance
    least = size * float(phi(torch.tensor(negligible, dtype=torch.float64)))
    differences = {}
    for name, value in wanted.items():
        gap = float((found[name].double() - value).norm())
        differences[name] = gap / max(float(value.norm()), least) if gap else 0.0
    return {key: math.inf if math.isnan(value) else value for key, value in differences.items()}


def _measures(case: Case) -> dict[str, SampleMeasure]:
    if case.outputs == "values":
        return {"MAS on outputs": MAS(output="logits")}
    if case.outputs in ("gaussian", "bernoulli"):
        return {"Fisher": Fisher(), "empirical Fisher": Fisher(labels="true"), "MAS on outputs": MAS(output="logits")}
    several = case.targets is not None and case.targets.ndim > 1
    return {
        "Fisher": Fisher(),
        "empirical Fisher": Fisher(labels="true"),
        "AF": AbsoluteFisher(positions="separate" if several else "joint"),
        "MAS": MAS(),
    }


def _expected(case: Case, forward: brute_force.Forward) -> dict[str, Importance]:
    if case.outputs == "values":
        return brute_force.of_values(case.model, case.inputs, forward)
    assert case.targets is not None
    if case.outputs in ("gaussian", "bernoulli"):
        binary = case.outputs == "bernoulli"
        return brute_force.of_numbers(case.model, case.inputs, case.targets, forward, binary=binary)
    return brute_force.of_classes(case.model, case.inputs, case.targets, forward)


def _each_alone(case: Case, forward: brute_force.Forward) -> dict[str, Importance]:
    """Return what is right where samples of a batch depend on each other, besides an error: each by itself."""
    try:
        return _expected(case, forward)
    except (RuntimeError, IndexError, ValueError):  # a model that cannot be called with one
        return {}


def _prepare(case: Case) -> None:
    """Move parameters and running statistics off their initial values, at which many a mistake does not show."""
    if case.dtype == "double":
        case.model.double()
        case.inputs, case.given = _double(case.inputs), _double(case.given)
    with torch.no_grad():
        for parameter in case.model.parameters() if case.moved else ():
            if parameter.is_floating_point():
                parameter.add_(0.1 * torch.randn_like(parameter))
        for name, buffer in case.model.named_buffers():
            if name.endswith("running_mean"):
                buffer.uniform_(-0.5, 0.5)
            elif name.endswith("running_var"):
                buffer.uniform_(0.5, 2.0)


def _double(tree: Any) -> Any:
    return tree_map(lambda x: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x, tree)


def _pair(inputs: Any, targets: Tensor | None) -> Any:
    return (inputs,) if targets is None else (inputs, targets)


def _last_one_alone(given: Any) -> list[Any] | None:
    """Return the batch in two, all but the last sample and that one alone, as the last batch of an epoch may be."""
    sizes = {len(leaf) for leaf in tree_leaves(given) if isinstance(leaf, Tensor) and leaf.ndim}
    if len(sizes) != 1:
        return None
    return [
        tree_map(lambda x, part=part: x[part] if isinstance(x, Tensor) else x, given)
        for part in (slice(-1), slice(-1, None))
    ]


def _listed(names: list[str], of: int) -> str:
    if len(names) == of:
        return "all parameters"
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
