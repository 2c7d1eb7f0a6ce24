"""Steps are walked in rows of small parameters, and parameter by parameter: what is said of one must hold for both."""

import pytest

from anchorhold.guard.stepping import bundles

BOTH_WAYS = {
    "test_implicit",
    "test_mixed_precision",
    "test_optimizers",
    "test_path_measures",
    "test_unbiasedness",
    "test_unusual_steps",
}
"""The files that are about single steps."""


def pytest_generate_tests(metafunc):
    if metafunc.module.__name__.rpartition(".")[2] in BOTH_WAYS:
        metafunc.fixturenames.append("_walked")
        metafunc.parametrize("_walked", [bundles.SMALL, 0], ids=["rows", "alone"], indirect=True)


@pytest.fixture
def _walked(request, monkeypatch):
    monkeypatch.setattr(bundles, "SMALL", request.param)
