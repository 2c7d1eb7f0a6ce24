"""Specs: equal meanings have equal names, and everything that decides a result is part of the name."""

import dataclasses
import json

import pytest
import torch

from anchorhold.errors import ConfigurationError
from anchorhold.holds import Hold, register_hold
from anchorhold_lab.data import digits_dataset
from anchorhold_lab.experiments import Spec, paper_spec
from anchorhold_lab.experiments.specs.spec_fields import fields_of
from anchorhold_lab.scenarios import Samples, scenario_of
from anchorhold_lab.training.protocol import Settings


def test_the_id_is_the_same_in_every_process_and_version():
    """A change here orphans every stored result: raise the layout instead."""
    spec = Spec("split-digits", "SI", 2.0, seed=3, settings=Settings(epochs=4, batch_size=32), watch=("SOS", "EWC"))
    assert spec.id == "7e7886d576f4ad7f"


def test_what_is_left_out_is_what_is_usual():
    explicit = Spec(
        "permuted-mnist",
        "SI",
        1,
        measure_settings={"clamp": "task", "damping": 0.1},
        tasks=10,
        hidden=(2000, 2000),
        validation=0,
    )
    assert explicit == Spec("permuted-mnist", "SI", 1.0)
    assert explicit.id == Spec("permuted-mnist", "SI", 1.0).id
    assert hash(explicit) == hash(Spec("permuted-mnist", "SI", 1.0))


def test_two_names_of_one_measure_are_one_run():
    assert Spec("split-digits", "MAS", measure_settings={"dominant": True}).id == Spec("split-digits", "MASX").id
    assert Spec("split-digits", "SI", watch=("SOS", "EWC")).id == Spec("split-digits", "SI", watch=("EWC", "SOS")).id


def test_a_relative_strength_is_part_of_the_name_where_there_is_one():
    spec = Spec("split-digits", "SI", relative_strength=0.3, seed=3)
    assert spec.strength == 0 and spec.to_dict()["relative_strength"] == 0.3
    assert Spec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    assert fields_of(spec)["strength"] is None and fields_of(spec)["relative_strength"] == 0.3
    assert len({spec.id, Spec("split-digits", "SI", 0.0, seed=3).id, Spec("split-digits", "SI", seed=3).id}) == 3
    assert "relative_strength" not in Spec("split-digits", "SI").to_dict()
    assert paper_spec("split-digits", "SI", relative_strength=0.3).strength == 0
    assert paper_spec("permuted-mnist", "L2", relative_strength=0.3).relative_strength == 0.3  # no c is known there


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"strength": 2.0, "relative_strength": 1.0}, "expected one of both"),
        ({"relative_strength": 0.0}, "relative_strength=0.0: expected a number above 0"),
        ({"relative_strength": "1"}, "relative_strength='1': expected a number above 0"),
        ({"measure": "fine-tune", "relative_strength": 1.0}, "finds no importance"),
        ({"strength": {"*": 1.0}}, r"Guard\(strength=\{...\}\) alone takes them"),
    ],
)
def test_strengths_that_make_no_sense(change, said):
    with pytest.raises(ConfigurationError, match=said):
        Spec("split-digits", **change)


def test_usual_strengths_and_relative_ones_do_not_mix():
    with pytest.raises(ConfigurationError, match=r"strength=1.0 and relative_strength=2.0"):
        paper_spec("split-digits", "SI", strength=1.0, relative_strength=2.0)


@pytest.mark.parametrize(
    "change",
    [
        {"scenario": "permuted-digits", "hidden": (100, 100)},
        {"strength": 2.0},
        {"measure_settings": {"damping": 0.2}},
        {"watch": ("SOS",)},
        {"watch": ("EWC", "SIU"), "watch_settings": {"SIU": {"damping": 0.5}}},
        {"tasks": 4},
        {"hidden": (99,)},
        {"seed": 1},
        {"judge_by": "validation"},
        {"validation": 0.2},
        {"validation_seed": 1},
        {"precision": "tf32"},
        {"engine": "plain"},
        *(
            {"settings": dataclasses.replace(Settings(), **one)}
            for one in (
                {"epochs": 3},
                {"later_epochs": 3},
                {"batch_size": 3},
                {"optimizer": "sgd"},
                {"learning_rate": 0.1},
                {"momentum": 0.5},
                {"reinitialise": True},
                {"samples": 9},
            )
        ),
    ],
)
def test_every_field_changes_the_id(change):
    usual = {"scenario": "split-digits", "measure": "SI", "watch": ("EWC", "SIU")}
    assert Spec(**usual).id != Spec(**usual | change).id
    assert Spec(**usual | change).id == Spec(**usual | change).id


