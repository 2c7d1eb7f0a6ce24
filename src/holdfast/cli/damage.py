"""A store in which some files are damaged: the others are shown, and those are named."""

from collections.abc import Iterable, Sequence

import typer
from rich.text import Text

from holdfast.cli.exits import ExitCode
from holdfast.cli.output import messages


def complain(damage: Iterable[str]) -> None:
    """Name every file that cannot be used, and leave with the store's code if there is any."""
    found: Sequence[str] = [line for text in damage for line in text.splitlines()]
    for line in found:
        messages().print(Text.assemble(("error: ", "bold red"), line), soft_wrap=True)
    if found:
        raise typer.Exit(ExitCode.STORE)
