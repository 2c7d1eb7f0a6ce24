"""What runs are called where a person reads it."""

import statistics
from collections.abc import Sequence

from holdfast.experiments import Spec
from holdfast.training.metrics import average_accuracies
from holdfast.training.progress import Outcome


def label_of(spec: Spec) -> str:
    """Return a run's name, such as ``SI seed 3``."""
    return f"{spec.measure} seed {spec.seed}"


def label_of_group(specs: Sequence[Spec]) -> str:
    """Return a name for runs that train together, such as ``SI, SOS seeds 0-2``."""
    if len(specs) == 1:
        return label_of(specs[0])
    measures = ", ".join(dict.fromkeys(spec.measure for spec in specs))
    seeds = sorted({spec.seed for spec in specs})
    if len(seeds) == 1:
        return f"{measures} seed {seeds[0]}"
    in_a_row = seeds == list(range(seeds[0], seeds[-1] + 1))
    return f"{measures} seeds {f'{seeds[0]}-{seeds[-1]}' if in_a_row else ', '.join(map(str, seeds))}"


def percent(share: float) -> str:
    """Return a share as a person reads it."""
    return f"{100 * share:.1f} %"


def accuracy_so_far(outcomes: Sequence[Outcome]) -> float | None:
    """Return the mean accuracy over the tasks learned so far, and over runs; ``None`` before the first."""
    means = [average_accuracies(outcome.matrix)[-1] for outcome in outcomes if outcome.matrix]
    return statistics.mean(means) if means else None


def duration(seconds: float) -> str:
    """Return a time as a person reads it: ``8.1 s``, ``3:07`` or ``1:02:45``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
