"""The command line: ``anchorhold-lab run``, ``search``, ``reproduce``, ``runs``, ``measures`` and ``data``.

Its help comes without torch, which takes seconds to load: modules that need it are imported by the commands themselves,
each :func:`~anchorhold_lab.cli.interrupt.loading` them once it runs.
"""

import signal
import sys

from anchorhold_lab.cli.interrupt import leave_at_once
from anchorhold_lab.cli.streams import prepare_streams

NEEDED = ("typer", "rich")


def main() -> None:
    """Run the command that was typed."""
    prepare_streams()
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, leave_at_once)
    try:
        from anchorhold_lab.cli.app import app  # noqa: PLC0415 (these packages are an extra)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in NEEDED:
            raise
        sys.stderr.write("anchorhold's command line needs typer and rich: pip install 'anchorhold-lab'\n")
        sys.exit(2)
    try:
        app(prog_name="anchorhold")
    finally:
        # All is said and saved; one more Ctrl-C could only disturb what Python does at the end.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.stdout.flush()
