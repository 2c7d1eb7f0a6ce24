"""A run whose folder may not be read: it is named, and hides none of the others."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.lab.cli.small import OPTIONS, small_spec, small_store
from tests.limits import limit

LOCKED, OPEN = small_spec("SI"), small_spec("SOS")

PROGRAM = """
import json, sys
from typer.testing import CliRunner
from holdfast.lab.cli.app import app

for command in json.loads(sys.argv[1]):
    shown = CliRunner().invoke(app, command, catch_exceptions=False)
    print(json.dumps([shown.exit_code, shown.stdout, shown.stderr]))
"""


def calls_without_privileges(*commands):
    """Return how commands end for a user who may not read everything, as root may."""
    as_others = ()
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root may read everything, and there is no setpriv to take that right away")
        as_others = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--inh-caps=-all")
    told = subprocess.run(
        [*as_others, sys.executable, "-c", PROGRAM, json.dumps(commands)],
        capture_output=True,
        text=True,
        check=False,
        timeout=limit(20),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    if not told.stdout and "setpriv:" in told.stderr:
        pytest.skip(f"the right to read everything cannot be taken away here: {told.stderr.strip()}")
    assert told.returncode == 0, told.stderr
    return [json.loads(line) for line in told.stdout.splitlines()]


def test_a_run_that_may_not_be_read_is_named_by_every_command_and_hides_no_other(tmp_path):
    store, _ = small_store(tmp_path / "store", LOCKED, OPEN)
    folder, place = store.run_folder(LOCKED.id), ("--store", str(store.folder))
    folder.chmod(0)
    try:
        run, listed, compared, shown, by_id, as_json = calls_without_privileges(
            ("run", "permuted-digits", "-m", "SI", "-m", "SOS", *OPTIONS, *place),
            ("runs", "list", *place),
            ("runs", "compare", *place),
            ("runs", "show", LOCKED.id[:8], *place),
            ("runs", "show", LOCKED.id, *place),
            ("runs", "list", "--json", *place),
        )
    finally:
        folder.chmod(0o755)
    for code, _, complaints in (run, listed, compared, shown, by_id):
        assert code == 4
        assert complaints.endswith(f"error: {folder} could not be read: Permission denied. Make it readable.\n")
    assert "SI seed 0 skipped: damaged" in run[2]
    assert all("SOS" in output for _, output, _ in (run, listed, compared))
    statuses = {row["id"]: row["status"] for row in map(json.loads, as_json[1].splitlines())}
    assert statuses == {LOCKED.id: "damaged", OPEN.id: "finished"}
    assert [entry.status for entry in store.entries()] == ["finished", "finished"]
