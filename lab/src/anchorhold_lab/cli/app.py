"""All commands in one place."""

from typing import Annotated

import typer

import anchorhold
from anchorhold_lab.cli.commands import data
from studies.benzing2020.command import reproduce
from anchorhold_lab.cli.commands.making_runs.run import run
from anchorhold_lab.cli.commands.making_runs.search import search
from anchorhold_lab.cli.commands.measures import measures
from anchorhold_lab.cli.commands.merge import merge
from anchorhold_lab.cli.commands.stored_runs import runs
from anchorhold_lab.cli.commands.stored_runs.plot import plot_chosen
from anchorhold_lab.cli.exits import MEANINGS, Commands

app = typer.Typer(
    cls=Commands,
    help="Keeps neural networks from forgetting: run, compare and look up its measures of importance.",
    epilog=MEANINGS,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"anchorhold {anchorhold.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Keep neural networks from forgetting: run, compare and look up measures of importance."""


app.command(epilog=MEANINGS)(run)
app.command(epilog=MEANINGS)(search)
app.command(epilog=MEANINGS)(reproduce)
runs.app.command("plot")(plot_chosen)
app.add_typer(runs.app, name="runs")
app.command()(measures)
app.command(epilog=MEANINGS)(merge)
app.add_typer(data.app, name="data")
