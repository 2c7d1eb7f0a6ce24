"""Data sets, each read once however many runs use it."""

import os
from collections.abc import Iterator, Mapping

from holdfast.data import Dataset, digits_dataset, load


class Datasets(Mapping[str, Dataset]):
    """The data sets in a folder, by name, read when they are first asked for."""

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = folder
        self._read: dict[str, Dataset] = {}

    def __getitem__(self, name: str) -> Dataset:
        if name not in self._read:
            self._read[name] = digits_dataset() if name == "digits" else load(name, self.folder)
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read)

    def __len__(self) -> int:
        return len(self._read)
