"""One method of one library, and how it is held against its definition."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from benchmarks.audit.comparison import Importance
from benchmarks.audit.problem import Problem


@dataclass(frozen=True)
class Found:
    """What a library computed."""

    importance: Importance
    along_path: Mapping[str, Importance] = field(default_factory=dict)
    """Definitions that were followed while the library trained, and the formula that is to explain its result."""


Measure = Callable[[Problem, int], Found]
"""Has a library measure at a batch size."""


@dataclass(frozen=True)
class Case:
    """One method of one library.

    Args:
        method: its name in the table.
        against: the definitions it is compared with.
        measure: has the library measure at a batch size.
        why: what its code does, one sentence.
        explained: the formula that ``why`` describes, which has to give the library's numbers; where the library
            trains, the formula follows the path instead and is found under "explained".
        drawn: whether labels are drawn at random, so that no formula can give the same numbers.
        batches: the only batch sizes it is run at, where others would take too long.
    """

    method: str
    against: tuple[str, ...]
    measure: Measure
    why: str
    explained: Callable[[Problem, int], Importance] | None = None
    drawn: bool = False
    batches: tuple[int, ...] | None = None
