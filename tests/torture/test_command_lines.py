"""A few of the trials that are made by the thousand with ``python -m torture.command_lines``."""

import os
import subprocess
import sys

import pytest


@pytest.mark.nightly
def test_hostile_command_lines_end_with_a_code_and_a_line():
    done = subprocess.run(
        [sys.executable, "-m", "torture.command_lines", "--trials", "25"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].split()[-1] == "25"
