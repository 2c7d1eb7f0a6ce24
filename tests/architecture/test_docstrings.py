"""Each public method and property has a docstring, or overrides one that has: an override may leave it to the base."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Iterator
from functools import cached_property
from types import FunctionType, ModuleType

import pytest

import anchorhold


def library_modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(anchorhold.__path__, "anchorhold."):
        if not found.name.endswith("__main__"):  # it runs the command line
            yield importlib.import_module(found.name)


def documented(modules: Iterable[ModuleType]) -> dict[str, bool]:
    """Return whether each public method and property of a public class has a docstring, its own or its base's."""
    found = {}
    for module in modules:
        for owner in vars(module).values():
            if not inspect.isclass(owner) or owner.__module__ != module.__name__ or owner.__name__.startswith("_"):
                continue
            for name, member in vars(owner).items():
                function = function_of(member)
                # A field's default is no method, and what a named tuple writes itself is of no file of the library.
                ours = function is not None and function.__module__ == module.__name__
                if not name.startswith("_") and ours and function.__name__ != "<lambda>":
                    kept = [vars(kind)[name] for kind in owner.__mro__ if name in vars(kind)]
                    found[f"{module.__name__}.{owner.__qualname__}.{name}"] = any(map(has_docstring, kept))
    return found


def has_docstring(member: object) -> bool:
    """Return whether a class documents a member; of a plain attribute that stands below it, for ruff to see to."""
    function = function_of(member)
    return function is None or bool(function.__doc__)


def function_of(member: object) -> FunctionType | None:
    """Return the function behind a method or a property."""
    if isinstance(member, property):
        member = member.fget
    elif isinstance(member, cached_property):
        member = member.func
    elif isinstance(member, classmethod | staticmethod):
        member = member.__func__
    member = inspect.unwrap(member) if callable(member) else member
    return member if isinstance(member, FunctionType) else None


@pytest.fixture(scope="module")
def library():
    return documented(library_modules())


def test_methods_and_properties_have_docstrings_or_override_one_that_has(library):
    assert len(library) > 1000
    assert [name for name, has_one in library.items() if not has_one] == []


def test_a_missing_docstring_is_found_and_an_override_needs_none():
    made = ModuleType("made")
    source = '''
from functools import cached_property

class _Private:
    def inherited(self): ...

class Base(_Private):
    limit = 3
    def named(self):
        """Return a name."""
    def bare(self): ...
    @property
    def read(self): ...
    @cached_property
    def kept(self): ...
    @classmethod
    def make(cls): ...
    def inherited(self): ...
    def _hidden(self): ...

class Derived(Base):
    def named(self): ...
    @property
    def limit(self): ...
    def bare(self): ...
    def new(self): ...
'''
    exec(source, vars(made))
    found = documented([made])
    missing = [name.removeprefix("made.") for name, has_one in found.items() if not has_one]
    assert missing == [
        *(f"Base.{name}" for name in ("bare", "read", "kept", "make", "inherited")),
        "Derived.bare",
        "Derived.new",
    ]
    assert found["made.Derived.named"] and found["made.Derived.limit"]
