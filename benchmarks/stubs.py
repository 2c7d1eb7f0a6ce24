"""Standing in for packages that another one imports but does not need for what is measured here."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Anything(type):
    """The type of classes that can be inherited from, called, and asked for any name."""

    def __getattr__(cls, name: str) -> type:
        return _made(cls, name)


class _Stub(ModuleType):
    """A module in which every name is an empty class, made when it is first asked for."""

    def __getattr__(self, name: str) -> type:
        return _made(self, name)


def _made(where: object, name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    made = _Anything(name, (), {"__init__": lambda *_, **__: None})
    setattr(where, name, made)
    return made


class _Finder(MetaPathFinder, Loader):
    """Finds the packages named, and whatever is imported from below them."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        self.packages = packages

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        found = any(fullname == package or fullname.startswith(f"{package}.") for package in self.packages)
        return ModuleSpec(fullname, self, is_package=True) if found else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Stub(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


@contextmanager
def stubbed(*packages: str) -> Iterator[None]:
    """Stand in for ``packages`` while the block runs; afterwards they can be imported as they are."""
    finder = _Finder(packages)
    sys.meta_path.insert(0, finder)
    before = set(sys.modules)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in set(sys.modules) - before:
            if isinstance(sys.modules[name], _Stub):
                del sys.modules[name]
