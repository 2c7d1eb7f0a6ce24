"""One way to write a value, so that equal values have equal hashes, in every process and every version of Python."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any


class FrozenDict(Mapping[str, Any]):
    """A mapping that cannot change, and so can be part of something that is hashed."""

    def __init__(self, items: Mapping[str, Any]) -> None:
        self._items = {key: items[key] for key in sorted(items)}

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(tuple(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)


def frozen(value: Any) -> Any:
    """Return a value of mappings and lists as one that cannot change, and so can be hashed."""
    if isinstance(value, Mapping):
        return FrozenDict({key: frozen(inner) for key, inner in value.items()})
    return tuple(frozen(inner) for inner in value) if isinstance(value, list | tuple) else value


def digest_of(value: Any) -> str:
    """Return the first 16 hexadecimal digits of the sha256 of a value's canonical JSON."""
    text = json.dumps(_canonical(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _canonical(value: Any) -> Any:
    """Return plain values alone, with 1.0 written as 1, since the two are equal."""
    if isinstance(value, Mapping):
        return {key: _canonical(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
