"""Adapters, and what each kind of them adds to a layer's weight: each kind is one file."""

from collections.abc import Callable
from typing import TypeVar

from anchorhold.adapters.base import Adapter
from anchorhold.adapters.changes import (
    Change,
    Product,
    added,
    difference,
    in_parts,
    mapped,
    of_parts,
    size_of,
    whole,
)
from anchorhold.adapters.delta_weight import DeltaWeight
from anchorhold.adapters.dora import Dora
from anchorhold.adapters.finding import (
    ADAPTERS,
    WORKING,
    every_adapter,
    find_adapters,
    has_adapters,
    refuse_merged_adapters,
    trained_layers,
)
from anchorhold.adapters.lora import Lora
from anchorhold.adapters.mean_change import Term
from anchorhold.adapters.twins import TWIN, beside, twin_of
from anchorhold.registry import registering_class

A = TypeVar("A", bound=Adapter)


def register_adapter(name: str) -> Callable[[type[A]], type[A]]:
    """Let a kind of adapter of one's own be held as what it adds to a weight, with ``space="merged"``."""
    return registering_class(ADAPTERS, Adapter, name)


register_adapter("lora")(Lora)
register_adapter("dora")(Dora)
register_adapter("delta-weight")(DeltaWeight)

__all__ = [
    "ADAPTERS",
    "TWIN",
    "WORKING",
    "Adapter",
    "Change",
    "DeltaWeight",
    "Dora",
    "Lora",
    "Product",
    "Term",
    "added",
    "beside",
    "difference",
    "every_adapter",
    "find_adapters",
    "has_adapters",
    "in_parts",
    "mapped",
    "of_parts",
    "refuse_merged_adapters",
    "register_adapter",
    "size_of",
    "trained_layers",
    "twin_of",
    "whole",
]
