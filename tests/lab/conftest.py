import pytest


@pytest.fixture(scope="session")
def on_ray():
    """A Ray on this machine, started once for all tests of a process; one process has all that use it."""
    from tests.lab.experiments.ray_helpers import local_ray  # noqa: PLC0415 (Ray takes a while to import)

    with local_ray():
        yield
