import pytest
import torch


@pytest.fixture(autouse=True)
def on_the_cpu(request, monkeypatch):
    """All tests but those for GPUs compare what a CPU computes, also where there is a GPU; so do their children."""
    if request.path.name != "test_cuda.py":
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
