"""The networks of these tests are tiny, so one thread is faster than two, and every run is the same."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread_and_one_seed(one_thread):
    torch.manual_seed(0)
