"""Connecting to Ray: to a cluster that is there, or to one that is started for the time being."""

import os
import subprocess
import sys

import pytest

from tests.limits import limit, patient_ray


def python(program):
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **patient_ray()},
        timeout=limit(30),
    )


_WITHOUT = """
import sys
import anchorhold, anchorhold_lab.experiments, anchorhold_lab.cli.app
assert "ray" not in sys.modules
sys.modules["ray"] = None
for module in ("connection", "ray_executor"):
    try:
        __import__(f"anchorhold_lab.experiments.on_ray.{module}")
    except anchorhold.errors.MissingExtraError as error:
        print(error)
"""


def test_without_ray_it_says_which_extra_and_all_else_works():
    done = python(_WITHOUT)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Runs on Ray need Ray, which is not installed: pip install 'anchorhold-lab[ray]'\n" * 2


_ALONE = """
import os, secrets, signal
from unittest import mock
os.environ.pop("RAY_ADDRESS", None)
# Without a token, Ray would write one into the home folder.
os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex())
import anchorhold, ray
from anchorhold_lab.experiments.on_ray.connection import connected
init = ray.init
with mock.patch.object(ray, "init", lambda **options: init(num_cpus=1, **options)):  # as if there were one core
    before = signal.getsignal(signal.SIGTERM)
    with connected():
        assert signal.getsignal(signal.SIGTERM) is before
        assert [node["NodeManagerAddress"] for node in ray.nodes()] == ["127.0.0.1"]
        assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
        with connected():
            pass
        assert ray.is_initialized()
    assert not ray.is_initialized()
    for address in ("ray://127.0.0.1:10001", "127.0.0.1:1"):
        try:
            with connected(address):
                pass
        except anchorhold.errors.ConfigurationError as error:
            print(error)
"""


@pytest.mark.nightly
def test_a_ray_of_ones_own_is_for_this_machine_alone_and_goes_again():
    done = python(_ALONE)
    assert done.returncode == 0, done.stderr
    client, unreachable = done.stdout.splitlines()
    assert "expected HOST:PORT, or auto, on a machine that is part of it" in client
    assert unreachable.startswith("The Ray cluster at '127.0.0.1:1' cannot be joined: ")
