"""Packages whose names are loaded once they are asked for: a list of runs needs no torch, which takes seconds."""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def on_demand(package: str, places: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return a package's ``__getattr__``.

    Args:
        package: its name.
        places: the modules in it that have its public names, each with those.
    """
    modules = {name: f"{package}.{module}" for module, names in places.items() for name in names}

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(modules[name]), name)
        setattr(sys.modules[package], name, found)
        return found

    return load
