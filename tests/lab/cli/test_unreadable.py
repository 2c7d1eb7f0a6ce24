"""Folders that may not be read: they are named, and a run's hides none of the others."""

import json

from tests.lab.cli.small import OPTIONS, small_spec, small_store
from tests.lab.cli.unprivileged import calls_without_privileges

LOCKED, OPEN = small_spec("SI"), small_spec("SOS")


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


def test_a_folder_that_may_not_be_entered_is_named_wherever_it_was_typed(tmp_path):
    store, _ = small_store(tmp_path / "above" / "locked" / "store", OPEN)
    locked, runs = store.folder.parent, store.folder / "runs"
    place = ("--store", str(store.folder))
    locked.chmod(0)
    try:
        typed = calls_without_privileges(
            ("runs", "list", *place),
            ("runs", "show", OPEN.id, *place),
            ("run", "permuted-digits", "-m", "SOS", *OPTIONS, *place),
            ("run", "permuted-digits", "-m", "SOS", *OPTIONS, "--store", str(locked / "new")),
            ("data", "fetch", "MNIST", "--data-dir", str(locked / "data"), "--mirror", "http://127.0.0.1:1/"),
            ("data", "--data-dir", str(locked / "data")),
            ("measures", "--with", str(locked / "mine.py")),
            (
                "run",
                "permuted-digits",
                *OPTIONS,
                "--store",
                str(tmp_path / "new"),
                "--tensorboard",
                str(locked / "log"),
            ),
        )
    finally:
        locked.chmod(0o755)
    assert [code for code, _, _ in typed] == [4, 4, 4, 4, 3, 3, 2, 2]
    for _, shown, complaints in typed:
        assert "ermission denied" in " ".join((shown + complaints).split())
    for _, _, complaints in typed[:4]:
        assert complaints == f"error: {locked} could not be read: Permission denied. Make it readable.\n"

    runs.chmod(0)
    try:
        closed = calls_without_privileges(
            ("runs", "list", *place),
            ("runs", "compare", *place),
            ("runs", "show", OPEN.id[:4], *place),
            ("run", "permuted-digits", "-m", "SOS", *OPTIONS, *place),
        )
    finally:
        runs.chmod(0o755)
    for code, _, complaints in closed:
        assert code == 4
        assert complaints.endswith(f"error: {runs} could not be read: Permission denied. Make it readable.\n")
