"""``anchorhold-lab data``: which data sets are there, and getting those that are not."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anchorhold.errors import DataError
from anchorhold.registry import find_name
from anchorhold_lab.cli.exits import ExitCode
from anchorhold_lab.cli.interrupt import loading
from anchorhold_lab.cli.output import messages, print_json, results, table
from anchorhold_lab.user_paths import culprit

if TYPE_CHECKING:
    from anchorhold_lab.data.download import Told
    from anchorhold_lab.data.sources import Download

app = typer.Typer(help="Show which data sets are there, and get those that are not.")

Folder = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        help="The data folder; else $ANCHORHOLD_DATA, else ~/.cache/anchorhold/data.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="For machines: one JSON object a data set.")]


@app.callback(invoke_without_command=True)
def default(context: typer.Context, data_dir: Folder = None, *, as_json: Json = False) -> None:
    """Show which data sets are there, and get those that are not."""
    if context.invoked_subcommand is None:
        list_data(data_dir, as_json=as_json)


@app.command("list")
def list_data(data_dir: Folder = None, *, as_json: Json = False) -> None:
    """Say of every data set whether it is there, and whether it is what was published."""
    with loading():
        from anchorhold_lab.data import READERS, data_folder  # noqa: PLC0415

    folder = data_folder(data_dir)
    states = {name: state_of(name, folder, _as_typed(data_dir)) for name in READERS}
    states["digits"] = ("right", "built in")
    if as_json:
        for name, (state, detail) in states.items():
            print_json({"name": name, "state": state, "detail": detail, "folder": str(folder)})
    else:
        shown = table("data set", "state", "", wrap=("",), title=str(folder))
        for name, (state, detail) in states.items():
            shown.add_row(name, state, detail)
        results().print(shown)
    if any(state == "wrong" for state, _ in states.values()):
        raise typer.Exit(ExitCode.DATA)


@app.command("fetch")
def fetch_data(
    names: Annotated[list[str] | None, typer.Argument(help="MNIST, CIFAR-10, CIFAR-100, or all of them.")] = None,
    data_dir: Folder = None,
    mirror: Annotated[
        list[str] | None,
        typer.Option(help="Take the published files from this address instead; may be repeated.", show_default=False),
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Download data sets, check them, and go on where an earlier download stopped."""
    with loading():
        from anchorhold_lab.data import READERS, data_folder  # noqa: PLC0415
        from anchorhold_lab.data.fetch import fetch  # noqa: PLC0415

    wanted = [find_name("data set", name, [*READERS, "all"]) for name in names or ["all"]]
    folder = data_folder(data_dir)
    for name in READERS if "all" in wanted else dict.fromkeys(wanted):
        with _bars(name) as told:
            fetched = fetch(name, folder, mirrors=mirror or (), told=told)
        if as_json:
            print_json({"name": name, "state": "right", "fetched": fetched, "folder": str(folder)})
        else:
            results().print(f"{name} is {'now' if fetched else 'already'} in {folder}, and right.", soft_wrap=True)


def state_of(name: str, folder: Path, typed: str = "") -> tuple[str, str]:
    """Return whether a data set is ``right``, ``absent`` or ``wrong``, and more about it.

    Args:
        name: the data set.
        folder: where it should be.
        typed: the option by which that folder was named, for the command that gets it.
    """
    from anchorhold_lab.data import load  # noqa: PLC0415
    from anchorhold_lab.data.sources import SOURCES  # noqa: PLC0415

    try:
        source = SOURCES[name]
        present = any((folder / path).exists() for path in (*source.files, source.read_too) if path)
    except OSError as error:
        return "wrong", f"{culprit(folder, error)} could not be read: {error.strerror or error}."
    if not present:
        return "absent", f"anchorhold-lab data fetch {name}{typed}"
    try:
        found = load(name, folder)
    except DataError as error:
        return "wrong", str(error)
    return "right", f"{len(found.train):,} training and {len(found.test):,} test images"


def _as_typed(data_dir: Path | None) -> str:
    return "" if data_dir is None else f" --data-dir {shlex.quote(str(data_dir))}"


@contextmanager
def _bars(name: str) -> "Iterator[Told]":
    """Show a bar for every file that is downloaded; they go when all are there."""
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    from anchorhold_lab.data.sources import SOURCES  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = messages()
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as p:
        bars = {wanted: p.add_task(wanted.name, total=wanted.size, visible=False) for wanted in SOURCES[name].downloads}

        def told(wanted: "Download", arrived: int) -> None:
            p.update(bars[wanted], completed=arrived, visible=True)

        yield told
