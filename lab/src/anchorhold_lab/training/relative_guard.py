r"""A guard whose strength is found from its first importance, as version 0.1.0 had it and published runs have it.

:math:`c = s\,p/\operatorname{tr} Q` over the p weights and the Q of the first consolidation, so that the mean curvature
of the hold is 2s. What s is best carries over to no other form or size (``studies/relative_strength``), so the library
has an exchange rate instead.
"""

from typing import Any

from torch import nn

from anchorhold.errors import ConfigurationError
from anchorhold.guard import Guard
from anchorhold.guard.arguments.strengths import LARGEST, total_trace
from anchorhold.guard.ledger import TaskImportance
from anchorhold.measures import FineTune, Measure
from anchorhold.settings import number


def checked_relative_strength(value: object) -> float:
    """Return the relative strength s, or say what was expected."""
    expected = "a number above 0, up to 1e38 (1 makes 2 of the penalty's mean curvature)"
    return float(number("relative_strength", value, expected, lambda s: 0 < s <= LARGEST))


class RelativeGuard(Guard):
    """A guard that holds nothing before its first consolidation, and by c = s·p/tr Q from then on.

    Args:
        model: the network.
        measure: how importance is measured.
        relative_strength: s.
        options: the guard's other arguments.
    """

    def __init__(self, model: nn.Module, measure: Measure | str, *, relative_strength: float, **options: Any) -> None:
        self.relative_strength = checked_relative_strength(relative_strength)
        super().__init__(model, measure, strength=0.0, **options)
        driving = next(iter(self.measures.values()))
        if isinstance(driving, FineTune) or self.options.batch_norm == "fold":
            why = "finds no importance" if isinstance(driving, FineTune) else "folds weights into others"
            raise ConfigurationError(
                f"relative_strength={relative_strength:g} with a guard that {why}, to which it would be relative. Give "
                "a strength."
            )

    def consolidate(self, *given: Any, **options: Any) -> dict[str, TaskImportance]:
        """End a task, and find the strength after the first one."""
        found = super().consolidate(*given, **options)
        if not self.strength:
            weights = sum(omega.numel() for omega in self.importance.values())
            trace = total_trace(self.held.matrices) * (1 + self.options.form.penalty_damping)
            self.strength = self.relative_strength * weights / trace if trace > 0 else 0.0
        return found
