from types import SimpleNamespace

import pytest

from anchorhold_lab.cli import session
from anchorhold_lab.cli.exits import ExitCode
from anchorhold_lab.experiments import Store
from studies.benzing2020 import PRESETS, items_named
from studies.benzing2020.item import runs_of


@pytest.mark.nightly
def test_a_reproduction_stops_after_its_budget(call, on_ray, tmp_path, monkeypatch):
    """By a clock that stands still until the first result: how long Ray's workers take to start is no part of this."""
    store = Store(tmp_path / "store")

    def seconds():
        return 2.0 if any(store.folder.glob("runs/*/result.json")) else 0.0

    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=seconds))
    options = ("--preset", "digits", "--device", "cpu", "--executor", "ray", "--out", tmp_path / "report")
    done = call("table1", *options, "--budget", "1", "--store", store.folder)
    assert done.exit_code == ExitCode.INTERRUPTED, done.stderr
    assert (tmp_path / "report" / "index.html").exists()
    needed = len(runs_of(items_named(["table1"]), PRESETS["digits"]))
    assert 1 <= len(store.results()) < needed