def test_a_spec_survives_json():
    spec = Spec("split-digits", "SOS", 0.1, {"alpha": "unbiased"}, watch=("SI",), watch_settings={"SI": {"damping": 1}})
    again = Spec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert again == spec and again.id == spec.id


def test_a_dictionary_with_a_key_too_few_or_too_many_is_refused():
    whole = Spec("split-digits").to_dict()
    lacking = {key: value for key, value in whole.items() if key != "seed"}
    with pytest.raises(ConfigurationError, match="lacks seed"):
        Spec.from_dict(lacking)
    with pytest.raises(ConfigurationError, match="unknown speed"):
        Spec.from_dict({**whole, "speed": 1})
    with pytest.raises(ConfigurationError, match="settings lacks epochs"):
        Spec.from_dict({**whole, "settings": {k: v for k, v in whole["settings"].items() if k != "epochs"}})
    with pytest.raises(ConfigurationError, match="layout 99"):
        Spec.from_dict({**lacking, "layout": 99})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"scenario": "mnist"},
            r"No scenario is called 'mnist'. Did you mean 'split-mnist'\? There are permuted-mnist",
        ),
        ({"measure": "XYZ"}, "No measure is called 'XYZ'"),
        ({"measure_settings": {"dampening": 1}}, "dampening"),
        ({"strength": -1}, "strength=-1"),
        ({"strength": float("nan")}, "strength=nan"),
        ({"strength": 1e39}, "strength=1e\\+39: expected a number from 0 to 1e38"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": True}, "seed=True"),
        ({"tasks": 6}, "tasks=6: expected 1 to 5 for split-digits"),
        ({"hidden": ()}, "hidden"),
        ({"hidden": (0,)}, "hidden"),
        ({"scenario": "split-cifar", "hidden": (10,)}, "paper's CNN"),
        ({"validation": 1.0}, "validation=1.0"),
        ({"judge_by": "validation", "validation": 0.0}, "nothing is kept back"),
        ({"judge_by": "train"}, "judge_by='train'"),
        ({"precision": "fp16"}, "precision='fp16'"),
        ({"engine": "slow"}, "engine='slow'"),
        ({"probes": ("paths",)}, "No probe is called 'paths'"),
        ({"probes": ("path", "path:4")}, "each of them once"),
        ({"watch": ("SI",)}, "name a measure twice"),
        ({"watch": ("SOS", "SOS")}, "name a measure twice"),
        ({"watch_settings": {"SOS": {}}}, "not watched"),
    ],
)
def test_specs_that_make_no_sense(wrong, message):
    with pytest.raises(ConfigurationError, match=message):
        Spec(**{"scenario": "split-digits", "measure": "SI", **wrong})


@pytest.mark.parametrize("make", [Spec, paper_spec])
def test_a_scenario_of_ones_own_is_told_where_it_belongs(make):
    own = scenario_of([(Samples(torch.zeros(4, 2), torch.zeros(4).long()),) * 2])
    with pytest.raises(
        ConfigurationError, match=r"^The scenario is a Scenario; expected a name, .*registered first"
    ) as error:
        make(own, "SI", strength=1.0)
    assert "tensor" not in str(error.value) and "docs/experiments.md" in str(error.value)


def test_a_measure_can_watch_twice_under_a_name_of_its_own():
    spec = Spec("split-digits", "SI", watch=("AF", "AF:few", "SI:other"), watch_settings={"AF:few": {"samples": 10}})
    watched = spec.make_watched()
    assert list(watched) == ["AF", "AF:few", "SI:other"]
    assert watched["AF:few"].samples == 10 and watched["AF"].samples is None
    assert Spec.from_dict(spec.to_dict()) == spec
    with pytest.raises(ConfigurationError, match="such as 'AF:again'"):
        Spec("split-digits", "SI", watch=("AF", "AF"))


