"""Where data sets lie: a folder that is given, that ``ANCHORHOLD_DATA`` names, or the user's cache; each read once."""

import contextlib
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from anchorhold.errors import DataError
from anchorhold_lab.data import cifar, mnist
from anchorhold_lab.data.digits import digits_dataset
from anchorhold_lab.data.images import Dataset
from anchorhold_lab.user_paths import user_path

READERS: dict[str, Callable[[Path], Dataset]] = {
    "MNIST": mnist.read_mnist,
    "CIFAR-10": cifar.read_cifar10,
    "CIFAR-100": cifar.read_cifar100,
}


def data_folder(given: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of data sets: what is given, else ``$ANCHORHOLD_DATA``, else ``~/.cache/anchorhold/data``."""
    chosen = given or os.environ.get("ANCHORHOLD_DATA")
    return user_path(chosen or "~/.cache/anchorhold/data")


def known_name(name: str) -> str:
    """Return the name, or say which there are."""
    if name not in READERS:
        raise DataError(f"No data set is called {name!r}; there are {', '.join(READERS)} (and the digits, built in).")
    return name


def load(name: str, folder: str | os.PathLike[str] | None = None) -> Dataset:
    """Return a data set by name, its content checked against the published one."""
    read = READERS[known_name(name)]
    where = data_folder(folder)
    try:
        return read(where)
    except FileNotFoundError as error:
        raise DataError(f"{name} is not in {where} (no {error.filename}). {_advice(name, folder, where)}") from error
    except OSError as error:
        raise DataError(f"{name} could not be read from {where}: {error}.") from error


def _advice(name: str, given: str | os.PathLike[str] | None, where: Path) -> str:
    """Say how to get a data set, or where it seems to be."""
    for above in (where.parent, where.parent.parent):
        with contextlib.suppress(OSError, DataError):
            READERS[name](above)
            return f"It is in {above}, which is the folder to give."
    typed = "" if given is None else f" --data-dir {shlex.quote(str(given))}"
    return (
        f"Get it there with `anchorhold-lab data fetch {name}{typed}`, or name the folder that holds it with "
        "--data-dir or ANCHORHOLD_DATA, laid out as torchvision does."
    )


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
