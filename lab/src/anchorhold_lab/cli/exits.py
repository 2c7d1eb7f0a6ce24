"""What an exit code means, and how a mistake becomes one: a line on stderr, and no traceback."""

import re
import signal
from collections.abc import Iterable
from enum import IntEnum
from typing import Any, NoReturn

import typer
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from anchorhold.errors import AnchorholdError, ClusterError, DataError, StoreError, shortened
from anchorhold_lab.cli.interrupt import Interruption, working
from anchorhold_lab.cli.output import messages

_LONGEST = 4096
"""Of a word that is typed: as long as a path can be."""
_UNREAD = 500
"""As many signs without a space are shown by their beginning and their end."""


class ExitCode(IntEnum):
    """What the shell is told."""

    DONE = 0
    FAILED = 1
    """Some runs have no result: they failed, another process is at them, or the cluster ended.

    Also where stdout could not be written, so that what was asked for is not there.
    """
    USAGE = 2
    """Something that was asked for makes no sense."""
    DATA = 3
    """A data set is missing or wrong."""
    STORE = 4
    """The store cannot be written or read."""
    INTERRUPTED = 130
    """Stopped by Ctrl-C; the same command goes on."""
    UNREAD = 141
    """Nobody read the output any more, as in ``anchorhold-lab runs list | head -1``."""
    TERMINATED = 143
    """Stopped by SIGTERM, as batch systems send it; the same command goes on."""


MEANINGS = (
    "Exit codes: 0 all done; 1 some runs failed, or nothing could be printed; 2 a mistake in what was asked for; "
    "3 data missing or wrong; 4 the store cannot be used; 130 interrupted; 141 nobody reads the output; 143 terminated."
)


def code_of(error: AnchorholdError) -> ExitCode:
    """Return the exit code for an error."""
    if isinstance(error, DataError):
        return ExitCode.DATA
    if isinstance(error, ClusterError):
        return ExitCode.FAILED
    return ExitCode.STORE if isinstance(error, StoreError) else ExitCode.USAGE


class _EndingWell:
    """Errors that anchorhold raises on purpose end a command with a message and a code."""

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> Any:
        """Read what was typed, unless it is longer than anything that could be meant."""
        for given in args:
            if len(given) > _LONGEST:
                raise typer.BadParameter(f"{shortened(given)} is too long; expected at most {_LONGEST} characters.")
        return super().make_context(info_name, args, *more, **extra)  # type: ignore[misc]

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was typed."""
        try:
            with working():
                return super().invoke(ctx)  # type: ignore[misc]
        except typer.Exit as ending:
            if ending.exit_code == ExitCode.INTERRUPTED:
                raise typer.Exit(_code_of_signal()) from None
            raise
        except AnchorholdError as error:
            _say(str(error))
            raise typer.Exit(code_of(error)) from error
        except KeyboardInterrupt:
            messages().print("Interrupted.")
            raise typer.Exit(_code_of_signal()) from None


class Commands(_EndingWell, TyperGroup):
    """The commands of a program that has several."""


class OneCommand(_EndingWell, TyperCommand):
    """The command of a program that has one."""


def stop(line: str) -> NoReturn:
    """Say that a command was stopped by a signal, and leave; signals that come from here on change nothing."""
    Interruption.is_told = True
    messages().print(line, soft_wrap=True)
    raise typer.Exit(ExitCode.INTERRUPTED)


def _say(line: str) -> None:
    short = re.sub(rf"\S{{{_UNREAD},}}", lambda found: shortened(found[0])[1:-1], line)
    messages().print(Text.assemble(("error: ", "bold red"), short), soft_wrap=True)


def _code_of_signal() -> ExitCode:
    return ExitCode.TERMINATED if Interruption.last_signal == signal.SIGTERM else ExitCode.INTERRUPTED


def complain(damage: Iterable[str]) -> None:
    """Name every file that cannot be used, and leave with the store's code if there is any."""
    found = [line for text in damage for line in text.splitlines()]
    for line in found:
        _say(line)
    if found:
        raise typer.Exit(ExitCode.STORE)
