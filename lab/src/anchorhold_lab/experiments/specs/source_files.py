"""Source files: a Python file of one's own that registers scenarios, networks or measures, and runs made from it.

A file is known by its content, the first 16 hexadecimal digits of its sha256, and never by its path: a copy elsewhere
is the same file, and one that was changed is another. The digest of a run's file is part of the run's id. A file is one
text: what it imports has to be installed wherever it is loaded, and has no part in the digest.

To load a file is to run it. It is done for whoever names a file, and for whoever asks for a run that was made from one:
never to list, show or compare what a store holds.
"""

import contextlib
import hashlib
import inspect
import os
import stat
import string
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from anchorhold.errors import AnchorholdError, ConfigurationError
from anchorhold.registry import is_loaded, loaded_again, loading, names_in
from anchorhold_lab.training.out_of_memory import is_out_of_memory
from anchorhold_lab.user_paths import is_folder, user_path

_DIGITS = 16


@dataclass(frozen=True)
class Source:
    """A file that was loaded."""

    content: bytes
    place: Path
    """Where it was read."""

    @property
    def digest(self) -> str:
        """The name of its content."""
        return source_digest(self.content)

    @property
    def module(self) -> str:
        """The name of the module that it became."""
        return f"anchorhold_source_{self.digest}"

    @property
    def names(self) -> dict[str, list[str]]:
        """What it registers, by kind: ``{"scenario": ["blobs"]}``."""
        return names_in(self.digest)


_LOADED: dict[str, Source] = {}


def source_digest(content: bytes) -> str:
    """Return the name of a file's content."""
    return hashlib.sha256(content).hexdigest()[:_DIGITS]


def load_source(path: str | os.PathLike[str]) -> Source:
    """Load a Python file, so that the scenarios, networks and measures that it registers are known by name.

    Specs that name any of them have the digest of its content as their ``source``. A file whose content was loaded
    before is not run again; of two files that register the same name, the one that was loaded last is meant.

    >>> load_source("my_study.py")
    >>> execute(paper_spec("blobs", "SI", strength=1.0), "results")
    """
    place = user_path(path)
    expected = "expected a Python file that registers scenarios, networks or measures"
    if is_folder(place):
        raise ConfigurationError(f"{place} is a folder; {expected}.")
    try:
        if not stat.S_ISREG(place.stat().st_mode):  # a pipe may never come to its end, nor may /dev/zero
            raise ConfigurationError(f"{place} is a device or a pipe; {expected}.")
        content = place.read_bytes()
        content.decode("utf-8")
    except FileNotFoundError:
        raise ConfigurationError(f"There is no file {place}; {expected}.") from None
    except OSError as error:
        raise ConfigurationError(f"{place} could not be read: {error.strerror or error}; {expected}.") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{place} is not UTF-8 text ({error}); {expected}.") from error
    return load_content(content, place)


def load_content(content: bytes, place: Path) -> Source:
    """Load the content of a file that was read before.

    Args:
        content: what the file holds.
        place: where it was read, for messages and tracebacks.
    """
    source = Source(content, place)
    if is_loaded(source.digest):
        loaded_again(source.digest)
        return source
    module = types.ModuleType(source.module)
    module.__file__ = str(place)
    sys.modules[source.module] = module  # where dataclasses look for what their annotations mean
    try:
        with loading(source.digest) as names:
            _run(source, module)
            _require_names(place, names)
    except BaseException:
        del sys.modules[source.module]
        raise
    _LOADED[source.digest] = source
    return source


def loaded_source(digest: str) -> Source | None:
    """Return a file by the digest of its content, if it was loaded."""
    return _LOADED[digest] if is_loaded(digest) else None


def require_loaded(digest: str | None) -> None:
    """Refuse what was made from a file that was not loaded."""
    if digest is not None and not is_loaded(digest):
        raise missing_source(digest, "What is asked for")


def missing_source(digest: str, what: str) -> ConfigurationError:
    """Return what to say where a file would have to be loaded.

    Args:
        digest: of its content.
        what: what was made from it, at the beginning of a sentence.
    """
    return ConfigurationError(
        f"{what} was made from a file that is not loaded here: the one whose content has a sha256 that begins with "
        f"{digest}. Name it on the command line, as in `anchorhold-lab run FILE.py:SCENARIO` or --with FILE.py, or in "
        "Python with anchorhold_lab.experiments.load_source(FILE). A store that has runs of it keeps it as "
        f"sources/{digest}.py."
    )


def is_source_digest(value: object) -> bool:
    """Whether a value looks like the digest of a file's content."""
    return isinstance(value, str) and len(value) == _DIGITS and set(value) <= set(string.hexdigits.lower())


def told(error: BaseException, file: str) -> str:
    """Return an error in a line: where in a file it was raised, its type and its message."""
    if isinstance(error, SyntaxError) and error.filename == file:
        line, message = error.lineno, error.msg
    else:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        line, message = (lines[-1] if lines else None), " ".join(str(error).split())
    where = "" if line is None else f"line {line}: "
    return f"{where}{type(error).__name__}{f': {message}' if message else ''}".rstrip(".") + "."


@contextlib.contextmanager
def told_in_a_line(what: str, make: Callable[..., object]) -> Iterator[None]:
    """Turn what goes wrong in another's function into an error that says where in it.

    Args:
        what: what it was to make, at the beginning of a sentence.
        make: the function.
    """
    try:
        yield
    except AnchorholdError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        file = inspect.getfile(make)
        raise ConfigurationError(
            f"{what} could not be made: {told(error, file)} That was in {make.__name__} of {file}."
        ) from error


def _require_names(place: Path, names: Mapping[str, object]) -> None:
    if not names:
        raise ConfigurationError(
            f"{place} registers nothing; expected a Python file that registers scenarios, networks, measures, forms or "
            'holds, with @register_scenario("name"), @register_network("name"), @anchorhold.register_measure("name"), …'
        )


def _run(source: Source, module: types.ModuleType) -> None:
    """Run a file's content as a module, whose name is not ``__main__``."""
    file = str(source.place)
    try:
        exec(compile(source.content, file, "exec", dont_inherit=True), vars(module))  # noqa: S102 (that it is run is asked for)
    except (Exception, SystemExit) as error:
        raise ConfigurationError(f"{file} could not be loaded: {told(error, file)}") from error
