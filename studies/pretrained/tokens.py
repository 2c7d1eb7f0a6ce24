"""The texts in a model's tokens, in one file that is all of them that training needs."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anchorhold.whole_files import whole_file
from studies.pretrained.texts import Document

CONTEXT = 512
"""Tokens of a row that are predicted; the token that each row begins with comes before them."""
NOTHING = -1
"""In the place of a token after a document's end."""


@dataclass(frozen=True)
class Rows:
    """Documents as rows of tokens, and how many bytes of text each row's predicted tokens stand for."""

    tokens: Tensor
    sizes: Tensor

    def to(self, device: torch.device) -> "Rows":
        """Return the rows on a device."""
        return Rows(self.tokens.to(device), self.sizes)


@dataclass(frozen=True)
class Tokens:
    """All texts in a model's tokens."""

    begin: int
    train: Mapping[str, Tensor]
    """By lesson, its training text: documents one after the other, each after the token that a row begins with."""
    rows: Mapping[tuple[str, str], Rows]
    """By text and part, what is evaluated."""
    digest: str

    def chosen(self, part: str, texts: Sequence[str]) -> dict[str, Rows]:
        """Return one part of some texts."""
        return {text: self.rows[text, part] for text in texts}


def encode(documents: Sequence[Document], tokenizer: Any, begin: int, path: Path, context: int = CONTEXT) -> None:
    """Write documents as tokens."""
    arrays: dict[str, Any] = {"begin": np.array(begin)}
    for text, part in dict.fromkeys((document.text, document.part) for document in documents):
        some = [document.content for document in documents if (document.text, document.part) == (text, part)]
        found = tokenizer(some, add_special_tokens=False, return_offsets_mapping=True)
        if part == "train":
            joined = [token for ids in found["input_ids"] for token in (begin, *ids)]
            arrays[f"{text}/train"] = np.array(joined, dtype=np.int32)
            continue
        longest = min(context, max(map(len, found["input_ids"])))
        rows = np.full((len(some), 1 + longest), NOTHING, dtype=np.int32)
        sizes = np.zeros(len(some), dtype=np.int64)
        for row, (content, ids, offsets) in enumerate(
            zip(some, found["input_ids"], found["offset_mapping"], strict=True)
        ):
            taken = ids[:longest]
            rows[row, : 1 + len(taken)] = [begin, *taken]
            sizes[row] = len(content[: offsets[len(taken) - 1][1]].encode())
        arrays[f"{text}/{part}/tokens"], arrays[f"{text}/{part}/bytes"] = rows, sizes
    with whole_file(path) as file:
        np.savez_compressed(file, **arrays)


def load(path: Path) -> Tokens:
    """Read what :func:`encode` wrote."""
    train: dict[str, Tensor] = {}
    rows: dict[tuple[str, str], Rows] = {}
    content = hashlib.sha256()
    with np.load(path) as file:
        arrays = {name: file[name] for name in sorted(file.files)}
    for name, array in arrays.items():
        content.update(name.encode() + array.tobytes())
        text, _, part = name.partition("/")
        if part == "train":
            train[text] = torch.from_numpy(array)
        elif part.endswith("/tokens"):
            sizes = torch.from_numpy(arrays[name.replace("/tokens", "/bytes")])
            rows[text, part.partition("/")[0]] = Rows(torch.from_numpy(array), sizes)
    return Tokens(int(arrays["begin"]), train, rows, content.hexdigest()[:16])
