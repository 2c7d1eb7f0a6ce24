"""Sums, signs and correlations, against numpy on all weights at once."""

import itertools

import numpy as np
import pytest
import torch

from anchorhold_lab.analysis import weight_rows
from anchorhold_lab.analysis.weight_rows import before_rescaling, joined, pieces_of_rows
from anchorhold_lab.training.plain_run import PlainRun
from tests.lab.analysis.helpers import observed_learner
from tests.lab.training.helpers import finish

PATHS = ("SI", "SIU", "SIB")


def row(values, learner):
    return torch.cat([values[name].flatten() for name in learner.guard.parameters]).numpy()


def pairs(rows, kept=slice(None)):
    return {f"{a}|{b}": np.corrcoef(rows[a][kept], rows[b][kept])[0, 1] for a, b in itertools.combinations(rows, 2)}


@pytest.mark.parametrize("piece", [7, 2**17])
@pytest.mark.parametrize("driver", ["SI", "SOS", "EWC"])
def test_every_entry_against_numpy(driver, piece, monkeypatch):
    monkeypatch.setattr(weight_rows, "_PIECE", piece)
    learner = finish(
        PlainRun(observed_learner("importances", measure=driver, watch=("SI", "SIU", "SIB", "SOS", "MAS")))
    )
    learner = learner.learner
    found = learner.observers["witness"].found
    entries = learner.observations["importances"]["tasks"]
    assert len(entries) == len(found) == 3
    for entry, task in zip(entries, found, strict=True):
        order = list(learner.guard.measures)
        assert order[0] == driver
        after = {name: row(task[name].importance, learner) for name in order}
        before = {name: row(task[name].raw, learner) if name in PATHS else after[name] for name in order}
        assert entry["weights"] == len(after[driver]) == 70
        assert entry["sums"] == pytest.approx({name: values.sum() for name, values in after.items()})
        assert entry["raw_sums"] == pytest.approx({name: values.sum() for name, values in before.items()})
        assert entry["negative"] == {name: (values < 0).mean() for name, values in before.items()}
        assert entry["correlations"]["after"] == pytest.approx(pairs(after))
        assert entry["correlations"]["before"] == pytest.approx(pairs(before))
        for share, removed in (("0.05", 4), ("0.01", 1)):
            kept = np.sort(np.argsort(before["SIU"])[:-removed])
            assert entry["without_top"][share] == pytest.approx(pairs(before, kept))


def test_si_is_siu_and_its_bias():
    engine = finish(PlainRun(observed_learner("importances")))
    for entry in engine.observations[0]["importances"]["tasks"]:
        sums = entry["raw_sums"]
        assert sums["SI"] == pytest.approx(sums["SIU"] + sums["SIB"])
        assert entry["negative"]["SIU"] > 0
        assert entry["negative"]["SOS"] == 0


def test_without_siu_there_is_no_top_to_remove():
    engine = finish(PlainRun(observed_learner("importances", watch=("SOS",))))
    entry = engine.observations[0]["importances"]["tasks"][0]
    assert "without_top" not in entry
    assert list(entry["correlations"]["after"]) == ["SI|SOS"]


def test_sos_enters_with_its_root_before_rescaling_too():
    """The paper rescales SI, SIU and SIB, "but not SOS"; v itself is what SOS accumulates, not what it is."""
    learner = finish(PlainRun(observed_learner())).learner
    found = learner.observers["witness"].found[0]
    before = before_rescaling(learner, found)
    assert torch.equal(joined(before["SOS"]), joined(found["SOS"].importance))
    assert not torch.equal(joined(before["SI"]), joined(found["SI"].importance))


def test_measures_that_list_parameters_in_another_order():
    learner = finish(PlainRun(observed_learner())).learner
    found = learner.observers["witness"].found[0]
    expected = {name: joined(values) for name, values in before_rescaling(learner, found).items()}
    for task in found.values():
        task.importance = dict(reversed(task.importance.items()))
    for name, values in before_rescaling(learner, found).items():
        assert torch.equal(joined(values), expected[name])


def test_a_parameter_that_took_no_step_has_no_path():
    learner = finish(PlainRun(observed_learner())).learner
    found = learner.observers["witness"].found[0]
    del found["SI"].raw["body.0.bias"]
    assert not before_rescaling(learner, found)["SI"]["body.0.bias"].any()


def test_pieces_join_to_the_whole(monkeypatch):
    monkeypatch.setattr(weight_rows, "_PIECE", 4)
    rows = [{"a": torch.randn(3, 5), "b": torch.randn(()), "c": torch.randn(4)} for _ in range(2)]
    whole = torch.stack([joined(each) for each in rows]).double()
    kept = torch.arange(whole.shape[1]) % 3 != 1
    assert torch.equal(torch.cat(list(pieces_of_rows(rows)), 1), whole)
    assert torch.equal(torch.cat(list(pieces_of_rows(rows, kept)), 1), whole[:, kept])
