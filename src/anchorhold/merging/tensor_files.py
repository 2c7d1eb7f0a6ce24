"""Safetensors files whose tensors are read one at a time, and written so: models that are larger than memory."""

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from anchorhold.errors import StateError
from anchorhold.whole_files import sync_folder, whole_file, write_whole

INDEX = "model.safetensors.index.json"
"""What says, in Hugging Face's layout, in which of several files each tensor of a model is."""
ONE_FILE = "model.safetensors"

CODES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.complex64: "C64", torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
"""What safetensors calls each type."""
TYPES = {code: dtype for dtype, code in CODES.items()}


class Described(NamedTuple):
    """What is known of a tensor before it is read."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """How long it is in a file."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def described(path: Path) -> dict[str, Described]:
    """Return the shapes and types of all tensors in a file."""
    with _opened(path) as file:
        found = {}
        for name in file.offset_keys():
            part = file.get_slice(name)
            if part.get_dtype() not in TYPES:
                raise StateError(f"{name!r} in {str(path)!r} is of type {part.get_dtype()}, which cannot be merged.")
            found[name] = Described(tuple(part.get_shape()), TYPES[part.get_dtype()])
        return found


def metadata(path: Path) -> dict[str, str]:
    """Return the text in a file."""
    with _opened(path) as file:
        found: dict[str, str] = file.metadata() or {}
        return found


def read(path: Path, name: str) -> Tensor:
    """Return one tensor; what it takes of memory goes with it, since the file is not kept open."""
    with _opened(path) as file:
        found: Tensor = file.get_tensor(name)
        return found


class OneAtATime(Mapping[str, Tensor]):
    """A file's tensors by name, each read when it is asked for and kept by nobody."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names = list(described(path))

    def __getitem__(self, name: str) -> Tensor:
        return read(self._path, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise StateError(
            f"{str(path)!r} is not a whole safetensors file ({error}): truncated, or something else. Use another copy."
        ) from error
    except FileNotFoundError as error:
        raise StateError(f"There is no file {str(path)!r}. Give one that is there.") from error


def files_of(folder: Path) -> dict[str, Path]:
    """Return in which file of a folder each tensor of its model is, or say why it holds none."""
    index = folder / INDEX
    if index.is_file():
        try:
            places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            found = {str(name): folder / str(file) for name, file in places.items()}
        except (ValueError, KeyError, AttributeError) as error:
            raise StateError(
                f"{str(index)!r} cannot be read ({type(error).__name__}: {error}); expected a 'weight_map' of tensors' "
                "names to files. Use another copy."
            ) from error
        for path in sorted(set(found.values())):
            own = {name for name, place in found.items() if place == path}
            if missing := sorted(own - described(path).keys()):
                raise StateError(f"{str(path)!r} has no {missing[0]!r}, which {INDEX} says it has. Use another copy.")
        return found
    if (folder / ONE_FILE).is_file():
        return dict.fromkeys(described(folder / ONE_FILE), folder / ONE_FILE)
    there = sorted(path.name for path in folder.iterdir() if path.is_file())[:5]
    raise StateError(
        f"The folder {str(folder)!r} has neither {ONE_FILE} nor {INDEX}; it has {', '.join(there) or 'no file'}. "
        "Pickled weights are not read: save the model with save_pretrained, which writes safetensors."
    )


class Writer:
    """A safetensors file that is filled in any order, a piece at a time.

    The types with most bytes come first, as safetensors itself has them, so that every tensor lies where its type may.
    """

    def __init__(self, file: IO[bytes], tensors: Mapping[str, Described], text: Mapping[str, str]) -> None:
        header: dict[str, object] = {"__metadata__": dict(text)} if text else {}
        self._file = file
        self._places: dict[str, int] = {}
        end = 0
        for name in sorted(tensors, key=lambda each: -tensors[each].dtype.itemsize):
            known = tensors[name]
            header[name] = {"dtype": CODES[known.dtype], "shape": list(known.shape)}
            header[name]["data_offsets"] = [end, end + known.bytes]  # type: ignore[index]
            self._places[name] = end
            end += known.bytes
        encoded = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        encoded += b" " * (-len(encoded) % 8)
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        self._first = file.tell()
        file.truncate(self._first + end)

    def write(self, name: str, piece: Tensor, start: int = 0) -> None:
        """Write a tensor, or a piece of it from an element on."""
        self._file.seek(self._first + self._places[name] + start * piece.element_size())
        flat = piece.detach().cpu().contiguous().reshape(-1)
        self._file.write(flat.view(torch.uint8).numpy().data)


class Sink:
    """Where a merged model is written to: one file, or several with their index."""

    def __init__(self, writers: Mapping[str, Writer]) -> None:
        self._writers = writers

    def write(self, name: str, piece: Tensor, start: int = 0) -> None:
        """Write a tensor, or a piece of it from an element on."""
        self._writers[name].write(name, piece, start)


@contextlib.contextmanager
def written_file(path: Path, tensors: Mapping[str, Described], text: Mapping[str, str]) -> Iterator[Sink]:
    """Give a file to write tensors to, which is there once all are written and not before."""
    refuse_existing(path)
    with whole_file(path) as file:
        writer = Writer(file, tensors, text)
        yield Sink(dict.fromkeys(tensors, writer))


@contextlib.contextmanager
def written_folder(
    folder: Path,
    files: Mapping[str, str],
    tensors: Mapping[str, Described],
    text: Mapping[str, str],
    beside: Sequence[Path],
) -> Iterator[Sink]:
    """Give a folder to write tensors to, in Hugging Face's layout, which is there once all are written.

    Args:
        folder: where.
        files: in which file each tensor is to be.
        tensors: their shapes and types.
        text: what each file says beside them.
        beside: further files that are copied there, such as a model's configuration.
    """
    with folder_aside(folder) as aside:
        with contextlib.ExitStack() as stack:
            writers: dict[str, Writer] = {}
            for file in dict.fromkeys(files.values()):
                own = {name: tensors[name] for name in tensors if files[name] == file}
                writer = Writer(stack.enter_context(whole_file(aside / file)), own, text)
                writers |= dict.fromkeys(own, writer)
            yield Sink(writers)
        if set(files.values()) != {ONE_FILE}:
            size = {"total_size": sum(known.bytes for known in tensors.values())}
            index = json.dumps({"metadata": size, "weight_map": dict(files)}, indent=2, ensure_ascii=False)
            write_whole(aside / INDEX, (index + "\n").encode())
        for path in beside:
            shutil.copyfile(path, aside / path.name)


@contextlib.contextmanager
def folder_aside(folder: Path) -> Iterator[Path]:
    """Give a folder to write files to that lies aside, and move it into place once all are written."""
    refuse_existing(folder)
    aside = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.part")
    aside.mkdir()
    try:
        yield aside
        sync_folder(aside)
        aside.rename(folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    sync_folder(folder.parent)


def refuse_existing(path: Path) -> None:
    """Refuse to write where something is, or where there is no folder."""
    if path.exists():
        raise StateError(f"There is already something at {str(path)!r}, and it is not replaced. Give another name.")
    if not path.parent.is_dir():
        raise StateError(f"There is no folder {str(path.parent)!r}, so nothing was written. Make the folder first.")


def beside_weights(folder: Path) -> list[Path]:
    """Return the files of a model's folder that are no weights: its configuration, its tokenizer."""
    weights = (".safetensors", ".index.json", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".onnx")
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.endswith(weights))


def as_path(given: str | os.PathLike[str]) -> Path:
    """Return a path, with the user's own folder spelled out."""
    return Path(given).expanduser()
