"""Command lines called in this process, and programs in processes of their own."""

import os
import subprocess
import sys
from types import SimpleNamespace

from typer.testing import CliRunner


def caller(app, monkeypatch):
    """Return what calls an application of typer; the result has exit_code, stdout and stderr."""
    monkeypatch.delenv("ANCHORHOLD_STORE", raising=False)
    monkeypatch.delenv("ANCHORHOLD_DATA", raising=False)

    def call(*arguments):
        return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)

    return call


def main_caller(main, capsys):
    """Return what calls the function of a command of argparse; the result has exit_code, stdout and stderr."""

    def call(*arguments):
        capsys.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as ending:  # argparse, of a mistake that it finds itself
            code = ending.code
        shown = capsys.readouterr()
        return SimpleNamespace(exit_code=code, stdout=shown.out, stderr=shown.err)

    return call


def python(program, *arguments):
    """Run a program's text in a new process."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
