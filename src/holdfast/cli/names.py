"""Names as people type them."""

import difflib
from collections.abc import Iterable

from holdfast.errors import ConfigurationError


def find_name(what: str, given: str, names: Iterable[str]) -> str:
    """Return the name that is meant, whatever its capitals and hyphens, or say which one may have been."""
    known = {_simplified(name): name for name in names}
    found = known.get(_simplified(given))
    if found is not None:
        return found
    near = difflib.get_close_matches(_simplified(given), known, n=1)
    guess = f" Did you mean {known[near[0]]!r}?" if near else ""
    raise ConfigurationError(f"No {what} is called {given!r}.{guess} There are {', '.join(known.values())}.")


def _simplified(name: str) -> str:
    return name.casefold().replace("-", "").replace("_", "")
