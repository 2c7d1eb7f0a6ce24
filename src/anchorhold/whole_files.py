"""Files that are either whole or absent, whatever happens while they are written."""

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from anchorhold.errors import StateError

_ASIDE = ".part"
_CHECKSUM = "sha256"


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file so that an interruption leaves the old one or the new one."""
    with whole_file(path) as file:
        file.write(content)


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Give a file to write to that lies aside, and move it into place once it is written."""
    target = Path(path)
    # In the same folder: only within one file system is a file moved in one step.
    aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}{_ASIDE}")
    try:
        with aside.open("xb") as file:
            yield file
            # The content goes to the disk before its name: else a loss of power might leave an empty file there.
            file.flush()
            os.fsync(file.fileno())
        aside.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_unfinished(folder: Path) -> None:
    """Remove what killed processes were writing; nobody may be writing there now."""
    for left in folder.glob(f".*{_ASIDE}"):
        left.unlink()


def write_tensors(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write named tensors and some text as one safetensors file, whole or not at all."""
    # Clones, because safetensors refuses tensors that share memory.
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_whole(path, save(plain, metadata=dict(metadata)))


def content_digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    """Return a sha256 over a text and named tensors, all of them in main memory: names, types, shapes and values."""
    found = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        # As bytes, since numpy does not know every dtype, bfloat16 for one.
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def sealed(values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Return plain values as text with a checksum of them and of the tensors beside them.

    It is one text, since safetensors writes several in an order of chance, and equal contents are to have equal files.
    """
    return json.dumps({**values, _CHECKSUM: content_digest(json.dumps(values), tensors)})


def unsealed(text: str, tensors: Mapping[str, Tensor], path: str | os.PathLike[str]) -> tuple[dict[str, Any], bool]:
    """Return the values of a text and whether there was a checksum; refuse what is damaged or does not match it."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StateError(
            f"{str(path)!r} is damaged: what it says beside its tensors cannot be read ({error}). Use another copy."
        ) from error
    if not isinstance(found, dict):
        raise StateError(
            f"{str(path)!r} is damaged: beside its tensors it holds a {type(found).__name__}; expected names with "
            "their values. Use another copy."
        )
    if _CHECKSUM not in found:
        return found, False
    expected = found.pop(_CHECKSUM)
    if content_digest(json.dumps(found), tensors) != expected:
        raise StateError(
            f"The content of {str(path)!r} does not match its checksum: it was damaged or changed since it was "
            "written. Use another copy."
        )
    return found, True


def read_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the text of a safetensors file, or say why it holds none."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            return tensors, file.metadata() or {}
    except OSError:  # not there, not to be read
        raise
    # Beside its own error, types of numbers that this torch does not have, or that it cannot view memory as.
    except (SafetensorError, AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise StateError(
            f"{str(path)!r} is not a whole safetensors file ({error}): truncated, or something else. Use another copy."
        ) from error