class TestFormsAndHolds:
    """What is kept in another form, or held by more than the measure's own hold."""

    @staticmethod
    def hold():
        @register_hold("nudge")
        class Nudge(Hold):
            def __init__(self, strength=1.0, towards=0.0):
                super().__init__(strength)
                self.towards = towards

        return Nudge

    def test_the_usual_ones_are_left_out_of_the_name(self):
        usual = Spec("split-digits")
        assert Spec("split-digits", form="Diagonal", holds=(), hold_settings={}).id == usual.id
        assert not {"form", "holds"} & set(usual.to_dict())

    def test_others_are_in_it_and_come_back_from_a_file(self):
        self.hold()
        plain = Spec("split-digits", engine="plain")
        held = Spec("split-digits", engine="plain", holds=("Nudge",), hold_settings={"nudge": {"towards": 2.0}})
        assert held.holds == ("nudge",) and held.id != plain.id
        again = Spec.from_dict(json.loads(json.dumps(held.to_dict())))
        assert again == held and again.id == held.id
        (made,) = again.make_holds()
        assert made.towards == 2.0 and made is not again.make_holds()[0]
        assert fields_of(held)["holds"] == "nudge" and fields_of(held)["nudge.towards"] == 2.0

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"form": "diagnoal"}, r"No form is called 'diagnoal'\. Did you mean 'diagonal'"),
            ({"form_settings": {"rank": 3}}, "The form 'diagonal'.*rank"),
            ({"holds": ("nugde",)}, r"No hold is called 'nugde'\. Did you mean 'nudge'"),
            ({"holds": ("nudge", "nudge")}, "each of them once"),
            ({"hold_settings": {"nudge": {}}}, "hold_settings"),
            ({"holds": ("nudge",), "hold_settings": {"nudge": {"far": 1}}}, "The hold 'nudge'.*far"),
            ({"holds": ("nudge",), "engine": "fast"}, "expected engine='plain'"),
            (
                {"measure": "EWC", "form": "rotated", "form_settings": {"sums": "exact"}, "engine": "fast"},
                r"the form Rotated\(.*sums='exact'.*expected engine='plain'",
            ),
            ({"anchor": "first"}, "anchor='first': expected 'last'"),
            ({"gradient_term": True}, "gradient_term=True with anchor='last'"),
            (
                {"anchor": "mean", "gradient_term": True, "engine": "fast"},
                "gradient_term=True.*engine='plain'",
            ),
            (
                {"measure": "EWC", "anchor": "mean", "form": "rotated", "engine": "fast"},
                "anchor='mean'.*Rotated.*expected engine='plain'",
            ),
            ({"measure": "SI", "measure_settings": {"clamp": "total"}, "anchor": "mean"}, "anchor='mean' with SI"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, changes, message):
        self.hold()
        with pytest.raises(ConfigurationError, match=message):
            Spec("split-digits", **{"engine": "plain", **changes})

    def test_what_becomes_of_batch_norms_is_in_the_name_where_anything_does(self):
        usual = Spec("split-digits", "EWC", network="mlp-batch-norm")
        assert usual.batch_norm is None and "batch_norm" not in usual.to_dict()
        frozen = Spec("split-digits", "EWC", network="mlp-batch-norm", batch_norm="freeze")
        assert frozen.id != usual.id and fields_of(frozen)["batch_norm"] == "freeze"
        assert Spec.from_dict(json.loads(json.dumps(frozen.to_dict()))) == frozen
        assert paper_spec("split-digits", "EWC", batch_norm="fold").engine == "plain"
        assert paper_spec("split-digits", "EWC", batch_norm="freeze").engine == "fast"
        with pytest.raises(ConfigurationError, match="engine='fast' with batch_norm='fold'"):
            Spec("split-digits", "EWC", batch_norm="fold")
        with pytest.raises(ConfigurationError, match="batch_norm='thaw': expected 'freeze', 'fold' or None"):
            Spec("split-digits", "EWC", batch_norm="thaw")

    def test_the_paper_specs_engine_follows(self):
        self.hold()
        assert paper_spec("split-digits", "SI", holds=("nudge",)).engine == "plain"
        for name in ("diagonal", "Rotated", "kronecker"):
            assert paper_spec("split-digits", "EWC", form=name).engine == "fast"
        assert paper_spec("split-digits", "EWC", form="rotated", form_settings={"sums": "exact"}).engine == "plain"
        assert paper_spec("split-digits", "EWC", anchor="mean").engine == "fast"
        for leaning in ({"gradient_term": True}, {"form": "rotated"}):
            assert paper_spec("split-digits", "EWC", anchor="mean", **leaning).engine == "plain"

    def test_whether_it_is_implicit_is_in_the_name_unless_it_is_not(self):
        usual = Spec("split-digits", "EWC")
        assert Spec("split-digits", "EWC", implicit=False).id == usual.id and "implicit" not in usual.to_dict()
        implicit = Spec("split-digits", "EWC", implicit=True)
        assert implicit.id != usual.id
        assert Spec.from_dict(json.loads(json.dumps(implicit.to_dict()))) == implicit
        assert paper_spec("split-digits", "EWC", implicit=True).engine == "fast"
        assert paper_spec("split-digits", "EWC", implicit=True, form="rotated", optimizer="sgd").engine == "fast"
        assert paper_spec("split-digits", "EWC", implicit=True, form="lowrank", optimizer="sgd").engine == "plain"
        with pytest.raises(ConfigurationError, match="with optimizer='adam', which moves each weight by a rate of its"):
            Spec("split-digits", "EWC", form="rotated", implicit=True, engine="plain")
        with pytest.raises(ConfigurationError, match="implicit=1: expected True or False"):
            Spec("split-digits", "EWC", implicit=1)
        with pytest.raises(ConfigurationError, match="implicit=True with batch_norm='fold'"):
            Spec("split-digits", "EWC", implicit=True, batch_norm="fold", engine="plain")

    def test_where_it_is_centred_is_in_the_name_unless_it_is_usual(self):
        usual = Spec("split-digits", "EWC", engine="plain")
        assert Spec("split-digits", "EWC", engine="plain", anchor="last", gradient_term=False).id == usual.id
        assert not {"anchor", "gradient_term"} & set(usual.to_dict())
        mean = Spec("split-digits", "EWC", engine="plain", anchor="mean")
        sola = Spec("split-digits", "EWC", engine="plain", anchor="mean", gradient_term=True)
        assert len({usual.id, mean.id, sola.id}) == 3
        again = Spec.from_dict(json.loads(json.dumps(sola.to_dict())))
        assert again == sola and fields_of(again)["anchor"] == "mean" and fields_of(again)["gradient_term"] is True


