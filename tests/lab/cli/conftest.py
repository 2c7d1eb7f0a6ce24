import pytest
from typer.testing import CliRunner

from anchorhold_lab.cli.app import app


@pytest.fixture
def call(monkeypatch):
    """Runs a command line in this process; the result has exit_code, stdout and stderr."""
    monkeypatch.delenv("ANCHORHOLD_STORE", raising=False)
    monkeypatch.delenv("ANCHORHOLD_DATA", raising=False)

    def run(*arguments):
        return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)

    return run
