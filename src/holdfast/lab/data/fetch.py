"""Getting a data set into its folder, for those with a network."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.errors import ConfigurationError, DataError
from holdfast.lab.data.download import DownloadError, Told, download, md5_of
from holdfast.lab.data.locations import data_folder, known_name, load
from holdfast.lab.data.sources import SOURCES, Download
from holdfast.lab.data.unpacking import unpack


def fetch(
    name: str,
    folder: str | Path | None = None,
    *,
    mirrors: Sequence[str] = (),
    told: Told = lambda *_: None,
    pause: Callable[[float], None] = time.sleep,
) -> bool:
    """Make a data set complete and right; return whether anything had to be done for it.

    Args:
        name: ``"MNIST"``, ``"CIFAR-10"`` or ``"CIFAR-100"``.
        folder: the data folder, as for :func:`~holdfast.lab.data.load`.
        mirrors: addresses of folders that hold the published files, instead of the public ones.
        told: is told how much of each file has arrived.
        pause: waits some seconds between attempts.
    """
    source = SOURCES[known_name(name)]
    where = data_folder(folder)
    if is_right(name, where):
        return False
    addresses = [_address(mirror) for mirror in mirrors or source.mirrors]
    try:
        for wanted in source.downloads:
            _provide(wanted, where, addresses, told, pause)
    except DownloadError as error:
        files = "\n".join(f"  {where / path}" for path in source.files)
        raise DownloadError(
            f"{error} Run this again to go on from what has arrived, name another address with --mirror, or get "
            f"{', '.join(wanted.name for wanted in source.downloads)} elsewhere, so that these files exist:\n{files}"
        ) from error
    except OSError as error:
        raise DataError(f"{name} could not be written to {where}: {error}.") from error
    load(name, where)
    return True


def is_right(name: str, folder: Path) -> bool:
    """Whether a data set can be read from a folder, and holds what was published."""
    try:
        load(name, folder)
    except DataError:
        return False
    return True


def _provide(wanted: Download, where: Path, mirrors: Sequence[str], told: Told, pause: Callable[[float], None]) -> None:
    """Download a file unless it is there, and unpack it if it is an archive."""
    target = where / wanted.path
    target.parent.mkdir(parents=True, exist_ok=True)
    was_there = target.is_file() and md5_of(target) == wanted.md5
    if not was_there:
        download(wanted, target, mirrors, told=told, pause=pause)
    if wanted.members:
        unpack(target, where, wanted.members)
        if not was_there:
            target.unlink()


def _address(mirror: str) -> str:
    if not mirror.startswith(("http://", "https://")):
        raise ConfigurationError(f"A mirror {mirror!r}; expected an address that begins with https:// or http://.")
    return mirror if mirror.endswith("/") else mirror + "/"
