r"""How strongly the guard's own hold pulls: one c for all, one for each pattern of names, or an exchange rate.

Where Q is the Fisher information of a sample, KL(p_old‖p_new) of a sample is ½⟨D, Q(D)⟩ to second order. With T scored
tokens in a sample (1 for a classifier), an *exchange rate* κ makes :math:`c = \kappa/(2T)`, and the objective the new
loss plus κ times the nats that are lost of an old token.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from torch import Tensor

from anchorhold.errors import ConfigurationError
from anchorhold.forms import Matrix
from anchorhold.settings import first_match, number, numbers_by_pattern
from anchorhold.tensors.sharding import whole_sums

USUAL = 1.0
"""c where nobody has said any, of a measure that no exchange rate is known of; a warning says so."""
USUAL_RATE = 1.0
"""κ where nobody has said how strongly, of a measure of data that is in nats."""
LEAST_RATE = 1e-38
"""The least exchange rate: half of it, for thousands of tokens, is no 0 yet."""
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


def checked_exchange_rate(value: object) -> float:
    """Return the exchange rate κ, or say what was expected."""
    expected = (
        f"one number from {LEAST_RATE:g} to {LARGEST:g}, the nats of new loss that a nat lost of an old token may cost "
        "(1 to begin with; to observe and hold nothing, give strength=0)"
    )
    return float(number("exchange_rate", value, expected, lambda rate: LEAST_RATE <= rate <= LARGEST))


def strength_of_rate(rate: float, tokens: float) -> float:
    """Return c = κ/(2T)."""
    return rate / (2 * tokens)


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

    def strength(self, share: float) -> float:
        """Return c = s·p/trace, whose c·Ω is s on average; 0 where there is no importance."""
        return share * self.weights / self.trace if self.trace > 0 else 0.0
