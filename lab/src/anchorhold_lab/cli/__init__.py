"""The command line: ``anchorhold-lab run``, ``search``, ``runs``, ``measures`` and ``data``.

Its help comes without torch, which takes seconds to load: modules that need it are imported by the commands themselves,
each :func:`~anchorhold_lab.cli.interrupt.loading` them once it runs.
"""

import signal
import sys
from collections.abc import Callable

from anchorhold_lab.cli.interrupt import leave_at_once
from anchorhold_lab.cli.streams import prepare_streams


def main() -> None:
    """Run the command that was typed."""
    prepare()
    from anchorhold_lab.cli.app import app  # noqa: PLC0415 (after the handler of Ctrl-C, since it takes a while)

    run("anchorhold-lab", app)


def prepare() -> None:
    """Let a command line end well from its start: streams that can print, and Ctrl-C while modules load."""
    prepare_streams()
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, leave_at_once)


def run(name: str, app: Callable[..., object]) -> None:
    """Run an application of typer under a name, and leave nothing half printed."""
    try:
        app(prog_name=name)
    finally:
        # All is said and saved; one more Ctrl-C could only disturb what Python does at the end.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.stdout.flush()
