"""Names that things are asked for by, and how others add their own.

Each kind of thing that can be named (measures, forms, holds, scenarios, networks) has a :class:`Registry`. A name that
is registered works wherever names do: in a :class:`~anchorhold.Guard`, a spec, the command line and saved files.

What a file registers while it is :func:`loading` is kept apart, under the file's digest: a program may load one file
after another, or two versions of one, and a run that was made from a file finds the names of just that one
(:func:`names_of`).
"""

import contextlib
import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from anchorhold.errors import ConfigurationError, shortened

T = TypeVar("T")
K = TypeVar("K", bound=type)
Given = TypeVar("Given")

_WORDS = re.compile(r"[\W_]+")
_OWN = ("measure", "form", "hold", "network", "scenario")
"""The kinds that a file can register."""

_Names = dict[str, dict[str, Any]]
"""What one file has registered, by kind and by name."""

_FILES: dict[str, _Names] = {}
"""The names of every file that was loaded, by its digest; where two have a name, the file that comes last is meant."""


@dataclass
class _View:
    """Which names are seen."""

    file: str | None
    used: set[str] = field(default_factory=set)
    """The files whose names were asked for."""


_LOADING: ContextVar[tuple[str, _Names] | None] = ContextVar("loading", default=None)
_VIEW: ContextVar[_View | None] = ContextVar("view", default=None)


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
        seen = self._seen()
        same = self._same(name)
        if same is not None and not _is_again(seen[same][0], thing):
            raise ConfigurationError(f"A {self.kind} is called {same!r} already; expected another name than {name!r}.")

    def register(self, name: str, thing: T) -> None:
        """Enter a thing; registering another under the same name is refused, and the same one again changes nothing."""
        self.check(name, thing)
        loading = _LOADING.get()
        own = self._known if loading is None else loading[1].setdefault(self.kind, {})
        own[self._same(name) or name] = thing

    def _same(self, name: str) -> str | None:
        return next((known for known in self._seen() if simplified(known) == simplified(name)), None)

    def find(self, name: str) -> str:
        """Return the name that is meant, whatever its capitals and hyphens, or say which ones are near it."""
        return self._meant(name, self._seen())

    def __getitem__(self, name: str) -> T:
        seen = self._seen()
        thing, file = seen[self._meant(name, seen)]
        view = _VIEW.get()
        if view is not None and file is not None:
            view.used.add(file)
        return thing

    def __contains__(self, name: object) -> bool:
        return name in self._seen()

    def __iter__(self) -> Iterator[str]:
        return iter(self._seen())

    def __len__(self) -> int:
        return len(self._seen())

    def _meant(self, name: str, seen: Mapping[str, object]) -> str:
        exact = isinstance(name, str) and name in seen  # which is by far the most frequent
        return name if exact else find_name(self.kind, name, seen)

    def _seen(self) -> dict[str, tuple[T, str | None]]:
        """Return what can be named here and now, each with the file that it comes from."""
        seen: dict[str, tuple[T, str | None]] = {name: (thing, None) for name, thing in self._known.items()}
        loading, view = _LOADING.get(), _VIEW.get()
        files: Iterable[tuple[str, _Names]] = _FILES.items()
        if loading is not None:
            files = [loading]
        elif view is not None and view.file is not None:
            files = [(view.file, _FILES.get(view.file, {}))]
        for file, names in files:
            seen |= {name: (thing, file) for name, thing in names.get(self.kind, {}).items()}
        return seen


@contextlib.contextmanager
def loading(file: str) -> Iterator[Mapping[str, Mapping[str, object]]]:
    """Let what is registered be a file's own, and give it by kind and name: all of it, or nothing where this raises.

    Args:
        file: the digest of its content.
    """
    names: _Names = {}
    token = _LOADING.set((file, names))
    try:
        yield names
    finally:
        _LOADING.reset(token)
    _FILES.pop(file, None)
    _FILES[file] = names


def loaded_again(file: str) -> None:
    """Let a file that was loaded before be the one whose names are meant."""
    _FILES[file] = _FILES.pop(file)


def is_loaded(file: str) -> bool:
    """Whether what a file registers is known."""
    return file in _FILES


def names_in(file: str) -> dict[str, list[str]]:
    """Return the names that a file has registered, by kind."""
    return {kind: list(names) for kind, names in _FILES[file].items()}


@contextlib.contextmanager
def names_of(file: str | None) -> Iterator[set[str]]:
    """Let names mean what they do for one file, and give the files whose names were asked for.

    Within it, no other file's names are seen; nor are its own, if it was not loaded. Without a file, all are seen.
    """
    view = _View(file)
    token = _VIEW.set(view)
    try:
        yield view.used
    finally:
        _VIEW.reset(token)


def registering(registry: Registry[T], name: str, wrap: Callable[[Given], T]) -> Callable[[Given], Given]:
    """Return a decorator that enters what it is given, wrapped, and gives it back as it was."""

    def enter(thing: Given) -> Given:
        registry.register(name, wrap(thing))
        return thing

    return enter


def require_name(decorator: str, name: object) -> None:
    """Refuse a decorator without its parentheses, which gets the class in place of a name and would swallow it."""
    if not isinstance(name, str):
        given = getattr(name, "__name__", type(name).__name__)
        raise ConfigurationError(
            f'{decorator} was given {given}; expected a name first: @{decorator}("my-{given.lower()}").'
        )


def registering_class(registry: Registry[Any], base: type, name: str) -> Callable[[K], K]:
    """Return a decorator that enters a class derived from a base, and calls it by the name that it is entered by."""
    require_name(f"register_{registry.kind}", name)

    def enter(kind: K) -> K:
        if not (isinstance(kind, type) and issubclass(kind, base)):
            raise ConfigurationError(
                f"register_{registry.kind}({name!r}) was given {kind!r}; expected a class of {registry.kind}s."
            )
        registry.register(name, kind)
        kind.name = name  # type: ignore[attr-defined]
        return kind

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
    near = [name for name in names if name.casefold() in _WORDS.split(given.casefold())] or near
    guess = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    there = f"There are {', '.join(names)}" if names else "None is registered"
    own = " One of your own is known once its file is loaded: import it, or --with FILE on the command line."
    raise ConfigurationError(f"No {kind} is called {shortened(given)}.{guess} {there}.{own * (kind in _OWN)}")


def simplified(name: str) -> str:
    """Return what is left of a name when capitals and hyphens do not count."""
    return name.casefold().replace("-", "").replace("_", "")


def _is_again(known: object, given: object) -> bool:
    """Whether a thing is the one that is known: the same, or of the same place, as when a file is run again."""
    if known is given:
        return True
    wrapped = [getattr(x, "__wrapped__", x) for x in (known, given)]
    place = [(getattr(x, "__module__", None), getattr(x, "__qualname__", None)) for x in wrapped]
    return place[0] == place[1] and None not in place[0]
