"""Reading CIFAR's pickles without unpickling them.

A pickle is a program, and Python's own reader of them can be made to run anything, to fill the memory (nine bytes do)
or to end the process. CIFAR's files are written in a small part of that language: dictionaries, lists, tuples, strings,
small numbers, and arrays of bytes. This is an interpreter of that part alone. It calls nothing, ends after a bounded
number of steps, and takes as much memory as those and the file's own length allow; whatever else a file asks for is
refused. So no digest of a file has to be known before it is read: copies of CIFAR-10 differ in what they hold beside
the images and labels, and those are compared with the published ones once they are here.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from anchorhold.errors import DataError

_LARGEST = 2**28
"""No file of CIFAR is longer: its largest has 155 million bytes."""
_MOST_STEPS = 2**20
"""None has as many opcodes: the one with the most has 250,000."""
_MOST_DIMENSIONS = 2


class _RefusedError(Exception):
    """The file is written in something else than CIFAR's files."""


class _Name:
    """Something that a file names to be called."""

    def __init__(self, name: str) -> None:
        self.name = name


class _ByteArray:
    """A numpy array in the making."""

    def __init__(self) -> None:
        self.value: np.ndarray[Any, np.dtype[np.uint8]] | None = None

    def fill(self, state: object) -> None:
        if not (isinstance(state, tuple) and len(state) == 5):
            raise _RefusedError("an array with a state of another form")
        _, shape, kind, column_major, content = state
        whole = isinstance(shape, tuple) and all(type(size) is int and size >= 0 for size in shape)
        if not (whole and isinstance(kind, _Kind) and kind.is_byte and isinstance(content, bytes)):
            raise _RefusedError("an array of something else than bytes")
        if len(shape) > _MOST_DIMENSIONS or column_major or int(np.prod(shape, dtype=object)) != len(content):
            raise _RefusedError(f"an array of {len(content)} bytes that is not {_MOST_DIMENSIONS}-dimensional, by rows")
        self.value = np.frombuffer(content, np.uint8).reshape(shape)


class _Kind:
    """A numpy dtype."""

    def __init__(self, name: object) -> None:
        self.is_byte = name in (b"u1", "u1")


_ARRAY, _KIND, _ENCODE = "array", "dtype", "encode"
_KNOWN = {
    ("numpy.core.multiarray", "_reconstruct"): _ARRAY,
    ("numpy._core.multiarray", "_reconstruct"): _ARRAY,
    ("numpy", "ndarray"): "the class itself, which nobody calls",
    ("numpy", "dtype"): _KIND,
    ("_codecs", "encode"): _ENCODE,
}
"""The names that CIFAR's files ask for; the last one is how Python 3 writes bytes into old pickles."""


