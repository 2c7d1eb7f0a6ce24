import functools

import pytest

from anchorhold_lab.experiments import Store, execute
from studies.benzing2020 import items_named
from studies.benzing2020.command import app
from studies.benzing2020.findings import Results
from studies.benzing2020.item import runs_of
from tests.calling import caller
from tests.studies.benzing2020.tiny import tiny_preset

on_cpu = functools.partial(execute, device="cpu")


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    """The results of all runs of the tiny preset, really made."""
    store, preset = Store(tmp_path_factory.mktemp("paper") / "store"), tiny_preset()
    on_cpu(runs_of(items_named(["all"]), preset), store)
    return Results(store, preset)


@pytest.fixture
def nothing(tmp_path):
    """Results of runs none of which was made."""
    return Results(Store(tmp_path / "empty"), tiny_preset())


@pytest.fixture
def call(monkeypatch):
    """Calls ``python -m studies.benzing2020``."""
    return caller(app, monkeypatch)
