"""Forms: the coordinates in which importance is kept, and how it is applied. Each form is one file."""

from collections.abc import Callable
from typing import Any, TypeVar

from anchorhold.engine.reductions import Block
from anchorhold.errors import ConfigurationError
from anchorhold.forms.base import Cost, Form, Matrix
from anchorhold.forms.dense import Dense, DenseMatrix
from anchorhold.forms.diagonal import Diagonal, DiagonalMatrix
from anchorhold.forms.kronecker import Kronecker, Kronecker16, KroneckerMatrix
from anchorhold.forms.lowrank import LowRank, LowRankMatrix
from anchorhold.forms.rotated import Rotated, Rotated16, RotatedMatrix
from anchorhold.forms.sums import SumMatrix
from anchorhold.registry import Registry, registering_class

F = TypeVar("F", bound=Form)

FORMS: Registry[Callable[..., Form]] = Registry("form")
"""The class of each form, by name."""


def register_form(name: str) -> Callable[[type[F]], type[F]]:
    """Register a form under a name, by which a guard, a spec and a saved file find it."""
    return registering_class(FORMS, Form, name)


register_form("diagonal")(Diagonal)
register_form("rotated")(Rotated)
register_form("rotated16")(Rotated16)
register_form("kronecker")(Kronecker)
register_form("kronecker16")(Kronecker16)
register_form("lowrank")(LowRank)
register_form("dense")(Dense)


def form(name: str, **settings: Any) -> Form:
    """Return a form by its name, with its settings.

    Raise a :class:`~anchorhold.errors.ConfigurationError` if there is no such form or setting.
    """
    try:
        return FORMS[name](**settings)
    except TypeError as error:
        raise ConfigurationError(f"The form {name!r}: {error}.") from error


__all__ = [
    "FORMS",
    "Block",
    "Cost",
    "Dense",
    "DenseMatrix",
    "Diagonal",
    "DiagonalMatrix",
    "Form",
    "Kronecker",
    "Kronecker16",
    "KroneckerMatrix",
    "LowRank",
    "LowRankMatrix",
    "Matrix",
    "Rotated",
    "Rotated16",
    "RotatedMatrix",
    "SumMatrix",
    "form",
    "register_form",
]
