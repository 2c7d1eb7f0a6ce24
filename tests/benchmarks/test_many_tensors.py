"""The benchmark of many small tensors: what it times is a held step, and all of it at a tiny size."""

import dataclasses
import runpy
import sys

import pytest
import torch

from benchmarks.many_tensors import PLAIN, SETTINGS, Steps, run


@pytest.mark.parametrize("setting", SETTINGS, ids=[setting.title for setting in SETTINGS])
@pytest.mark.parametrize("measure", ["SI", "SOS"])
def test_the_penalty_is_in_force_and_every_step_is_watched(setting, measure):
    steps = Steps(dataclasses.replace(setting, count=5), measure)
    for taken in range(3):
        assert steps.guard.penalty().item() > 0
        assert steps.guard.gradients.path.steps == taken
        steps.new_gradients()
        steps.optimizer.step()


def test_without_a_measure_nothing_is_attached():
    steps = Steps(dataclasses.replace(SETTINGS[0], count=5), PLAIN)
    assert steps.guard is None
    assert not steps.optimizer._optimizer_step_pre_hooks and not steps.optimizer._optimizer_step_post_hooks


@pytest.mark.nightly
def test_every_ratio_has_its_target_and_threads_are_as_before(tmp_path):
    usual = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        reports = run(quick=True)
        report = next(reports)
        assert torch.get_num_threads() == 1  # as it says where the report is written
        assert next(reports, None) is None
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(usual)
    targets = {ratio.name: ratio.target for ratio in report.ratios}
    assert targets == {
        "Adam(foreach), 400 of 8×8: SI / unprotected": 1.5,
        "Adam(foreach), 400 of 8×8: SOS / unprotected": 1.4,
        "Adam(foreach), 400 of 64×64: SI / unprotected": 2.0,
        "Adam(foreach), 400 of 64×64: SOS / unprotected": 1.5,
        "SGD, 16,000 of 2: SI / unprotected": 4.0,
        "SGD, 16,000 of 2: SOS / unprotected": 4.0,
    }
    assert all(ratio.value > 0 and not ratio.at_least for ratio in report.ratios)
    assert len(report.seconds) == 9 and all(len(times) == 2 for times in report.seconds.values())
    report.write(tmp_path)
    assert "- command: python -m benchmarks steps-of-many\n" in (tmp_path / "steps-of-many.md").read_text()


@pytest.mark.nightly
def test_the_command(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "steps-of-many", "--quick", "--results", str(tmp_path)])
    monkeypatch.delitem(sys.modules, "benchmarks.__main__", raising=False)  # which another test may have imported
    runpy.run_module("benchmarks", run_name="__main__")
    assert "A step of many small tensors" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []  # a rehearsal writes nothing
