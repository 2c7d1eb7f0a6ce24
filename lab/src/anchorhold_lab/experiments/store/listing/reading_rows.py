"""The rows of a store: from its index where the files are as they were, and from the files where they are not."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchorhold.errors import StoreError
from anchorhold.registry import is_loaded
from anchorhold_lab.experiments.store.listing.index import Index
from anchorhold_lab.experiments.store.listing.rows import Row
from anchorhold_lab.experiments.store.listing.stamps import Stamp, pack_stamp, stamps
from anchorhold_lab.experiments.store.locks import Lock

if TYPE_CHECKING:
    from anchorhold_lab.experiments.store.listing.making_rows import RowMaker

MANY = 1000
"""Runs from which on a store gets an index; fewer are read in a moment."""
FEW = 50
"""Rows that are not worth writing an index for."""


def rows_in(folder: Path) -> list[Row]:
    """Return a row for every run that was ever begun: the oldest result first, unfinished ones next, damaged ones last.

    What they say is what :meth:`Store.entries` says.
    """
    index = Index(folder)
    runs = folder / "runs"
    try:
        pack = pack_stamp(folder)
        packed = [] if pack is None else index.packed(pack)
        if packed is None:
            packed = _packed_ids(folder)
        seen = stamps(runs, packed, pack)
    except StoreError:
        raise
    except OSError as error:
        from anchorhold_lab.experiments.store.reading import unreadable  # noqa: PLC0415 (it takes torch)

        raise unreadable(runs, error) from error
    found: list[Row] = []
    lasting: list[tuple[Stamp, Row]] = []
    new = 0
    maker: RowMaker | None = None  # most often, none is needed
    for run, stamp in seen.items():
        row = None if stamp is None else index.row(run, stamp)
        if row is not None and stamp is not None and not _is_loaded(row.setting):
            found.append(row)
            lasting.append((stamp, row))
            continue
        maker = maker or _maker(folder)
        row, lasts = maker.row(run)
        if row.status != "unknown":  # it was removed since the look at the folder
            found.append(row)
        if stamp is not None and lasts:
            lasting.append((stamp, row))
            new += 1
    if len(found) >= MANY and new > FEW:
        index.replace(lasting, pack, packed)
    return sorted(found, key=lambda row: row.order)


def told_apart(rows: Iterable[Row], folder: Path) -> list[Row]:
    """Return a store's rows, with those told apart that were started: some are running, others were stopped."""
    runs = folder / "runs"
    return [
        row._replace(status=status_told_apart(row.status, runs / row.id)) if row.status == "started" else row
        for row in rows
    ]


def status_told_apart(status: str, run_folder: Path) -> str:
    """Return ``running`` for ``started`` where somebody is at the run, and ``stopped`` where nobody is any more.

    It stays where that cannot be known: in a store that may only be read.
    """
    if status != "started":
        return status
    return {True: "running", False: "stopped", None: status}[Lock(run_folder / "lock").is_held()]


def _packed_ids(folder: Path) -> list[str]:
    from anchorhold_lab.experiments.store.run_files import RunFiles  # noqa: PLC0415 (it takes torch)

    packed = RunFiles(folder).packed()
    return [] if packed is None else packed.ids


def _maker(folder: Path) -> "RowMaker":
    from anchorhold_lab.experiments.store.listing.making_rows import RowMaker  # noqa: PLC0415 (it takes torch)

    return RowMaker(folder)


def _is_loaded(setting: Mapping[str, Any]) -> bool:
    """Whether a run is made from a file that this process has loaded, which says more of it than what was written."""
    source = setting.get("source")
    return source is not None and is_loaded(source)
