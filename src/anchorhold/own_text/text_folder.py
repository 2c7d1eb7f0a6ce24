"""A folder that text is kept in while it is written, so that a second call goes on where the first one was stopped.

``asked.json`` says whose text it is and how it is written; each ``pieces-*.safetensors`` holds the pieces that were
written side by side, named after the first of them. Files are whole or absent (:mod:`anchorhold.whole_files`).
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anchorhold.errors import DamagedError, ModelError, StateError, StoreError, warn
from anchorhold.tensors.sharding import is_sharded
from anchorhold.whole_files import read_tensors, write_tensors, write_whole

_ASKED = "asked.json"
_FORMAT = 1
_NAMES = {"numbers", "begun", "lengths", "tokens", "log_probabilities"}
_TOP = {"top_tokens", "top_log_probabilities"}


@dataclass(frozen=True)
class Piece:
    """One text.

    Args:
        number: which it is; a piece depends on the seed and on its number alone.
        tokens: of all of it, ``[T]``, with the beginning and the end token if there is one.
        begun: how many of them are the beginning, which was given.
        log_probabilities: of the tokens that were written, in nats, as the model has them: at temperature 1, of all
            tokens.
        top_tokens: the most probable tokens in the place of each that was written, ``[T − begun, k]``, where asked for.
        top_log_probabilities: theirs.
    """

    number: int
    tokens: Tensor
    begun: int
    log_probabilities: Tensor
    top_tokens: Tensor | None = None
    top_log_probabilities: Tensor | None = None

    @property
    def written(self) -> Tensor:
        """The tokens that were written."""
        return self.tokens[self.begun :]


@dataclass(frozen=True)
class Kind:
    """What pieces have in common.

    Args:
        ends: tokens that end a piece; none if there are none.
        padding: the token that stands where a piece of a batch is over; no label and no mask counts it.
        named: whether the batches are those of one of Hugging Face's models, which have names.
    """

    ends: tuple[int, ...] = ()
    padding: int = 0
    named: bool = True


class TextFolder:
    """The text of one model, written in one way.

    Args:
        path: of the folder, which is made if there is none.
        asked: what the pieces depend on; a folder in which anything else was asked for is refused.
        kind: what the pieces have in common.
        wanted: how many pieces there are to be; those of an earlier call may be more or fewer.
    """

    def __init__(self, path: str | os.PathLike[str], asked: Mapping[str, Any], kind: Kind, wanted: int) -> None:
        self.path = Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"store={str(path)!r} cannot be made a folder ({error}). Name another one.") from error
        self._digest = digest_of(asked)
        document: dict[str, Any] = {"format": _FORMAT, "asked": dict(asked), "wanted": wanted}
        document |= {"ends": list(kind.ends), "padding": kind.padding, "named": kind.named}
        there = _read_asked(self.path)
        if there is None:
            if _files(self.path):
                raise DamagedError(
                    f"{str(self.path)!r} holds pieces, but no {_ASKED} that says whose they are. Name another folder, "
                    "or put the file back."
                )
        else:
            before, now = there["asked"], document["asked"]
            if different := [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]:
                words = {"weights": "the model's weights are others", "beginnings": "the prompts are others"}
                reasons = [
                    words.get(name, f"{name} is {before.get(name)!r} there and {now.get(name)!r} here")
                    for name in different
                ]
                raise StateError(
                    f"{str(self.path)!r} holds another text: {'; '.join(reasons)}. Name another folder, or, to read "
                    "what is there, anchorhold.OwnText.load(folder)."
                )
            document["wanted"] = max(wanted, there["wanted"])
        if document != there:
            self._write(lambda: write_whole(self.path / _ASKED, json.dumps(document, indent=1).encode()))

    def read(self) -> dict[int, Piece]:
        """Return the pieces that are there, by number."""
        return {piece.number: piece for file in _files(self.path) for piece in _read_file(file, self._digest)}

    def add(self, pieces: list[Piece]) -> None:
        """Write some pieces to a file of their own."""
        tensors = tensors_of(pieces)
        if pieces[0].top_tokens is not None:
            tensors["top_tokens"] = torch.cat([_kept(piece.top_tokens) for piece in pieces]).int()
            tensors["top_log_probabilities"] = torch.cat([_kept(piece.top_log_probabilities) for piece in pieces])
        file = self.path / f"pieces-{min(piece.number for piece in pieces):08d}.safetensors"
        self._write(lambda: write_tensors(file, tensors, {"asked": self._digest}))

    def _write(self, write: Any) -> None:
        try:
            write()
        except OSError as error:
            raise StoreError(
                f"{str(self.path)!r} cannot be written to ({error}). What was there is still there; free some space, "
                "or name another folder."
            ) from error


def tensors_of(pieces: Sequence[Piece]) -> dict[str, Tensor]:
    """Return pieces as tensors for a file, without the most probable tokens in the place of each."""
    return {
        "numbers": torch.tensor([piece.number for piece in pieces]),
        "begun": torch.tensor([piece.begun for piece in pieces]),
        "lengths": torch.tensor([len(piece.tokens) for piece in pieces]),
        "tokens": torch.cat([piece.tokens for piece in pieces]).int(),
        "log_probabilities": torch.cat([piece.log_probabilities for piece in pieces]),
    }


def pieces_of(tensors: Mapping[str, Tensor]) -> list[Piece]:
    """Return the pieces of a file's tensors. Raise ValueError if these do not fit each other."""
    numbers, begun, lengths = (tensors[name].tolist() for name in ("numbers", "begun", "lengths"))
    counts = [length - own for length, own in zip(lengths, begun, strict=True)]
    if sum(lengths) != len(tensors["tokens"]) or sum(counts) != len(tensors["log_probabilities"]) or min(counts) < 1:
        raise ValueError("its lengths do not fit its tokens")
    tokens = tensors["tokens"].long().split(lengths)
    kept = [tensors["log_probabilities"].split(counts)]
    kept += [tensors[name].split(counts) for name in ("top_tokens", "top_log_probabilities") if name in tensors]
    if len(kept) > 1:
        kept[1] = [own.long() for own in kept[1]]
    return [
        Piece(number, own, first, *more)
        for number, own, first, *more in zip(numbers, tokens, begun, *kept, strict=True)
    ]


