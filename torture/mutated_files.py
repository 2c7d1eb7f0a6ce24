"""Kept files are damaged in coarser ways than by a bit. ``python -m torture.mutated_files``.

They are cut, filled with zeros, shuffled, mixed with other files, and edited where they are text; pickles are also made
of opcodes drawn by chance. What is read is refused, or the same as before.
"""

import json
import pickle
import pickletools
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torture.kept_files import KeptFile, kept_files
from torture.outcome import Outcome, main

_ODD: tuple[Any, ...] = (-5, -0.5, 0, 1.5, 1e308, 10**400, float("nan"), float("inf"), None, True, "", "text", [], {})
_OPCODES = [code.code.encode("latin1") for code in pickletools.opcodes]


def trials(seed: int) -> Iterator[Outcome]:
    """Damage every kind of file in turn, without end; trial k has the seed ``seed + k``."""
    with kept_files() as files:
        while True:
            drawn = random.Random(seed)
            file = files[seed % len(files)]
            mutation = drawn.choice(_fitting(file))
            content = mutation(_Given(file.path.read_bytes(), drawn, files))
            yield file.tried(seed, content, mutation.__name__.strip("_").replace("_", " "))
            seed += 1


class _Given(NamedTuple):
    """What a mutation may use."""

    content: bytes
    drawn: random.Random
    files: list[KeptFile]


Mutation = Callable[[_Given], bytes]


def _fitting(file: KeptFile) -> list[Mutation]:
    """Return what can be done to a file."""
    found: list[Mutation] = [_cut, _zeros, _removed, _doubled, _inserted, _swapped, _another_file, _of_two_files]
    if file.path.suffix == ".json":
        found += [_edited, _nested, _lacking]
    if "pickle" in file.kind:
        found += [_opcodes, _changed_opcode, _pickled]
    return found


def _span(given: _Given) -> tuple[int, int]:
    content, drawn, _ = given
    start = drawn.randrange(len(content))
    return start, min(len(content), start + drawn.choice((1, 2, 8, 64, 512)))


def _cut(given: _Given) -> bytes:
    return given.content[: given.drawn.randrange(len(given.content))]


def _zeros(given: _Given) -> bytes:
    start, end = _span(given)
    return given.content[:start] + bytes(end - start) + given.content[end:]


def _removed(given: _Given) -> bytes:
    start, end = _span(given)
    return given.content[:start] + given.content[end:]


def _doubled(given: _Given) -> bytes:
    start, end = _span(given)
    return given.content[:end] + given.content[start:]


def _inserted(given: _Given) -> bytes:
    start, end = _span(given)
    return given.content[:start] + given.drawn.randbytes(end - start) + given.content[start:]


def _swapped(given: _Given) -> bytes:
    a, b = sorted(given.drawn.randrange(len(given.content)) for _ in range(2))
    return given.content[:a] + given.content[b:] + given.content[a:b]


def _another_file(given: _Given) -> bytes:
    return given.drawn.choice(given.files).path.read_bytes()


def _of_two_files(given: _Given) -> bytes:
    return given.content[: given.drawn.randrange(len(given.content))] + _another_file(given)


# Text


def _edited(given: _Given) -> bytes:
    """One value is another; the checksum stays as it was."""
    values = json.loads(given.content)
    holder: Any = {"": values}
    key: Any = ""
    while isinstance(holder[key], dict | list) and holder[key] and (given.drawn.random() < 0.9 or key == ""):
        holder = holder[key]
        key = given.drawn.choice(list(holder)) if isinstance(holder, dict) else given.drawn.randrange(len(holder))
    holder[key] = given.drawn.choice([odd for odd in _ODD if odd is not holder[key]])
    return json.dumps(values).encode()


def _nested(given: _Given) -> bytes:
    depth = given.drawn.choice((10, 1000, 100_000))
    return b"[" * depth + b"]" * depth if given.drawn.random() < 0.5 else b'{"spec":' * depth + b"1" + b"}" * depth


def _lacking(given: _Given) -> bytes:
    """A value is missing, other than the checksum, which files of old have none of."""
    values = json.loads(given.content)
    keys = [key for key in values if key != "checksum"] if isinstance(values, dict) else list(range(len(values)))
    del values[given.drawn.choice(keys)]
    return json.dumps(values).encode()


# Pickles


def _opcodes(given: _Given) -> bytes:
    """Opcodes by chance, of the kind that CIFAR's files have or of any, with what might be their arguments."""
    codes = [code for code in _OPCODES if code != b"."]
    drawn = given.drawn
    parts = [drawn.choice(codes) + drawn.randbytes(drawn.choice((0, 0, 0, 1, 4))) for _ in range(drawn.randrange(200))]
    return b"\x80\x02" + b"".join(parts) + b"."


def _changed_opcode(given: _Given) -> bytes:
    places = [place for _, _, place in pickletools.genops(given.content) if place is not None]
    place = given.drawn.choice(places)
    return given.content[:place] + given.drawn.choice(_OPCODES) + given.content[place + 1 :]


def _pickled(given: _Given) -> bytes:
    """Something else that can be pickled."""
    others = (2**2000, (1, 2), {1: 2}, {(1,): 2}, {"data": 1}, b"x" * 1000, print, KeyError)
    value: Any = given.drawn.choice([*_ODD, *others])
    for _ in range(given.drawn.choice((0, 1, 5))):
        value = given.drawn.choice([[value], (value,), {"data": value, "labels": value}])
    return pickle.dumps(value, protocol=given.drawn.randrange(6))


if __name__ == "__main__":
    main(trials, __doc__ or "")
