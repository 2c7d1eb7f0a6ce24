"""Commands as an ordinary user calls them, whoever runs the tests."""

import ctypes
import os

import pytest
from typer.testing import CliRunner

from anchorhold_lab.cli.app import app
from tests.forked import CONTEXT


def calls_without_privileges(*commands):
    """Return how commands end for a user who may not read everything, as root may."""
    told, end = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_call, args=(end, commands), daemon=True)
    process.start()
    end.close()
    found = told.recv()
    process.join()
    if found is None:
        pytest.skip("the right to read everything cannot be given up here")
    return found


def _call(connection, commands):
    if os.geteuid() == 0:  # who may read everything, until that right is given up
        header, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        if ctypes.CDLL(None).capset(header, nothing):
            connection.send(None)
            return
    shown = [CliRunner().invoke(app, command, catch_exceptions=False) for command in commands]
    connection.send([(each.exit_code, each.stdout, each.stderr) for each in shown])
