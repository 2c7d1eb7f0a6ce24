"""A billion parameters at the size of a thousand: every case of the forms runs, and keeps what it said it would."""

import importlib
import sys

import pytest
import torch

pytest.importorskip("transformers")

from benchmarks.gpu import billion, billion_forms

CPU = torch.device("cpu")


@pytest.mark.nightly
def test_every_form_holds_a_step_and_keeps_what_was_told_before():
    *_, report = billion_forms.with_16_bit_weights(None, CPU, True)
    names = billion_forms.cases(16)
    assert list(report.seconds) == list(names)
    found = {ratio.name: ratio for ratio in report.ratios}
    state = {case: found[f"state, {case}"].value for case in names if case != "unprotected"}
    assert state["kronecker16"] < state["rotated16"] < state["rotated, 32 bits"] / 1.9
    assert found["state, rotated16"].met and found["step, rotated16 / unprotected"].target == 1.25


def test_a_cost_that_is_not_what_is_kept_is_refused():
    loop = billion.loop(billion.SMALL, torch.float32, billion_forms.cases(32)["kronecker16"], CPU)
    loop.state += 1
    with pytest.raises(AssertionError, match=r"bytes, and .* are kept"):
        billion_forms._compare(None, "kronecker16", loop, loop)


def test_factors_are_measured_also_in_turns():
    *_, report = billion_forms.factors(None, CPU, True)
    assert list(report.seconds)[-1] == "in turns" and len(report.seconds) == 4
    assert all("passes" in note for note in report.notes[1:])


def test_what_a_model_would_take_is_known_without_its_weights():
    absent, present = billion.decoder(billion.SMALL, "meta"), billion.decoder(billion.SMALL, "cpu")
    for made in list(billion_forms.cases(16).values())[1:]:
        there, here = made(absent).cost(), made(present).cost()
        assert (there.kept, there.measuring, there.multiplications) == (here.kept, here.measuring, here.multiplications)


def test_a_report_is_shown_with_torch_alone(monkeypatch, capsys):
    for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.delitem(sys.modules, "benchmarks.harness")
    harness = importlib.import_module("benchmarks.harness")
    harness.Report("steps", "Steps", ["A note."], {"one": [0.5]}).show()
    assert "| one | 0.500 s | 0.500 s | 0.500 s |" in capsys.readouterr().out
