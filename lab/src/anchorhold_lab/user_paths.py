"""Paths as people type them: with ``~``, too long, of users who are not there, in folders that may not be entered."""

import errno
import os
from pathlib import Path

from anchorhold.errors import ConfigurationError


def user_path(given: str | os.PathLike[str]) -> Path:
    """Return a path with its ``~`` replaced, or say what is wrong with it as it was typed."""
    path = Path(given)
    if "\0" in os.fspath(path):
        raise ConfigurationError(f"{os.fspath(path)!r} has a zero byte, which no path can have.")
    try:
        return path.expanduser()
    except RuntimeError as error:
        user = path.parts[0]
        raise ConfigurationError(
            f"{path}: the home folder of {user} is not known; expected ~ of a user who has one, or the folder's own "
            "path."
        ) from error


def is_folder(path: Path) -> bool:
    """Whether there is a folder; one that cannot be looked at counts as none."""
    return os.path.isdir(path)  # noqa: PTH112 (which raises where it cannot know)


def is_file(path: str | os.PathLike[str]) -> bool:
    """Whether there is a file; one that cannot be looked at counts as none."""
    return os.path.isfile(path)  # noqa: PTH113 (which raises where it cannot know)


def culprit(path: Path, error: OSError) -> Path:
    """Return which of a path and the folders above it is the one that the system does not let us use."""
    if error.errno not in (errno.EACCES, errno.EPERM):
        return path
    above = [folder for folder in reversed(path.parents) if is_folder(folder)]
    return next((folder for folder in above if not os.access(folder, os.X_OK)), path)


def advice(error: OSError, otherwise: str) -> str:
    """Return what to do about an error, where its kind tells more than its place."""
    if error.errno == errno.ENAMETOOLONG:
        return "Give it a shorter name."
    return otherwise