def read_folder(path: str | os.PathLike[str]) -> tuple[list[Piece], Kind]:
    """Return the pieces of a folder and what they have in common; that some are missing is told."""
    folder = Path(path)
    there = _read_asked(folder)
    if there is None:
        raise StoreError(f"{str(folder)!r} holds no text: there is no {_ASKED}. Give the folder that store= named.")
    digest = digest_of(there["asked"])
    pieces = sorted((p for file in _files(folder) for p in _read_file(file, digest)), key=lambda piece: piece.number)
    if len(pieces) < there["wanted"]:
        warn(
            f"{str(folder)!r} holds {len(pieces)} of {there['wanted']} pieces: writing was stopped. Those with short "
            "prompts come first, so they are no fair sample. Call write_text() with the same model again for the rest."
        )
    return pieces, Kind(tuple(there["ends"]), there["padding"], there["named"])


def is_whole(path: str | os.PathLike[str]) -> bool:
    """Whether a folder holds a text of which every piece is there."""
    there = _read_asked(Path(path))
    if there is None:
        return False
    digest = digest_of(there["asked"])
    return sum(len(_read_file(file, digest)) for file in _files(Path(path))) >= int(there["wanted"])


def weights_digest(model: nn.Module) -> str:
    """Return a digest of all that a model's outputs depend on: weights, saved buffers and adapters that are in use."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
            if is_sharded(value):
                raise ModelError(
                    f"{name} is spread over several processes, so no process can tell whose text a folder holds. Write "
                    "the text before the model is sharded, or without store=."
                )
            whole = value.detach().cpu().contiguous().reshape(-1)
            digest.update(whole.view(torch.uint8).numpy().data)
    for name, module in model.named_modules():
        # PEFT can switch adapters off, or others on, without touching a weight.
        off, active = (getattr(module, own, None) for own in ("disable_adapters", "active_adapters"))
        if isinstance(off, bool) and isinstance(active, list):
            digest.update(f"{name} {off} {active}\n".encode())
    return digest.hexdigest()


def digest_of(content: Any) -> str:
    """Return a digest of what JSON can hold."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _kept(tensor: Tensor | None) -> Tensor:
    assert tensor is not None  # of all pieces or of none
    return tensor


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("pieces-*.safetensors"))


def _read_asked(folder: Path) -> dict[str, Any] | None:
    try:
        text = (folder / _ASKED).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{str(folder / _ASKED)!r} cannot be read ({error}).") from error
    wanted = {"format": int, "asked": dict, "ends": list, "padding": int, "named": bool, "wanted": int}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(found.get(name), kind) for name, kind in wanted.items()):
        raise DamagedError(f"{str(folder / _ASKED)!r} was changed or cut short. Name another folder, or put it back.")
    if found["format"] != _FORMAT:
        raise StateError(
            f"{str(folder)!r} has format {found['format']}, and this version reads {_FORMAT}. Use a newer anchorhold."
        )
    return found


def _read_file(path: Path, digest: str) -> list[Piece]:
    """Return the pieces of one file, or say that it cannot be used."""
    try:
        tensors, metadata = read_tensors(path)
    except StateError as error:
        raise _damaged(path, "it is not whole") from error
    except OSError as error:
        raise StoreError(f"{str(path)!r} cannot be read ({error}).") from error
    if metadata.get("asked") != digest:
        raise _damaged(path, "it was written for another text")
    if set(tensors) not in (_NAMES, _NAMES | _TOP):
        raise _damaged(path, "it has other tensors")
    try:
        return pieces_of(tensors)
    except ValueError as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, why: str) -> DamagedError:
    return DamagedError(f"{str(path)!r} cannot be used: {why}. Remove it, and its pieces are written again.")
