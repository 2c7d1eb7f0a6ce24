"""A run's files as they are found: whole, missing, or not to be used, which is always said of a file by name."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from holdfast.errors import ConfigurationError, DamagedError
from holdfast.lab.experiments.specs.spec import Spec
from holdfast.lab.user_paths import advice, culprit

T = TypeVar("T")


def is_there(path: Path) -> bool:
    """Whether a file or folder exists; refused where that cannot be known, which must not pass for a no."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise unreadable(path, error) from error
    return True


def read_json(path: Path) -> Any:
    """Return what a file holds; ``None`` if there is none."""
    how = "it was changed from outside"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:
        raise _damaged(path, error, how) from error
    if content is None:
        raise _damaged(path, "null", how)
    return content


def parsed(parse: Callable[[Mapping[str, Any]], T], content: Mapping[str, Any], path: Path) -> T:
    """Return what a file's content means."""
    try:
        return parse(content)
    except (ConfigurationError, TypeError, AttributeError, KeyError) as error:
        raise _damaged(path, error, "it was changed from outside, or written by another version") from error


def check_belonging(spec: Spec, path: Path) -> None:
    """Refuse a file that was copied from another run's folder."""
    if spec.id != path.parent.name:
        raise DamagedError(
            f"{path} belongs to run {spec.id}, not to {path.parent.name}: it was copied or changed from outside. "
            "Restore it, or remove the folder to make the run again."
        )


def unreadable(path: Path, error: OSError) -> DamagedError:
    """Return what to say of a file or folder that the system does not let us read."""
    what_to_do = advice(error, "Make it readable.")
    return DamagedError(f"{culprit(path, error)} could not be read: {error.strerror or error}. {what_to_do}")


def _damaged(path: Path, error: Exception | str, how: str) -> DamagedError:
    return DamagedError(f"{path} is damaged ({str(error).rstrip('.')}): {how}. Restore or remove it.")
