"""Settings that come later: runs keep their names, and what was saved before them still loads."""

import dataclasses
import json
from pathlib import Path
from typing import ClassVar

import pytest
import torch

import holdfast
from holdfast.errors import ConfigurationError, StateError
from holdfast.lab.experiments import Store
from holdfast.lab.experiments.specs.spec import Spec
from holdfast.lab.training import Settings
from holdfast.settings import added, check_fields, written

PUBLISHED = Path(__file__).parents[1] / "results" / "paper" / "store"


@dataclasses.dataclass(frozen=True)
class _First(holdfast.WeightMeasure):
    share: float = 0.1

    choose_when: ClassVar[str] = ""

    @property
    def name(self):
        return "share"

    def settings(self):
        return {**super().settings(), "kind": "Share"}

    def importance(self, parameter):
        return torch.full_like(parameter, self.share)


@dataclasses.dataclass(frozen=True)
class _Second(_First):
    floor: float = added(0.0)


def guard_of(measure):
    torch.manual_seed(0)
    return holdfast.Consolidator(torch.nn.Linear(2, 2), measure)


def test_an_added_setting_is_written_only_where_it_is_not_its_default():
    assert written(_Second()) == {"share": 0.1}
    assert written(_Second(floor=1.0)) == {"share": 0.1, "floor": 1.0}


def test_a_setting_that_was_there_at_first_is_always_written():
    assert written(_First()) == {"share": 0.1}
    later = {"trains", "second_batch", "consolidate", "rate_decay"}
    assert written(Settings()) == {k: v for k, v in dataclasses.asdict(Settings()).items() if k not in later}


def test_what_is_absent_is_refused_unless_it_was_added():
    check_fields({"share": 0.1}, _Second, "It")
    check_fields({"share": 0.1, "floor": 0.0}, _Second, "It")
    with pytest.raises(ConfigurationError, match="It lacks share"):
        check_fields({"floor": 0.0}, _Second, "It")
    with pytest.raises(ConfigurationError, match="an unknown ceiling"):
        check_fields({"share": 0.1, "ceiling": 0.0}, _Second, "It")


def test_a_state_from_before_a_setting_loads_while_the_setting_has_its_default(tmp_path):
    old = guard_of(_First())
    old.consolidate()
    old.save(tmp_path / "state")
    new = guard_of(_Second())
    new.load(tmp_path / "state")
    assert new.tasks == 1
    new.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "state").read_bytes()
    with pytest.raises(StateError, match="floor"):
        guard_of(_Second(floor=1.0)).load(tmp_path / "state")


def test_a_run_keeps_its_name_while_an_added_setting_has_its_default(monkeypatch):
    @dataclasses.dataclass(frozen=True)
    class Extended(Settings):
        warm_up: int = added(0)

    before = Spec("split-digits")
    same, other = (dataclasses.replace(before, settings=Extended(warm_up=steps)) for steps in (0, 5))
    assert same.id == before.id and same.to_dict() == before.to_dict()
    assert other.id != before.id


def test_the_published_runs_keep_their_names():
    entries = Store(PUBLISHED).entries()
    assert len(entries) > 300
    for entry in entries:  # which has compared the name with what the spec's own hash is
        assert not entry.damage and entry.spec is not None, entry.damage
        assert entry.spec.id == entry.id
        assert entry.spec.to_dict() == json.loads((PUBLISHED / "runs" / entry.id / "spec.json").read_text())
