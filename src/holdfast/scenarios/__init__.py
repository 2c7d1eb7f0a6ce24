"""Sequences of tasks: permuted, split, or one's own."""

from holdfast.scenarios.permuted import permuted
from holdfast.scenarios.split import split, split_cifar
from holdfast.scenarios.tasks import Samples, Scenario, Task, scenario_of

__all__ = ["Samples", "Scenario", "Task", "permuted", "scenario_of", "split", "split_cifar"]
