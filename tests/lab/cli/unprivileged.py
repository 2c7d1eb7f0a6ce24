"""Commands as an ordinary user calls them, whoever runs the tests."""

import json
import os
import subprocess
import sys

import pytest

from tests.limits import limit

PROGRAM = """
import ctypes, json, os, sys
from typer.testing import CliRunner
from holdfast.lab.cli.app import app

if os.geteuid() == 0:  # who may read everything, until that right is given up
    header, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None).capset(header, nothing):
        sys.exit("capset")
for command in json.loads(sys.argv[1]):
    shown = CliRunner().invoke(app, command, catch_exceptions=False)
    print(json.dumps([shown.exit_code, shown.stdout, shown.stderr]))
"""


def calls_without_privileges(*commands):
    """Return how commands end for a user who may not read everything, as root may."""
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands)],
        capture_output=True,
        text=True,
        check=False,
        timeout=limit(20),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    if told.returncode and told.stderr == "capset\n":
        pytest.skip("the right to read everything cannot be given up here")
    assert told.returncode == 0, told.stderr
    return [json.loads(line) for line in told.stdout.splitlines()]
