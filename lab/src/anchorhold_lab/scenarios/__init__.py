"""Sequences of tasks: permuted, split, or one's own."""

from anchorhold_lab.scenarios.kept_samples import set_aside
from anchorhold_lab.scenarios.kinds import Kind, of_kind, open_outputs
from anchorhold_lab.scenarios.permuted_images import permuted
from anchorhold_lab.scenarios.split_images import split, split_cifar
from anchorhold_lab.scenarios.tasks import Samples, Scenario, Task, scenario_of

__all__ = [
    "Kind",
    "Samples",
    "Scenario",
    "Task",
    "of_kind",
    "open_outputs",
    "permuted",
    "scenario_of",
    "set_aside",
    "split",
    "split_cifar",
]
