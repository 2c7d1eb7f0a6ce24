"""Monitors: what watches training and warns, each kind of trouble in one file and one line of this list."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from anchorhold.errors import ConfigurationError
from anchorhold.guard.monitor import Monitor
from anchorhold.guard.monitors.attached_optimizers import AttachedOptimizers
from anchorhold.guard.monitors.missing_parameters import MissingParameters
from anchorhold.guard.monitors.missing_protection import MissingProtection
from anchorhold.guard.monitors.moving_statistics import MovingStatistics
from anchorhold.guard.monitors.new_classes import NewClasses
from anchorhold.guard.monitors.pull_cost import PullCost
from anchorhold.guard.monitors.replaced_weights import ReplacedWeights
from anchorhold.guard.monitors.runaway import Runaway
from anchorhold.guard.monitors.stability import Stability
from anchorhold.guard.monitors.standstill import Standstill
from anchorhold.guard.monitors.task_share import TaskShare
from anchorhold.guard.monitors.unseen_steps import UnseenSteps
from anchorhold.registry import Registry, registering_class

M = TypeVar("M", bound=Monitor)

MONITORS: Registry[type[Monitor]] = Registry("monitor")
"""All monitors, by name, in the order in which they look."""


def register_monitor(name: str) -> Callable[[type[M]], type[M]]:
    """Let a monitor be asked for by name. Guards that are made from then on have it, unless they name others."""
    return registering_class(MONITORS, Monitor, name)


def monitor_kinds(given: Iterable[str | type[Monitor]] | None) -> list[type[Monitor]]:
    """Return the monitors that a guard is to have: all that are registered, or those that are given."""
    if isinstance(given, str):
        raise ConfigurationError(f"monitors={given!r}: expected several names, such as ({given!r},), or () for none.")
    kinds: list[type[Monitor]] = []
    for each in MONITORS if given is None else given:
        kind = each if isinstance(each, type) else MONITORS[each]
        if not (isinstance(kind, type) and issubclass(kind, Monitor)):
            raise ConfigurationError(f"monitors=[{each!r}]: expected names of {', '.join(MONITORS)}, or a Monitor.")
        kinds.append(kind)
    return kinds


for _kind in (
    AttachedOptimizers,
    UnseenSteps,
    MissingParameters,
    ReplacedWeights,
    MissingProtection,
    Stability,
    MovingStatistics,
    NewClasses,
    Runaway,
    TaskShare,
    Standstill,
    PullCost,
):
    register_monitor(_kind.name)(_kind)

__all__ = ["MONITORS", "Monitor", "monitor_kinds", "register_monitor"]
