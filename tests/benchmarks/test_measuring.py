"""What a measurement takes by phase, and beside other libraries, at the size of a thousand weights."""

import pytest
import torch

pytest.importorskip("transformers")

from benchmarks.gpu import measuring, measuring_peers

CPU = torch.device("cpu")


def test_phases_errors_and_eigenvectors_are_reported():
    *_, report = measuring.run(None, CPU, True)
    assert list(report.seconds) == [measuring.NOW, measuring.BEFORE]
    for phase in ("forward", "backward", "labels", "covariances", "squares in coordinates", "eigenvectors", "all"):
        assert all(f"{phase} " in note for note in report.notes[1:])
    errors = [ratio for ratio in report.ratios if ratio.name.startswith("Q(D) off")]
    assert len(errors) == 4 and all(ratio.value > 0 and ratio.met for ratio in errors)
    assert all("True" in row for row in report.details["Eigenvectors of random covariances"][2:-1])
    assert sum(heading.startswith("Kernels of pass") for heading in report.details) == 2


def test_a_path_of_before_is_not_left_in_place():
    lanes = measuring.side_by_side.LANES
    with measuring.as_before():
        assert measuring.side_by_side.LANES == 1
    assert lanes == measuring.side_by_side.LANES > 1


def test_layers_are_measured_beside_other_libraries_or_it_is_said_that_there_are_none():
    *_, report = measuring_peers.run(None, CPU, True)
    ours = [name for name in report.seconds if name.startswith("anchorhold")]
    assert len(ours) == 2
    others = {"bergson, float32", "bergson, TF32", "kronfluence, float32"}
    missing = {note.partition(":")[0] for note in report.notes if "not installed" in note}
    assert set(report.seconds) - set(ours) | missing == others
    errors = [ratio for ratio in report.ratios if ratio.name.startswith("Q(D) off")]
    assert errors and all(ratio.value < 0.01 for ratio in errors)
