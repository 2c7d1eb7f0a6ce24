"""Names that things are asked for by, and how others add their own.

Each kind of thing that can be named (measures, forms, holds, scenarios, networks) has a :class:`Registry`. A name that
is registered works wherever names do: in a :class:`~holdfast.Consolidator`, a spec, the command line and saved files.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from holdfast.errors import ConfigurationError

T = TypeVar("T")
Given = TypeVar("Given")


class Registry(Mapping[str, T], Generic[T]):
    """Things of one kind by name.

    Args:
        kind: what they are, in a word, for messages.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._known: dict[str, T] = {}

    def check(self, name: str, thing: T) -> None:
        """Refuse a name that is none, or that another thing has."""
        if not isinstance(name, str) or not name or set(name) & set("/: ") or name != name.strip():
            raise ConfigurationError(
                f"The name {name!r} for a {self.kind}; expected a text without spaces, '/' or ':', such as "
                f"'my-{self.kind}'."
            )
        same = self._same(name)
        if same is not None and not _is_again(self._known[same], thing):
            raise ConfigurationError(f"A {self.kind} is called {same!r} already; expected another name than {name!r}.")

    def register(self, name: str, thing: T) -> None:
        """Enter a thing; registering another under the same name is refused, and the same one again changes nothing."""
        self.check(name, thing)
        self._known[self._same(name) or name] = thing

    def _same(self, name: str) -> str | None:
        return next((known for known in self._known if simplified(known) == simplified(name)), None)

    def find(self, name: str) -> str:
        """Return the name that is meant, whatever its capitals and hyphens, or say which ones are near it."""
        return find_name(self.kind, name, self._known)

    def __getitem__(self, name: str) -> T:
        return self._known[self.find(name)]

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


def registering(registry: Registry[T], name: str, wrap: Callable[[Given], T]) -> Callable[[Given], Given]:
    """Return a decorator that enters what it is given, wrapped, and gives it back as it was."""

    def enter(thing: Given) -> Given:
        registry.register(name, wrap(thing))
        return thing

    return enter


def find_name(kind: str, given: str, names: Iterable[str]) -> str:
    """Return which of some names is meant, whatever its capitals and hyphens, or say which ones are near it."""
    names = list(names)
    if not isinstance(given, str):
        raise ConfigurationError(
            f"A {kind} of type {type(given).__name__}; expected the name of one of {', '.join(names)}."
        )
    known = {simplified(name): name for name in names}
    found = known.get(simplified(given))
    if found is not None:
        return found
    near = [known[name] for name in difflib.get_close_matches(simplified(given), known, n=3)]
    guess = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    raise ConfigurationError(f"No {kind} is called {given!r}.{guess} There are {', '.join(names)}.")


def simplified(name: str) -> str:
    """Return what is left of a name when capitals and hyphens do not count."""
    return name.casefold().replace("-", "").replace("_", "")


def _is_again(known: object, given: object) -> bool:
    """Whether a thing is the one that is known: the same, or of the same place, as when a file is run again."""
    if known is given:
        return True
    place = [(getattr(x, "__module__", None), getattr(x, "__qualname__", None)) for x in (known, given)]
    return place[0] == place[1] and None not in place[0]