def test_a_tolerance_comes_with_kept_samples_and_the_plain_engine_and_is_left_out_of_other_names():
    spec = paper_spec("permuted-mnist", "SI", tolerance=0.1, seed=3)
    assert (spec.strength, spec.kept, spec.engine, spec.settings.reinitialise) == (0.0, 300, "plain", False)
    assert paper_spec("permuted-mnist", "SI", tolerance=0.1, seed=3, kept=300) == spec
    assert Spec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    followed = dataclasses.replace(spec, tolerance_settings={"aim": 2.0})
    assert followed.make_tolerance().aim == 2.0 and fields_of(followed)["tolerance.aim"] == 2.0
    assert Spec.from_dict(json.loads(json.dumps(followed.to_dict()))) == followed
    assert fields_of(spec)["strength"] is None
    names = {
        each.id for each in (spec, followed, dataclasses.replace(spec, kept=200), paper_spec("permuted-mnist", "SI"))
    }
    assert len(names) == 4
    usual = Spec("split-digits", "SI").to_dict()
    assert not {"tolerance", "tolerance_settings", "kept"} & set(usual)
    watching = Spec("split-digits", "SI", kept=40)
    assert watching.engine == "fast" and watching.to_dict()["kept"] == 40


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tolerance": 0.0}, "nats above 0"),
        ({"tolerance": float("nan")}, "nats above 0"),
        ({"tolerance": 0.1, "strength": 2.0}, "strength=2.0 and tolerance=0.1: expected one of both"),
        ({"tolerance": 0.1, "relative_strength": 2.0}, "relative_strength=2.0 and tolerance=0.1"),
        ({"tolerance": 0.1, "engine": "fast"}, "engine='fast' with tolerance=0.1"),
        ({"tolerance": 0.1, "measure": "fine-tune"}, "which finds no importance whose strength could follow it"),
        ({"tolerance": 0.1, "anchor": "mean"}, "Take anchor='last'"),
        ({"tolerance": 0.1, "batch_norm": "fold"}, "Take batch_norm='freeze'"),
        ({"tolerance": 0.1, "tolerance_settings": {"aims": 2}}, "expected settings of anchorhold.Tolerance"),
        ({"tolerance": 0.1, "tolerance_settings": {"aim": 0.5}}, "aim=0.5: expected a number of at least 1"),
        ({"tolerance_settings": {"aim": 2}}, "without a tolerance"),
        ({"kept": -1}, "kept=-1: expected a whole number"),
        ({"kept": True}, "kept=True: expected a whole number"),
        ({"measure": "fine-tune", "kept": 10, "settings": Settings(trains="anew")}, "by which nothing is to be kept"),
    ],
)
def test_tolerances_and_kept_samples_that_make_no_sense(change, said):
    with pytest.raises(ConfigurationError, match=said):
        Spec("permuted-digits", **{"measure": "EWC", "engine": "plain"} | change)


def test_kept_samples_are_set_aside_in_the_scenario_of_a_spec():
    data = {"digits": digits_dataset()}
    whole, aside = (Spec("split-digits", "SI", kept=kept).make_scenario(data) for kept in (0, 40))
    assert not whole.keeps and aside.keeps
    for task, before in zip(aside.tasks, whole.tasks, strict=True):
        assert len(task.stored_train) == len(before.stored_train) - 40


def test_a_tolerance_is_shared_out_over_tasks_and_needs_their_ends():
    with pytest.raises(ConfigurationError, match=r"tolerance=0.1 with consolidate=50.*Expected consolidate='tasks'"):
        paper_spec("permuted-digits", "EWC", tolerance=0.1, consolidate=50)
