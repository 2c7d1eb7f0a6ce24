"""What runs are called where a person reads it."""

import math
import statistics
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from anchorhold_lab.experiments.specs.method_names import method_name

if TYPE_CHECKING:
    from anchorhold_lab.experiments import Spec
    from anchorhold_lab.training.telling.progress import Outcome
    from anchorhold_lab.training.telling.retention import Seen

Label = Callable[[Sequence["Spec"]], str]
"""Gives a name to a run, or to several that train together."""


def label_of_group(specs: "Sequence[Spec]") -> str:
    """Return a name for runs that train together, such as ``SI, rotated EWC seeds 0-2``."""
    measures = ", ".join(dict.fromkeys(method_name(spec) for spec in specs))
    seeds = sorted({spec.seed for spec in specs})
    if len(seeds) == 1:
        return f"{measures} seed {seeds[0]}"
    in_a_row = seeds == list(range(seeds[0], seeds[-1] + 1))
    return f"{measures} seeds {f'{seeds[0]}-{seeds[-1]}' if in_a_row else ', '.join(map(str, seeds))}"


def label_in_search(specs: "Sequence[Spec]") -> str:
    """Return a name for runs that may differ in strength alone, such as ``SI seed 1000 re-init, c = 0.1 … 5``."""
    relative = specs[0].relative_strength is not None
    strengths = list(dict.fromkeys(f"{spec.relative_strength if relative else spec.strength:g}" for spec in specs))
    shown = strengths[0] if len(strengths) == 1 else f"{strengths[0]} … {strengths[-1]}"
    reinit = " re-init" if specs[0].settings.reinitialise else ""
    return f"{label_of_group(specs)}{reinit}, {'s' if relative else 'c'} = {shown}"


def held(seen: "Sequence[Seen]") -> str:
    """Return how runs are held at the moment, and what the one that has lost most has lost; nothing if that is known.

    >>> held([Seen(3.2, {"task 1": 0.031}, 0.05)])
    '0.031 of 0.05 nats lost, c = 3.2'
    """
    parts = []
    lost = [each for each in seen if each.worst is not None]
    if lost:
        worst = max(lost, key=lambda each: each.worst or 0.0)
        of = "" if worst.tolerance is None else f" of {worst.tolerance:g}"
        parts.append(f"{worst.worst:.2g}{of} nats lost")
    strengths = sorted({each.strength for each in seen if each.strength})
    if strengths:
        parts.append(f"c = {' … '.join(f'{c:.3g}' for c in dict.fromkeys((strengths[0], strengths[-1])))}")
    return ", ".join(parts)


def percent(share: float) -> str:
    """Return a share as a person reads it; one that is not defined, such as what a single task forgets, is a dash."""
    return "-" if math.isnan(share) else f"{100 * share:.1f} %"


def shown_value(value: Any) -> str:
    """Return a field's value as a person reads it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value == "":
        return "-"
    return f"{value:g}" if isinstance(value, float) else str(value)


def accuracy_so_far(outcomes: "Sequence[Outcome]") -> float | None:
    """Return the mean accuracy over the tasks learned so far, and over runs; ``None`` before the first."""
    from anchorhold_lab.training.metrics import average_accuracies  # noqa: PLC0415 (it takes torch, and labels do not)

    means = [average_accuracies(outcome.matrix)[-1] for outcome in outcomes if outcome.matrix]
    return statistics.mean(means) if means else None


def duration(seconds: float) -> str:
    """Return a time as a person reads it: ``8.1 s``, ``3:07`` or ``1:02:45``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def moment(text: str) -> str:
    """Return a time in ISO 8601 to the second, in UTC."""
    return datetime.fromisoformat(text).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
