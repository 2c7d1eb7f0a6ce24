"""The command line: ``holdfast run``, ``search``, ``reproduce``, ``runs``, ``measures`` and ``data``.

Its help comes without torch, which takes seconds to load: modules that need it are imported by the commands themselves,
each :func:`~holdfast.lab.cli.interrupt.loading` them once it runs.
"""

import signal
import sys

from holdfast.lab.cli.interrupt import leave_at_once
from holdfast.lab.cli.streams import prepare_streams

NEEDED = ("typer", "rich")


def main() -> None:
    """Run the command that was typed."""
    prepare_streams()
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, leave_at_once)
    try:
        from holdfast.lab.cli.app import app  # noqa: PLC0415 (these packages are an extra)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in NEEDED:
            raise
        sys.stderr.write("holdfast's command line needs typer and rich: pip install 'holdfast[cli]'\n")
        sys.exit(2)
    try:
        app(prog_name="holdfast")
    finally:
        # All is said and saved; one more Ctrl-C could only disturb what Python does at the end.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.stdout.flush()