class _Interpreter:
    """A stack, marks in it, and what was noted to be used again."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._place = 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._encoded = 0

    def run(self) -> Any:
        """Return what the file holds."""
        for _ in range(_MOST_STEPS):
            code = self._take(1)
            if code == b".":
                return self._pop()
            if code not in _OPCODES:
                raise _RefusedError(f"it has the opcode {code!r}")
            _OPCODES[code](self)
        raise _RefusedError(f"it has more than {_MOST_STEPS:,} opcodes")

    # What opcodes do

    def skip(self, count: int) -> None:
        self._take(count)

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def push_number(self, count: int, *, signed: bool = False) -> None:
        self._stack.append(int.from_bytes(self._take(count), "little", signed=signed))

    def push_bytes(self, width: int) -> None:
        self._stack.append(self._take(self._number(width)))

    def push_text(self, width: int) -> None:
        self._stack.append(self._take(self._number(width)).decode())

    def mark(self) -> None:
        self._marks.append(len(self._stack))

    def push_tuple(self, count: int) -> None:
        self._stack.append(self._popped(count))

    def push_marked(self) -> None:
        self._stack.append(self._since_mark())

    def note(self, number: int | None) -> None:
        self._memo[len(self._memo) if number is None else number] = self._stack[-1]

    def note_by(self, width: int) -> None:
        self.note(self._number(width))

    def recall_by(self, width: int) -> None:
        self._stack.append(self._memo[self._number(width)])

    def append(self) -> None:
        (item,) = self._popped(1)
        self._top(list).append(item)

    def extend(self) -> None:
        items = self._since_mark()
        self._top(list).extend(items)

    def set_item(self) -> None:
        self._set(self._popped(2))

    def set_items(self) -> None:
        self._set(self._since_mark())

    def push_name(self) -> None:
        self._ask_for(self._line(), self._line())

    def push_name_of_texts(self) -> None:
        module, name = self._popped(2)
        self._ask_for(module, name)

    def call(self) -> None:
        called, arguments = self._popped(2)
        if not isinstance(called, _Name) or not isinstance(arguments, tuple):
            raise _RefusedError("it calls what is no name")
        if called.name == _ARRAY:
            self._stack.append(_ByteArray())
        elif called.name == _KIND and arguments:
            self._stack.append(_Kind(arguments[0]))
        elif called.name == _ENCODE and arguments and isinstance(arguments[0], str):
            # Each text is encoded once; over and over, a few bytes would fill the memory.
            self._encoded += len(arguments[0])
            if self._encoded > len(self._content):
                raise _RefusedError("it makes more bytes than it has")
            self._stack.append(arguments[0].encode("latin1"))
        else:
            raise _RefusedError(f"it calls {called.name} with something else than CIFAR's files do")

    def build(self) -> None:
        (state,) = self._popped(1)
        target = self._stack[-1]
        if isinstance(target, _ByteArray):
            target.fill(state)
        elif not isinstance(target, _Kind):  # whose byte order and alignment bytes do not have
            raise _RefusedError("it changes what is no array")

    # How they do it

    def _take(self, count: int) -> bytes:
        found = self._content[self._place : self._place + count]
        if len(found) < count:
            raise _RefusedError("it ends too early")
        self._place += count
        return found

    def _number(self, width: int) -> int:
        return int.from_bytes(self._take(width), "little")

    def _line(self) -> str:
        end = self._content.index(b"\n", self._place)
        return self._take(end + 1 - self._place)[:-1].decode()

    def _pop(self) -> Any:
        return self._popped(1)[0]

    def _popped(self, count: int) -> tuple[Any, ...]:
        if len(self._stack) - count < (self._marks[-1] if self._marks else 0):
            raise _RefusedError("it takes what is not there")
        found = tuple(self._stack[-count:])
        del self._stack[-count:]
        return found

    def _since_mark(self) -> tuple[Any, ...]:
        mark = self._marks.pop()
        found = tuple(self._stack[mark:])
        del self._stack[mark:]
        return found

    def _top(self, kind: type) -> Any:
        if not isinstance(self._stack[-1], kind):
            raise _RefusedError(f"it adds to what is no {kind.__name__}")
        return self._stack[-1]

    def _set(self, items: tuple[Any, ...]) -> None:
        target = self._top(dict)
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) not in (bytes, str):  # tuples in tuples are hashed one within the other, without end
                raise _RefusedError("it has a key that is no text")
            target[key] = value

    def _ask_for(self, module: object, name: object) -> None:
        if not (isinstance(module, str) and isinstance(name, str)):
            raise _RefusedError("it asks for what is no name")
        if (module, name) not in _KNOWN:
            raise _RefusedError(f"it asks for {module[:80]}.{name[:80]}")
        self._stack.append(_Name(_KNOWN[module, name]))


_OPCODES: dict[bytes, Callable[[_Interpreter], None]] = {
    b"\x80": lambda run: run.skip(1),  # the protocol
    b"\x95": lambda run: run.skip(8),  # how long the next part is
    b"(": _Interpreter.mark,
    b"N": lambda run: run.push(None),
    b"\x88": lambda run: run.push(True),
    b"\x89": lambda run: run.push(False),
    b"K": lambda run: run.push_number(1),
    b"M": lambda run: run.push_number(2),
    b"J": lambda run: run.push_number(4, signed=True),
    b"U": lambda run: run.push_bytes(1),
    b"T": lambda run: run.push_bytes(4),
    b"C": lambda run: run.push_bytes(1),
    b"B": lambda run: run.push_bytes(4),
    b"\x8e": lambda run: run.push_bytes(8),
    b"\x8c": lambda run: run.push_text(1),
    b"X": lambda run: run.push_text(4),
    b"]": lambda run: run.push([]),
    b"}": lambda run: run.push({}),
    b")": lambda run: run.push(()),
    b"\x85": lambda run: run.push_tuple(1),
    b"\x86": lambda run: run.push_tuple(2),
    b"\x87": lambda run: run.push_tuple(3),
    b"t": _Interpreter.push_marked,
    b"a": _Interpreter.append,
    b"e": _Interpreter.extend,
    b"s": _Interpreter.set_item,
    b"u": _Interpreter.set_items,
    b"q": lambda run: run.note_by(1),
    b"r": lambda run: run.note_by(4),
    b"\x94": lambda run: run.note(None),
    b"h": lambda run: run.recall_by(1),
    b"j": lambda run: run.recall_by(4),
    b"c": _Interpreter.push_name,
    b"\x93": _Interpreter.push_name_of_texts,
    b"R": _Interpreter.call,
    b"b": _Interpreter.build,
}
"""What CIFAR's files are written in, of protocols 2 to 4."""


def read_byte_pickle(path: Path) -> dict[str, Any]:
    """Return the dictionary in a pickle of bytes, lists, strings and numbers, its keys as text."""
    if path.stat().st_size > _LARGEST:
        raise DataError(f"{path} has more than {_LARGEST} bytes; expected one of CIFAR's files. Download it again.")
    content = path.read_bytes()
    try:
        found = _Interpreter(content).run()
    except (_RefusedError, ValueError, LookupError) as error:  # a number that was not noted, a text that is none
        why = error if isinstance(error, _RefusedError) else f"it is damaged ({type(error).__name__})"
        raise DataError(
            f"{path} is not one of CIFAR's files: {why}. Nothing in it was run. Download it again."
        ) from error
    if not isinstance(found, dict):
        raise DataError(f"{path} holds a {type(found).__name__}; expected one of CIFAR's files, a dictionary.")
    named = {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in found.items()}
    return {key: value.value if isinstance(value, _ByteArray) else value for key, value in named.items()}
