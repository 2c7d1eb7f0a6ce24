"""All commands in one place."""

from typing import Annotated

import typer

import anchorhold
import anchorhold_lab
from anchorhold_lab.cli.commands import data
from anchorhold_lab.cli.commands.making_runs.run import run
from anchorhold_lab.cli.commands.making_runs.search import search
from anchorhold_lab.cli.commands.measures import measures
from anchorhold_lab.cli.commands.stored_runs import runs
from anchorhold_lab.cli.commands.stored_runs.packing import pack_runs, unpack_runs
from anchorhold_lab.cli.commands.stored_runs.plot import plot_chosen
from anchorhold_lab.cli.exits import MEANINGS, Commands

app = typer.Typer(
    cls=Commands,
    help="Studies of continual learning with anchorhold: run, compare and look up measures of importance.",
    epilog=MEANINGS,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"anchorhold-lab {anchorhold_lab.__version__} (anchorhold {anchorhold.__version__})")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Run studies of continual learning; compare and look up measures of importance."""


app.command(epilog=MEANINGS)(run)
app.command(epilog=MEANINGS)(search)
runs.app.command("plot")(plot_chosen)
runs.app.command("pack")(pack_runs)
runs.app.command("unpack")(unpack_runs)
app.add_typer(runs.app, name="runs")
app.command()(measures)
app.add_typer(data.app, name="data")
