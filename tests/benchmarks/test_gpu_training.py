"""What is timed on a card runs without one, in small."""

import torch

from anchorhold_lab.data.locations import Datasets
from benchmarks.gpu.training import train


def test_runs_are_timed_side_by_side_and_ask_for_their_kernels():
    found = train(Datasets(), torch.device("cpu"), True, "permuted-digits", "fp32", 2)
    assert len(found.accuracies) == 2 and found.profile == ["| (no GPU) |"]
    assert found.steps > 0 and found.seconds > 0 and "2 runs" in found.describe("two")
