"""Files of one's own that a command names: ``anchorhold-lab run my_study.py:blobs``, or ``--with my_measures.py``."""

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from anchorhold.errors import ConfigurationError
from anchorhold.registry import find_name, names_of, simplified
from anchorhold_lab.experiments import SCENARIOS, Source, load_source


def load_beside(files: Sequence[Path] | None) -> None:
    """Load the file that ``--with`` names, if it names one."""
    if (file := _only(files)) is not None:
        _loaded(file)


def named_scenario(typed: str, files: Sequence[Path] | None) -> str:
    """Return the name of the scenario that was typed, with all that it is made from loaded.

    Args:
        typed: a scenario's name, or ``FILE:NAME``, where the name may also be that of the function that makes it.
        files: the file that ``--with`` names, if any.
    """
    beside = _only(files)
    file, colon, name = typed.rpartition(":") if ":" in typed else (typed, "", "")
    if not colon and not typed.endswith(".py") and os.sep not in typed:
        load_beside(files)
        return SCENARIOS.find(typed)
    if beside is not None:
        raise ConfigurationError(f"--with {beside} beside {typed}: expected one file for all that a run is made from.")
    source = _loaded(Path(file))
    known = source.names.get("scenario", [])
    if not known:
        raise ConfigurationError(
            f"{file} registers no scenario, only {_listed(source)}; expected one with @register_scenario, or the name "
            f"of another scenario and --with {file} beside it."
        )
    if not name:
        raise ConfigurationError(
            f"Which scenario of {file}? It registers {', '.join(known)}; expected one of them after a colon, as in "
            f"{file}:{known[0]}."
        )
    with names_of(source.digest):
        functions = {SCENARIOS[each].make.__name__: each for each in known}
    taken = {simplified(each) for each in known}
    meant = {each: each for each in known} | {f: each for f, each in functions.items() if simplified(f) not in taken}
    return meant[find_name(f"scenario of {file}", name, meant)]


def _only(files: Sequence[Path] | None) -> Path | None:
    """Return the one file that was named, however often, or say that it may be no more than one."""
    named = list(dict.fromkeys(files or ()))
    if len(named) > 1:
        given = " ".join(f"--with {file}" for file in named)
        raise ConfigurationError(f"{given}: expected one file for all that a run is made from.")
    return named[0] if named else None


def _loaded(file: Path) -> Source:
    # What the file prints is not what was asked for, and must not get among the lines of --json.
    with contextlib.redirect_stdout(sys.stderr):
        return load_source(file)


def _listed(source: Source) -> str:
    return ", ".join(f"the {kind} {name}" for kind, names in source.names.items() for name in names)
