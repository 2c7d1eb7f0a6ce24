"""``anchorhold-lab runs pack`` and ``unpack``: many runs in two files, and back."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anchorhold_lab.cli.arguments import DEFAULT_STORE
from anchorhold_lab.cli.commands.stored_runs.runs import Json, existing_store
from anchorhold_lab.cli.interrupt import loading
from anchorhold_lab.cli.output import messages, print_json, results

if TYPE_CHECKING:
    from anchorhold_lab.experiments import Store
    from anchorhold_lab.experiments.store.packing import Moved

Folder = Annotated[
    Path, typer.Argument(metavar="STORE", envvar="ANCHORHOLD_STORE", help="The folder that results are kept in.")
]


def pack_runs(store: Folder = DEFAULT_STORE, *, as_json: Json = False) -> None:
    """Move all runs that have finished or failed into two files, results.jsonl.zst and observations.zip.

    All other commands read them there, and new runs go into folders beside them until the next pack. Every file is
    read back before its folder is removed; a pack that was interrupted goes on with the same command.
    """
    place = existing_store(store)
    with loading():
        from anchorhold_lab.experiments.store.packing import pack  # noqa: PLC0415

    with _bar() as told:
        moved = pack(place, told)
    _report("packed", place, moved, as_json=as_json)


def unpack_runs(store: Folder = DEFAULT_STORE, *, as_json: Json = False) -> None:
    """Move all packed runs into folders of their own, every file with the bytes that it had."""
    place = existing_store(store)
    with loading():
        from anchorhold_lab.experiments.store.packing import unpack  # noqa: PLC0415

    with _bar() as told:
        moved = unpack(place, told)
    _report("unpacked", place, moved, as_json=as_json)


def _report(what: str, store: "Store", moved: "Moved", *, as_json: bool) -> None:
    """Say what was moved, and what was left and why."""
    (files, size), (files_now, size_now) = moved.before, moved.after
    if as_json:
        before, after = {"files": files, "bytes": size}, {"files": files_now, "bytes": size_now}
        told = {"store": str(store.folder), what: moved.runs, "before": before, "after": after}
        print_json({**told, "left": dict(moved.left)})
        return
    results().print(
        f"{moved.runs} run{'s' * (moved.runs != 1)} {what} in {store.folder}: {files:,} files and {size:,} bytes "
        f"before, {files_now:,} and {size_now:,} now.",
        soft_wrap=True,
    )
    for why, count in Counter(moved.left.values()).items():
        first = next(run for run, reason in moved.left.items() if reason == why)
        which = f"its folder: {first}" if count == 1 else f"their folders: {count} runs, such as {first}"
        results().print(f"Left in {which} ({why}).", soft_wrap=True)


@contextmanager
def _bar() -> "Iterator[Callable[[str, int, int], None]]":
    """Show a bar of how many runs are done; it goes at the end."""
    from rich.progress import Progress  # noqa: PLC0415

    console = messages()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=None)
        yield lambda what, done, of: progress.update(bar, description=what, completed=done, total=of)
