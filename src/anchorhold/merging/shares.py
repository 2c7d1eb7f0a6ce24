"""How much of each model there is to be in the result."""

from collections.abc import Sequence

from anchorhold.errors import ConfigurationError
from anchorhold.settings import checked_share

Share = float | Sequence[float]
"""That of ``after``; of several models after, one for each. What is left to 1 is that of ``before``."""


EXPECTED = "a number from 0, which is before alone, to 1, after alone"
"""What a share is, for whoever gives another thing."""


def all_shares(given: Share, models_after: int) -> list[float]:
    """Return the shares of all models, that of the first one first; they add up to 1."""
    several = isinstance(given, Sequence) and not isinstance(given, str)
    if several and len(given) != models_after:  # type: ignore[arg-type]
        raise ConfigurationError(
            f"share={list(given)!r}: expected one for each of the {models_after} models after."  # type: ignore[arg-type]
        )
    if not several and models_after != 1:
        raise ConfigurationError(
            f"share={given!r} with {models_after} models after; expected one for each of them, such as "
            f"{[round(1 / (models_after + 1), 2)] * models_after}."
        )
    own = [checked_share("share", each, EXPECTED) for each in (given if several else [given])]  # type: ignore[union-attr]
    rest = 1 - sum(own)
    if rest < -1e-9:
        raise ConfigurationError(
            f"share={given!r} is {sum(own):g} in all; expected 1 at most, of which before has the rest."
        )
    return [max(0.0, rest) if rest > 1e-12 else 0.0, *own]
