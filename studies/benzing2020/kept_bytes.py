"""What a method keeps of old tasks, in bytes, worked out from a run's spec alone.

Counted is what has to be there when the next task begins, after the last task but one: importances and old weights,
samples, old networks. What training itself needs, such as the optimiser's memory, is not.
"""

import math
from typing import NamedTuple

import torch

from anchorhold.guard import Guard, GuardOptions
from anchorhold.measures import FineTune, PathMeasure
from anchorhold_lab.experiments import Spec
from anchorhold_lab.networks import NETWORKS, MultiHead
from anchorhold_lab.networks.active_column import ActiveColumn

_FLOAT = 4
_IMAGES = {"digits": (1, 8, 8), "MNIST": (1, 28, 28), "CIFAR-10": (3, 32, 32), "CIFAR-100": (3, 32, 32)}
_TRAINING = {"digits": 1438, "MNIST": 60_000, "CIFAR-10": 50_000, "CIFAR-100": 50_000}


class _Shapes(NamedTuple):
    """What a network has to know of the tasks."""

    input_shape: tuple[int, ...]
    classes: int
    heads: int


class Kept(NamedTuple):
    """How many bytes."""

    bytes: int
    at_most: bool = False
    """Whether it depends on the data, and may be less."""


def kept_bytes(spec: Spec) -> Kept | None:
    """Return what a run keeps of old tasks; ``None`` for scenarios of one's own, whose inputs only their file knows."""
    if not set(spec.scenario_kind.datasets) <= set(_IMAGES) or not spec.scenario_kind.datasets:
        return None
    shapes = _shapes(spec)
    network = NETWORKS[spec.network or spec.scenario_kind.network].network(shapes, spec.hidden)
    weights = sum(parameter.numel() for parameter in network.parameters())
    old = max(1, (spec.tasks or 1) - 1)
    if spec.settings.trains == "anew":
        return Kept(_FLOAT * weights * old)
    sample = math.prod(shapes.input_shape)
    if spec.settings.trains == "jointly":
        return Kept(_FLOAT * sample * _samples(spec, old))
    total, at_most = _of_measure(spec, network), False
    if spec.settings.compress and not spec.settings.reinitialise:  # a column that goes on from where it is
        column = ActiveColumn(network, torch.zeros(1, *shapes.input_shape))
        total += _FLOAT * sum(parameter.numel() for parameter in column.parameters() if parameter.requires_grad)
    for hold in spec.holds:
        settings = spec.hold_settings.get(hold, {})
        if hold in ("replay", "A-GEM", "DER++"):
            outputs = shapes.classes if hold == "DER++" else 0
            total += _FLOAT * settings.get("source", 500) * (sample + outputs + 1)
        elif hold == "distillation":
            total += _FLOAT * weights
        elif hold == "variational":
            total += 2 * _FLOAT * weights
            total += _FLOAT * sample * spec.kept * old if settings.get("coreset") else 0
        elif hold == "projection":  # a basis of each layer's inputs, as large as what it has been shown
            total += _FLOAT * sum(p.flatten(1).shape[1] ** 2 for p in network.body.parameters() if p.ndim > 1)
            at_most = True
        elif hold == "asymmetric":
            total += weights  # sides, in eight bits each
    return Kept(total, at_most)


def _of_measure(spec: Spec, network: MultiHead) -> int:
    """Return what importance takes: Q, the anchor and how the hold leans there, and running states that last."""
    measure = spec.make_measure()
    if isinstance(measure, FineTune):
        return 0
    protect = "body.*" if len(network.heads) > 1 else None
    guard = Guard(
        network,
        measure,
        protect=protect,
        form=spec.make_form(),
        anchor=spec.anchor,
        options=GuardOptions(gradient_term=spec.gradient_term),
        from_scratch=True,
    )
    lasting = 0
    if isinstance(measure, PathMeasure):
        lasting = sum(kind == "lasting" for kind in measure.running.values())
    return guard.cost().kept + _FLOAT * lasting * sum(p.numel() for p in guard.parameters.values())


def _shapes(spec: Spec) -> _Shapes:
    """Return what the tasks of a built-in scenario look like: split ones have a head each, permuted ones share one."""
    image = _IMAGES[spec.scenario_kind.datasets[0]]
    flat = spec.scenario_kind.network != "cnn"
    kind = spec.incremental or spec.scenario_kind.incremental
    permuted = spec.scenario_kind.incremental == "domain"
    each = 10 if permuted or not flat else 2
    tasks = spec.tasks or 1
    classes = each * tasks if kind == "class" else each
    return _Shapes((math.prod(image),) if flat else image, classes, tasks if kind == "task" else 1)


def _samples(spec: Spec, tasks: int) -> int:
    """Return about how many training samples so many tasks have."""
    datasets = spec.scenario_kind.datasets
    if spec.scenario_kind.incremental == "domain":
        return _TRAINING[datasets[0]] * tasks
    if len(datasets) == 1:
        return _TRAINING[datasets[0]] * tasks // 5
    return _TRAINING[datasets[0]] + (tasks - 1) * _TRAINING[datasets[1]] // 10
