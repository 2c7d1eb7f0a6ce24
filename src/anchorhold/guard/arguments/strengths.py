r"""How strongly the guard's own hold pulls: one c for all, one for each pattern of names, or one that has a unit.

A *relative* strength s is c in units of the mean importance of a weight, :math:`c = s\,p/\operatorname{tr} Q` over the
p weights and the Q of the first consolidation: the mean curvature of the hold is then 2s, whatever the measure's unit.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from torch import Tensor

from anchorhold.errors import ConfigurationError, NotFiniteError
from anchorhold.forms import Matrix
from anchorhold.settings import first_match, number, numbers_by_pattern
from anchorhold.tensors.sharding import whole_sums

USUAL = 1.0
"""c where nobody has said any, which is told."""
LARGEST = 1e38
"""The penalty's gradient has a factor 2c, which has to fit into a single-precision number."""
APART = 1e12
"""How far apart strengths by pattern may be: importances are multiplied by their ratios."""


class PatternStrengths:
    """Strengths by glob patterns of parameters' names, of which the first that matches counts.

    Args:
        given: the patterns, each with its c.
    """

    def __init__(self, given: Mapping[str, float]) -> None:
        self.given = dict(given)
        self.largest = max(self.given.values())
        self._known: dict[str, float] = {}
        """Those of parameters that were asked for, since some are asked for at every step."""
        least = min((c for c in self.given.values() if c), default=self.largest)
        if least < self.largest / APART:
            raise ConfigurationError(
                f"strength={self.given} has {least:g} beside {self.largest:g}; expected strengths, but for 0, no more "
                f"than {APART:g} times apart, which importances bear in single precision."
            )

    def of(self, name: str) -> float:
        """Return the strength of a parameter, or refuse one that no pattern matches."""
        if name in self._known:
            return self._known[name]
        pattern = first_match(self.given, name)
        if pattern is None:
            raise ConfigurationError(
                f"strength={self.given} says nothing of the protected parameter {name!r}. Give one for all others, by "
                "'*', or leave it out of protect=."
            )
        self._known[name] = self.given[pattern]
        return self._known[name]

    def factor(self, parameters: Sequence[str]) -> float:
        """Return what the Q of a block is multiplied by, so that the largest strength is right for it."""
        return self.of(parameters[0]) / self.largest if self.largest else 1.0

    def times(self, strength: float) -> dict[str, float]:
        """Return the patterns with their strengths where the largest of them has come to be another."""
        if strength == self.largest:
            return dict(self.given)
        return {
            pattern: strength * (own / self.largest if self.largest else 1.0) for pattern, own in self.given.items()
        }

    def check_used(self, names: Collection[str]) -> None:
        """Refuse a pattern that matches none of the names, or that comes after one that matches all it could."""
        patterns = list(self.given)
        first = {name: first_match(patterns, name) for name in names}
        for pattern in patterns:
            matched = [name for name in names if fnmatchcase(name, pattern)]
            if not matched:
                some = ", ".join(map(repr, sorted(names)[:3]))
                raise ConfigurationError(
                    f"strength[{pattern!r}] matches no protected parameter, which are {some}"
                    f"{f' and {len(names) - 3} more' if len(names) > 3 else ''}. A pattern has to match a whole name: "
                    "correct it, or leave it out."
                )
            if pattern not in first.values():
                before = ", ".join(repr(each) for each in patterns if each in {first[name] for name in matched})
                raise ConfigurationError(
                    f"strength[{pattern!r}] comes after {before}, which matches all that it does, and the first "
                    f"pattern counts. Give {pattern!r} before it."
                )

    def check_together(self, parameters: Iterable[str], why: str) -> None:
        """Refuse parameters that are held together and have several strengths."""
        found = {name: self.of(name) for name in parameters}
        if len(set(found.values())) > 1:
            first, *others = found
            other = next(name for name in others if found[name] != found[first])
            raise ConfigurationError(
                f"strength={self.given} gives {first!r} {found[first]:g} and {other!r} {found[other]:g}, and {why}. "
                "Give both one strength, by a pattern that matches both."
            )


def checked_strength(value: object) -> float | dict[str, float]:
    """Return the strength c, or those by patterns, or say what was expected."""
    expected = (
        "a number from 0 (observing, holding nothing) to 1e38, or such numbers by patterns of parameters' names, such "
        "as {'body.*': 5.0, '*': 1.0}"
    )
    return numbers_by_pattern("strength", value, expected, lambda c: 0 <= c <= LARGEST)


def checked_relative_strength(value: object) -> float:
    """Return the relative strength s, or say what was expected."""
    expected = "a number above 0, up to 1e38 (1 makes 2 of the penalty's mean curvature)"
    return float(number("relative_strength", value, expected, lambda s: 0 < s <= LARGEST))


def total_trace(matrices: Mapping[str, Matrix]) -> float:
    """Return the sum of all eigenvalues, to the last bit the same in whatever order a state was read."""
    return math.fsum(map(float, whole_sums([matrices[name].trace() for name in sorted(matrices)])))


class Importance(NamedTuple):
    """How much importance there is, and of how many weights."""

    weights: int
    """p."""
    trace: float

    @classmethod
    def of(
        cls, matrices: Mapping[str, Matrix], parameters: Mapping[str, Tensor], silent: Collection[str] = ()
    ) -> "Importance":
        """Return that of all blocks together. Of sharded parameters, all processes have to ask.

        Args:
            matrices: Q of every block.
            parameters: the weights that they are of.
            silent: the names of parameters in whose place nothing is held.
        """
        own = {name for matrix in matrices.values() for name in matrix.block.parameters} - set(silent)
        return cls(sum(parameters[name].numel() for name in own), total_trace(matrices))

    def strength(self, relative: float) -> float:
        """Return c = s·p/trace; 0 where there is no importance to be relative to."""
        return relative * self.weights / self.trace if self.trace > 0 else 0.0


def strength_from(
    relative: float, matrices: Mapping[str, Matrix], parameters: Mapping[str, Tensor], silent: Collection[str]
) -> float:
    """Return the strength that a relative one becomes, or refuse a trace that gives none; see :class:`Importance`."""
    found = Importance.of(matrices, parameters, silent)
    c = found.strength(relative)
    if not 0 < c <= LARGEST:
        raise NotFiniteError(
            f"relative_strength={relative:g}: the importances of the {found.weights:,} protected weights add up to "
            f"{found.trace:g}, so there is no strength s·p/trace from 0 to 1e38, and nothing was consolidated. Look at "
            "what was consolidated (outputs that do not depend on the protected parameters, steps that moved nothing, "
            "overflow), or give strength= instead."
        )
    return c
