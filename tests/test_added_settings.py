"""Settings that come later: runs keep their names, and what was saved before them still loads."""

import dataclasses
from pathlib import Path
from typing import ClassVar

import pytest
import torch

import anchorhold
from anchorhold.errors import ConfigurationError, StateError
from anchorhold.settings import added, changed, check_fields, defaults_at_first, written
from anchorhold_lab.experiments import Store, paper_spec
from anchorhold_lab.experiments.specs.spec import Spec
from anchorhold_lab.experiments.specs.spec_fields import fields_of
from anchorhold_lab.training import Settings

PUBLISHED = Path(__file__).parents[1] / "results" / "paper" / "store"


@dataclasses.dataclass(frozen=True)
class _First(anchorhold.measures.WeightMeasure):
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
    return anchorhold.Guard(torch.nn.Linear(2, 2), measure)


def test_an_added_setting_is_written_only_where_it_is_not_its_default():
    assert written(_Second()) == {"share": 0.1}
    assert written(_Second(floor=1.0)) == {"share": 0.1, "floor": 1.0}


def test_a_setting_that_was_there_at_first_is_always_written():
    assert written(_First()) == {"share": 0.1}
    later = {"trains", "second_batch", "consolidate", "rate_decay", "compress"}
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
    store = Store(PUBLISHED)
    entries = store.entries()
    assert len(entries) > 300
    for entry in entries:  # which has compared the name with what the spec's own hash is
        assert not entry.damage and entry.spec is not None, entry.damage
        assert entry.spec.id == entry.id
        assert entry.spec.to_dict() == store.files.read(entry.id, "spec.json")


def test_a_setting_whose_default_has_changed_is_always_written():
    @dataclasses.dataclass(frozen=True)
    class Changed:
        share: float = changed(0.2, at_first=0.1)

    @dataclasses.dataclass(frozen=True)
    class OfItsOwn(Changed):
        share: float = 0.3

    class SetByItself(Changed):
        def __init__(self):
            super().__init__(0.4)

    assert written(Changed()) == {"share": 0.2} and written(Changed(0.1)) == {"share": 0.1}
    assert defaults_at_first(Changed) == {"share": 0.1}
    for other in (OfItsOwn, SetByItself, int, Changed()):
        assert defaults_at_first(other) == {}


NAMED_BEFORE = {
    "rotated": ("371a6f7f79180bd0", "a19d8552dc4aa56d"),
    "kronecker": ("8fe696b8d465aa12", "a01adf40046aa4b0"),
    "rotated16": ("78fcd676259096e8", "2725b2a6cac2d801"),
    "kronecker16": ("84db76be01358439", "d1f41f4cbeca83f3"),
}
"""The names that runs had, without a word of damping and with none said, when forms had none by default."""


@pytest.mark.parametrize("form", NAMED_BEFORE)
def test_a_run_that_was_named_before_forms_were_damped_is_still_without(form):
    unsaid, none = (
        Spec("permuted-digits", "EWC", form=form, form_settings=said, engine="plain") for said in ({}, {"damping": 0.0})
    )
    assert (unsaid.id, none.id) == NAMED_BEFORE[form]
    assert unsaid.make_form() == none.make_form() == type(none.make_form())(damping=0.0)
    assert Spec.from_dict(unsaid.to_dict()).make_form().damping == fields_of(unsaid)["form.damping"] == 0.0
    new = paper_spec("permuted-digits", "EWC", form=form)
    assert dict(new.form_settings) == {"damping": 0.001} and new.make_form() == type(new.make_form())()
    again = paper_spec("permuted-digits", "EWC", form=form, form_settings={"damping": None, "rank": 3})
    assert dict(again.form_settings) == {"rank": 3} and again.make_form().damping == 0.0
