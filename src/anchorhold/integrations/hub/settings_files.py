"""What ``anchorhold.json`` says of shared importance: what a guard is made by, and marks of the model's buffers.

It is read whatever was done to it. What a weight is worth depends on buffers, such as the statistics of batch norms,
and no anchor has them: so five numbers of each go along, by which they are known again, and none of their values.
"""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from anchorhold.errors import ConfigurationError, StateError, shortened
from anchorhold.forms import Form
from anchorhold.forms import form as form_by_name
from anchorhold.measures import MEASURES, Measure
from anchorhold.tensors.sharding import local

T = TypeVar("T")

APART = 0.01
"""How far, by the length of a buffer, its numbers may be from those of then before it is taken for another."""

DIRECTIONS = 4


def read_settings(path: Path) -> dict[str, Any]:
    """Return what the file says, or why it cannot be used."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if {"measure", "form", "anchor", "decay", "parameters"} <= found.keys():
            _check(path, found)
            return dict(found)
        problem = "lacks what a guard is made by"
    except OSError as error:
        problem = f"cannot be read ({error})"
    except (UnicodeError, json.JSONDecodeError, RecursionError, AttributeError) as error:
        problem = f"is damaged ({error})"
    raise StateError(
        f"{str(path)!r} {problem}. Give a folder or repository that save_pretrained() or push_to_hub() made."
    )


def measure_of(path: Path, settings: Mapping[str, Any]) -> Measure:
    """Return the measure that has these settings, of those that are registered."""
    kinds = {type(made()).__name__: type(made()) for made in MEASURES.values()}
    values = {key: tuple(v) if isinstance(v, list) else v for key, v in settings.items() if key != "kind"}
    if settings["kind"] not in kinds:
        raise StateError(
            f"The importance was measured by {settings['kind']!r}, which is no measure here; there are "
            f"{', '.join(sorted(kinds))}. Register it first, with anchorhold.register_measure."
        )
    return _made(path, "measure", settings, lambda: kinds[settings["kind"]](**values))


def form_of(path: Path, settings: Mapping[str, Any]) -> Form:
    """Return the form that has these settings."""
    return _made(path, "form", settings, lambda: form_by_name(**settings))


def _check(path: Path, found: Mapping[str, Any]) -> None:
    """Refuse what is not laid out as save_pretrained() writes it."""
    laid_out: dict[str, tuple[str, Callable[[Any], object]]] = {
        "measure": ("settings with a 'kind'", lambda it: isinstance(it, dict) and isinstance(it.get("kind"), str)),
        "form": ("settings with a 'name'", lambda it: isinstance(it, dict) and isinstance(it.get("name"), str)),
        "parameters": ("a list of names", lambda it: isinstance(it, list) and it and {type(n) for n in it} == {str}),
    }
    for what, (expected, is_so) in laid_out.items():
        if not is_so(found[what]):
            raise StateError(
                f"{str(path)!r} is damaged: it has {what}={shortened(found[what])}; expected {expected}. Use another "
                "copy, or write it again with save_pretrained()."
            )


def _made(path: Path, what: str, settings: Mapping[str, Any], make: Callable[[], T]) -> T:
    try:
        return make()
    except (ConfigurationError, TypeError) as error:
        raise StateError(
            f"{str(path)!r} has {what}={shortened(dict(settings))}, which this anchorhold cannot make ({error}). It "
            "was damaged, and another copy is needed, or a newer anchorhold wrote it: pip install -U anchorhold."
        ) from error


# Marks of buffers


@torch.no_grad()
def buffer_marks(model: nn.Module) -> dict[str, list[float]]:
    """Return the root mean square of each buffer that a model is saved with, and how it lies to a fixed direction."""
    saved = model.state_dict().keys()
    return {
        name: _mark(b) for name, b in model.named_buffers() if name in saved and b.is_floating_point() and b.numel()
    }


def other_buffers(model: nn.Module, marks: Any) -> list[str]:
    """Return the names of buffers that are others than those that marks were taken of; a file may lack marks."""
    if not isinstance(marks, Mapping):
        return []
    here = buffer_marks(model)
    return [name for name, mark in marks.items() if name in here and not _near(here[name], mark)]


def _mark(buffer: Tensor) -> list[float]:
    values = local(buffer).cpu().double().flatten()
    places = torch.arange(1, len(values) + 1, dtype=torch.float64)
    along = [(values * (number * places).cos()).sum() for number in range(1, DIRECTIONS + 1)]
    return [float(values.norm()), *map(float, along)]


def _near(here: list[float], mark: Any) -> bool:
    if not (isinstance(mark, list) and len(mark) == len(here) and all(isinstance(each, int | float) for each in mark)):
        return True  # of another version, or damaged: nothing can be told by it
    return here == mark or math.dist(here, mark) <= APART * max(here[0], mark[0])
