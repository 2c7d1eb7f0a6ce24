"""Getting a data set into its folder, for those with a network."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from anchorhold.errors import ConfigurationError, DataError, shortened
from anchorhold_lab.data.download import DownloadError, Told, download, md5_of
from anchorhold_lab.data.http_only import Clock, usable_address
from anchorhold_lab.data.locations import data_folder, known_name, load
from anchorhold_lab.data.sources import SOURCES, Download
from anchorhold_lab.data.unpacking import unpack


def fetch(
    name: str,
    folder: str | Path | None = None,
    *,
    mirrors: Sequence[str] = (),
    told: Told = lambda *_: None,
    pause: Callable[[float], None] = time.sleep,
    clock: Clock = time.monotonic,
) -> bool:
    """Make a data set complete and right; return whether anything had to be done for it.

    Args:
        name: ``"MNIST"``, ``"CIFAR-10"`` or ``"CIFAR-100"``.
        folder: the data folder, as for :func:`~anchorhold_lab.data.load`.
        mirrors: addresses of folders that hold the published files, instead of the public ones.
        told: is told how much of each file has arrived.
        pause: waits some seconds between attempts.
        clock: seconds, from any beginning, by which a mirror that is too slow is known.
    """
    source = SOURCES[known_name(name)]
    where = data_folder(folder)
    if is_right(name, where):
        return False
    addresses = [_address(mirror) for mirror in mirrors or source.mirrors]
    try:
        for each in source.downloads:
            _provide(each, where, partial(download, mirrors=addresses, told=told, pause=pause, clock=clock))
    except DownloadError as error:
        wanted = ", ".join(f"{each.name} (md5 {each.md5})" for each in source.downloads)
        files = "\n".join(f"  {where / path}" for path in source.files)
        too = f"\nThe version with {where / source.read_too} is read as well." if source.read_too else ""
        raise DownloadError(
            f"{error} Run this again to go on from what has arrived, name another address with --mirror, or get "
            f"{wanted} elsewhere, so that these files exist:\n{files}{too}"
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


def _provide(wanted: Download, where: Path, download_to: Callable[[Download, Path], None]) -> None:
    """Download a file unless it is there, and unpack it if it is an archive."""
    target = where / wanted.path
    target.parent.mkdir(parents=True, exist_ok=True)
    was_there = target.is_file() and md5_of(target) == wanted.md5
    if not was_there:
        download_to(wanted, target)
    if wanted.members:
        unpack(target, where, wanted.members)
        if not was_there:
            target.unlink()


def _address(mirror: str) -> str:
    if not usable_address(mirror):
        raise ConfigurationError(
            f"A mirror {shortened(mirror)}; expected an address that begins with https:// or http://, such as "
            "https://example.org/data/."
        )
    return mirror if mirror.endswith("/") else mirror + "/"
