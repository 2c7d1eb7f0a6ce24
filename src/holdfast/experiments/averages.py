"""What several runs say together."""

import math
import statistics
from collections.abc import Sequence


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of a mean; it takes two values or more."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
