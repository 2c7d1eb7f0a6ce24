"""Choosing the parameters to protect: by glob pattern, by predicate, or by naming the parameters themselves."""

import difflib
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

from torch import nn

from anchorhold.adapters import has_adapters
from anchorhold.errors import ProtectError
from anchorhold.tensors.names import named_parameters

Protect = str | Iterable[str] | Callable[[str, nn.Parameter], bool] | Iterable[nn.Parameter] | None
"""What may be given as ``protect``; ``None`` stands for every trainable parameter."""

_FROZEN_ADAPTERS = (
    "It has adapters, all of them frozen, as PEFT loads them unless it is told otherwise: give is_trainable=True, as "
    "in PeftModel.from_pretrained(base, folder, is_trainable=True)."
)


class Selection:
    """A choice of parameters that can be made again when the model has changed."""

    def __init__(self, protect: Protect) -> None:
        self.predicate: Callable[[str, nn.Parameter], bool] | None = None
        self.patterns: list[str] = []
        self.chosen: list[nn.Parameter] = []
        if protect is None:
            self.predicate = _is_trainable
        elif isinstance(protect, str):
            self.patterns = [protect]
        elif isinstance(protect, nn.Parameter):
            self.chosen = [protect]
        elif isinstance(protect, nn.Module):
            raise ProtectError(
                f"protect is a module, a {type(protect).__name__}; expected glob patterns, a predicate or parameters. "
                "Give its parameters: protect=module.parameters()."
            )
        elif callable(protect):
            self.predicate = protect
        else:
            items = list(protect)
            for item in items:
                if isinstance(item, str):
                    self.patterns.append(item)
                elif isinstance(item, nn.Parameter):
                    self.chosen.append(item)
                else:
                    raise ProtectError(
                        f"protect holds a {type(item).__name__}; expected glob patterns or parameters of the model."
                    )
            if not items:
                raise ProtectError("protect is an empty list; give None for every trainable parameter, or name some.")
        self.default = protect is None

    def find(self, model: nn.Module, *, some: bool = True) -> dict[str, nn.Parameter]:
        """Return the chosen parameters by name, a tied one under its first name; there have to be ``some``, or not."""
        every = named_parameters(model, remove_duplicate=False)
        first_name: dict[int, str] = {}
        for name, parameter in every:
            first_name.setdefault(id(parameter), name)
        unmatched = set(self.patterns)
        found: set[int] = set()
        for name, parameter in every:
            matching = {pattern for pattern in self.patterns if fnmatchcase(name, pattern)}
            unmatched -= matching
            if matching or (self.predicate is not None and self.predicate(name, parameter)):
                found.add(id(parameter))
        if unmatched:
            pattern = min(unmatched)
            hint = close_to(pattern, [name for name, _ in every])
            raise ProtectError(f"protect={pattern!r} matches no parameter of the model. {hint}")
        strangers = [parameter for parameter in self.chosen if id(parameter) not in first_name]
        if strangers:
            raise ProtectError(
                f"A parameter of shape {tuple(strangers[0].shape)} given as protect is not one of the model's. Give "
                "parameters of the model that the Guard was made for, or their names."
            )
        found |= {id(parameter) for parameter in self.chosen}
        selected = {first_name[id(p)]: p for _, p in every if id(p) in found}
        if some and not selected:
            what = "is trainable" if self.default else "was selected by protect"
            names = (
                f"Its parameters are {_listing(list(first_name.values()))}." if first_name else "It has none at all."
            )
            frozen = _FROZEN_ADAPTERS if self.default and has_adapters(model, first_name) else names
            raise ProtectError(
                f"No parameter of the model {what}; expected at least one of {len(first_name)}. {frozen}"
            )
        for name, parameter in selected.items():
            if not parameter.is_floating_point():
                raise ProtectError(
                    f"{name!r} has type {parameter.dtype}; only real floating-point parameters can be held. Leave it "
                    "out of protect."
                )
        return selected

    def may_cover(self, buffer: str) -> bool:
        """Whether a buffer lies among what is protected, as far as patterns say."""
        return not self.patterns or any(fnmatchcase(buffer, pattern) for pattern in self.patterns)


def close_to(pattern: str, names: list[str]) -> str:
    """Return what a pattern that matches none of these names may have been meant for."""
    close = difflib.get_close_matches(pattern, names, n=3, cutoff=0.4)
    module, anywhere = f"{pattern}.*", f"*{pattern.strip('*')}*"
    if any(fnmatchcase(name, module) for name in names):
        return f"Did you mean {module!r}, all parameters of that module?"
    if matching := [name for name in names if fnmatchcase(name, anywhere)]:
        return f"A pattern has to match the whole name. Did you mean {anywhere!r}, which matches {_listing(matching)}?"
    parts = sorted({part for name in names for part in name.split(".")})
    if not close and (alike := difflib.get_close_matches(pattern.strip("*."), parts, n=1)):
        return f"Did you mean '*{alike[0]}*', which is part of some names?"
    return f"Did you mean {_listing(close)}?" if close else f"The parameters are {_listing(names)}."


def _is_trainable(_: str, parameter: nn.Parameter) -> bool:
    return parameter.requires_grad


def _listing(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:8])
    return shown + (f" and {len(names) - 8} more" if len(names) > 8 else "")
