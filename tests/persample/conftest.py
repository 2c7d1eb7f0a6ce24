"""Settings of these tests: the networks are tiny, so one thread is faster than two, and every run is the same."""

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "holdfast", deadline=None, derandomize=True, max_examples=60, suppress_health_check=list(HealthCheck)
)
settings.load_profile("holdfast")


@pytest.fixture(autouse=True)
def _one_thread_and_one_seed():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
