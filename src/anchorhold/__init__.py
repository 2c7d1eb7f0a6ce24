"""Keeps neural networks from forgetting: importance-based regularisation for PyTorch.

>>> guard = anchorhold.Guard(model, anchorhold.SOS(), strength=500.0)
>>> guard.attach(optimizer)          # every optimizer.step() is now observed, and held back where it matters
>>> guard.consolidate(batches)       # at the end of each task
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anchorhold.public import *  # noqa: F403

__version__ = "0.1.0"


class _Package(ModuleType):
    """The package, whose names are loaded with the first that is asked for.

    With them comes torch, which takes seconds: a command line's help does without.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__all__":  # tools ask every module for such names
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        public = importlib.import_module("anchorhold.public")
        if name == "__all__":
            return public.__all__
        vars(self).update({each: getattr(public, each) for each in public.__all__ if each != "measures"})
        try:
            return vars(self)[name]
        except KeyError:
            named = self.measures().get(name)  # names of the literature, which are given as texts
            why = "" if named is None else f": it is a name, Guard(model, {name!r}), of a {type(named).__name__}"
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{why}") from None

    def __dir__(self) -> list[str]:
        # Not what this file imports: what somebody looks for is here, and folders that were loaded.
        loaded = (name for name in vars(self) if name.startswith("__") or f"{__name__}.{name}" in sys.modules)
        return sorted({*loaded, *self.__all__})

    @property
    def measures(self) -> Any:
        """The function, not the package of that name, which importing would put here in its place."""
        from anchorhold.measures import measures  # noqa: PLC0415

        return measures

    @measures.setter
    def measures(self, package: ModuleType) -> None:
        pass


sys.modules[__name__].__class__ = _Package
