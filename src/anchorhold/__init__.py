"""Keeps neural networks from forgetting: importance-based regularisation for PyTorch.

>>> guard = anchorhold.Guard(model, "EWC", form="rotated")
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

_PACKAGES = (
    "guard",
    "measures",
    "forms",
    "holds",
    "errors",
    "retention",
    "own_text",
    "merging",
    "evaluation",
    "adapters",
    "task_free",
    "variational",
    "protection",
    "spaces",
    "engine",
)
"""Where the rarer public names are, in the order in which they are looked for."""


def _load(name: str) -> ModuleType:
    return importlib.import_module(f"anchorhold.{name}")


def __getattr__(name: str) -> Any:
    """Load the public names, and torch, which takes seconds, with the first of them: a command's help does without."""
    if name.startswith("__") and name != "__all__":  # tools ask every module for such names
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _PACKAGES:
        return _load(name)
    public = _load("public")
    if name == "__all__":
        return public.__all__
    if name in public.__all__:
        globals().update({each: getattr(public, each) for each in public.__all__})
        return globals()[name]
    why = ""
    if name in _load("measures").MEASURES:  # names of the literature, which are given as texts
        why = f": it is a name, Guard(model, {name!r}), of a {type(_load('measures').measure(name)).__name__}"
    elif place := next((each for each in _PACKAGES if name in _load(each).__all__), None):
        why = f": it is anchorhold.{place}.{name}"
    if why and sys._getframe(1).f_code.co_name == "_handle_fromlist":  # noqa: SLF001
        # Python's import statement, which shows no text of an AttributeError; hasattr() and others want one.
        raise ImportError(f"cannot import name {name!r} from {__name__!r}{why}", name=name, path=__file__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{why}")


def __dir__() -> list[str]:
    # Not what this file imports: what somebody looks for is here, and packages that were loaded.
    loaded = (name for name in globals() if name.startswith("__") or f"{__name__}.{name}" in sys.modules)
    return sorted({*loaded, *__getattr__("__all__")})
