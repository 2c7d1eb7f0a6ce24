"""A run's files as they are found: whole, missing, or not to be used, which is always said of a file by name."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from anchorhold.errors import DamagedError
from anchorhold_lab.experiments.specs.canonical import digest_of
from anchorhold_lab.experiments.specs.spec import Spec
from anchorhold_lab.user_paths import advice, culprit

T = TypeVar("T")
_CHECKSUM = "checksum"
_OUTSIDE = "it was changed from outside"


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
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, RecursionError) as error:
        raise damaged(path, error, _OUTSIDE) from error
    if content is None:
        raise damaged(path, "null", _OUTSIDE)
    return content


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is to be written with a checksum of it, by which a change from outside is noticed."""
    return {**values, _CHECKSUM: digest_of(values)}


def unsealed(content: Any, path: Path) -> Any:
    """Return what was sealed; what was written before there were checksums, by anchorhold 0.1.0, is as it is."""
    if not isinstance(content, Mapping) or _CHECKSUM not in content:
        return content
    values = {key: value for key, value in content.items() if key != _CHECKSUM}
    if parsed(digest_of, values, path) != content[_CHECKSUM]:
        raise damaged(path, "its content does not match its checksum", _OUTSIDE)
    return values


def parsed(parse: Callable[[Mapping[str, Any]], T], content: Mapping[str, Any], path: Path) -> T:
    """Return what a file's content means."""
    try:
        return parse(content)
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
        raise damaged(path, error, f"{_OUTSIDE}, or written by another version") from error


def check_belonging(spec: Spec, path: Path) -> None:
    """Refuse a file that was copied from another run's folder."""
    own = parsed(lambda _: spec.id, {}, path)
    if own != path.parent.name:
        raise DamagedError(
            f"{path} belongs to run {own}, not to {path.parent.name}: it was copied or changed from outside. "
            "Restore it, or remove the folder to make the run again."
        )


def unreadable(path: Path, error: OSError) -> DamagedError:
    """Return what to say of a file or folder that the system does not let us read."""
    what_to_do = advice(error, "Make it readable.")
    return DamagedError(f"{culprit(path, error)} could not be read: {error.strerror or error}. {what_to_do}")


def damaged(path: Path, error: Exception | str, how: str) -> DamagedError:
    """Return what to say of a file whose content cannot be used."""
    return DamagedError(f"{path} is damaged ({str(error).rstrip('.')}): {how}. Restore or remove it.")
