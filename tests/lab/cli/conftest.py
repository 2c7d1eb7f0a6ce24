import pytest

from anchorhold_lab.cli.app import app
from tests.calling import caller


@pytest.fixture
def call(monkeypatch):
    """Calls anchorhold-lab."""
    return caller(app, monkeypatch)
