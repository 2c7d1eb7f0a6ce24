"""Each public method and property has a docstring where it is defined first; an override may leave it to the base's."""

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


def first_definitions(modules: Iterable[ModuleType]) -> dict[str, FunctionType]:
    """Return the public methods and properties that no base class defines, by their full names."""
    found = {}
    for module in modules:
        for owner in vars(module).values():
            if not inspect.isclass(owner) or owner.__module__ != module.__name__:
                continue
            for name, member in vars(owner).items():
                function = function_of(member)
                # What a dataclass or a named tuple writes itself is code of no file of the library.
                if name.startswith("_") or function is None or function.__module__ != module.__name__:
                    continue
                if not any(name in vars(base) for base in owner.__mro__[1:]):
                    found[f"{module.__name__}.{owner.__qualname__}.{name}"] = function
    return found


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
def defined():
    return first_definitions(library_modules())


def test_methods_and_properties_have_docstrings_where_they_are_defined_first(defined):
    assert len(defined) > 500
    assert [name for name, function in defined.items() if not function.__doc__] == []


def test_a_missing_docstring_is_found_and_an_override_needs_none():
    made = ModuleType("made")
    source = '''
from functools import cached_property

class Base:
    def named(self):
        """Return a name."""
    def bare(self): ...
    @property
    def read(self): ...
    @cached_property
    def kept(self): ...
    @classmethod
    def make(cls): ...
    def _hidden(self): ...

class Derived(Base):
    def named(self): ...
    def new(self): ...
'''
    exec(source, vars(made))
    found = first_definitions([made])
    missing = [name.removeprefix("made.") for name, function in found.items() if not function.__doc__]
    assert missing == ["Base.bare", "Base.read", "Base.kept", "Base.make", "Derived.new"]
    assert "made.Base.named" in found and "made.Derived.named" not in found
