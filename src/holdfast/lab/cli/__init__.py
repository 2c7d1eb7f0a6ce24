"""The command line: ``holdfast run``, ``search``, ``reproduce``, ``runs``, ``measures`` and ``data``."""

import signal
import sys

NEEDED = ("typer", "rich")


def main() -> None:
    """Run the command that was typed."""
    try:
        from holdfast.lab.cli.app import app  # noqa: PLC0415 (these packages are an extra)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in NEEDED:
            raise
        sys.stderr.write("holdfast's command line needs typer and rich: pip install 'holdfast[cli]'\n")
        sys.exit(2)
    except KeyboardInterrupt:  # the commands take a while to load
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.stderr.write("Interrupted.\n")
        sys.exit(130)
    try:
        app(prog_name="holdfast")
    finally:
        # All is said and saved; one more Ctrl-C could only disturb what Python does at the end.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
