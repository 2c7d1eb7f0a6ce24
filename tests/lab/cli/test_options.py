import pytest

from anchorhold.errors import ConfigurationError
from anchorhold_lab.cli.options import form_and_holds, seeds_of, settings_of_measures, specs_of, widths_of
from anchorhold_lab.experiments import paper_spec


def specs(
    scenario="permuted-digits",
    measures=("SI",),
    seeds=(0,),
    strengths=(),
    assignments=(),
    watch=(),
    relative_strengths=(),
    **changes,
):
    return specs_of(
        scenario,
        measures=measures,
        seeds=seeds,
        strengths=strengths,
        relative_strengths=relative_strengths,
        watch=watch,
        assignments=assignments,
        changes=changes,
    )


def test_what_is_left_out_is_as_in_the_paper():
    assert specs("permuted-mnist", ["SI", "SOS"], [0, 1], epochs=None, strength=None) == [
        paper_spec("permuted-mnist", measure, seed=seed) for measure in ("SI", "SOS") for seed in (0, 1)
    ]


def test_large_batches_are_as_in_the_paper_too():
    (spec,) = specs("split-cifar", ["SOS"], batch_size=2048)
    assert (spec.strength, spec.settings.later_epochs) == (2000.0, 600)


def test_epochs_are_those_of_all_tasks():
    (spec,) = specs("split-cifar", ["SOS"], batch_size=2048, epochs=3)
    assert (spec.settings.epochs, spec.settings.later_epochs) == (3, None)
    (spec,) = specs("split-cifar", ["SOS"], batch_size=2048, epochs=3, later_epochs=4)
    assert (spec.settings.epochs, spec.settings.later_epochs) == (3, 4)


def test_names_are_found_however_they_are_typed():
    (spec,) = specs("Permuted_Digits", ["si"])
    assert (spec.scenario, spec.measure) == ("permuted-digits", "SI")


def test_a_measure_named_twice_runs_once():
    assert len(specs(measures=["SI", "si"])) == 1


def test_a_measure_that_protects_is_not_watched_as_well():
    first, second = specs(measures=["SI", "SOS"], watch=["SOS", "EWC"])
    assert (first.watch, second.watch) == (("EWC", "SOS"), ("EWC",))


def test_settings_reach_the_measures_that_are_meant():
    (spec,) = specs(measures=["SI"], watch=["SIU"], assignments=["damping=0.5", "SIU.damping=0.25", "si.clamp=total"])
    assert dict(spec.measure_settings) == {"damping": 0.5, "clamp": "total"}
    assert spec.watch_settings["SIU"]["damping"] == 0.25


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("none", None), ("2.5", 2.5)],
)
def test_values_are_read_as_numbers_where_they_are(text, value):
    found = settings_of_measures([f"samples={text}"], ["EWC"], [])
    assert found == {"EWC": {"samples": value}}
    assert type(found["EWC"]["samples"]) is type(value)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("damping", "expected NAME=VALUE"),
        ("=3", "expected NAME=VALUE"),
        ("damping=", "expected NAME=VALUE"),
        ("dampng=3", "No setting of SI is called 'dampng'. Did you mean 'damping'"),
        ("EWC.samples=3", "No chosen measure is called 'EWC'"),
        ("damping=-1", "damping=-1"),
        ("damping=abc", r"--set damping=abc: SI takes another kind of value there, such as its usual 0\.1"),
    ],
)
def test_settings_that_make_no_sense(assignment, message):
    with pytest.raises(ConfigurationError, match=message):
        specs(assignments=[assignment])


def test_truth_values_are_told_from_words():
    assert settings_of_measures(["normalise=False"], ["SOS"], []) == {"SOS": {"normalise": False}}
    assert settings_of_measures(["alpha=unbiased"], ["SOS"], []) == {"SOS": {"alpha": "unbiased"}}
    with pytest.raises(ConfigurationError, match="such as its usual True"):
        settings_of_measures(["normalise=maybe"], ["SOS"], [])


def test_several_settings_of_one_measure():
    (spec,) = specs(measures=["SOS"], assignments=["alpha=unbiased", "batch_size=8"])
    assert (spec.measure_settings["alpha"], spec.measure_settings["batch_size"]) == ("unbiased", 8)


def test_a_strength_is_for_the_measure_that_protects():
    found = specs(measures=["SI", "fine-tune"], strengths=["5"])
    assert [spec.strength for spec in found] == [5.0, 0.0]
    found = specs(measures=["SI", "MAS", "SOS"], strengths=["si=5", "MAS=20"])
    assert [spec.strength for spec in found] == [5.0, 20.0, paper_spec("permuted-digits", "SOS").strength]


@pytest.mark.parametrize(
    ("measures", "strength", "message"),
    [
        (["SI", "MAS"], "5", "different sizes; expected one for each, such as -c SI=5 -c MAS=5"),
        (["fine-tune"], "5", "protects nothing"),
        (["SI", "fine-tune"], "fine-tune=5", "protects nothing"),
        (["SI"], "much", "expected a number, or MEASURE=NUMBER"),
        (["SI"], "EWC=5", "No chosen measure is called 'EWC'"),
    ],
)
def test_strengths_that_make_no_sense(measures, strength, message):
    with pytest.raises(ConfigurationError, match=message):
        specs(measures=measures, strengths=[strength])


@pytest.mark.parametrize("strengths", [["1", "2"], ["SI=1", "SI=2"], ["1", "si=2"]])
def test_a_strength_that_is_given_twice(strengths):
    with pytest.raises(
        ConfigurationError, match=r"2: SI has one already, 1; expected one for each .*`anchorhold-lab search`"
    ):
        specs(measures=["SI"], strengths=strengths)


def test_momentum_is_for_sgd():
    assert specs(optimizer="sgd", momentum=0.5)[0].settings.momentum == 0.5
    with pytest.raises(ConfigurationError, match="Adam has none; expected --optimizer sgd"):
        specs(momentum=0.5)


def test_a_measure_without_settings_says_so():
    with pytest.raises(ConfigurationError, match="fine-tune has no settings"):
        specs(measures=["fine-tune"], assignments=["damping=3"])


def test_widths():
    assert widths_of(None) is None
    assert widths_of("100, 50") == (100, 50)
    for wrong in ("", "100,", "a", "0", "-5", "1.5"):
        with pytest.raises(ConfigurationError, match="such as 100,100"):
            widths_of(wrong)


def test_seeds():
    assert seeds_of(None, ()) == [0]
    assert seeds_of(3, ()) == [0, 1, 2]
    assert seeds_of(None, [4, 2, 4]) == [4, 2]
    with pytest.raises(ConfigurationError, match="one or the other"):
        seeds_of(3, [4])


def test_validation_keeps_samples_back():
    (spec,) = specs(judge_by="validation")
    assert (spec.judge_by, spec.validation) == ("validation", 0.1)


def test_relative_strengths_go_by_measure_too():
    first, second, third = specs(
        measures=["SI", "EWC", "fine-tune"], strengths=["EWC=5"], relative_strengths=["si=0.3"]
    )
    assert (first.relative_strength, second.relative_strength, third.relative_strength) == (0.3, None, None)
    assert (first.strength, second.strength) == (0.0, 5.0)
    (alone,) = specs(relative_strengths=["0.3"])
    assert alone == paper_spec("permuted-digits", "SI", relative_strength=0.3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"strengths": ["5"], "relative_strengths": ["0.3"]}, "--strength and --relative-strength for SI"),
        ({"relative_strengths": ["a"]}, "--relative-strength a: expected a number"),
        ({"measures": ["fine-tune"], "relative_strengths": ["2"]}, "fine-tune protects nothing"),
        (
            {"measures": ["SI", "SOS"], "relative_strengths": ["2"]},
            "--relative-strength SI=2 --relative-strength SOS=2",
        ),
        ({"assignments": ["relative_strength=2"]}, "expected --relative-strength 2"),
        ({"assignments": ["SI.strength=2"]}, "expected --strength SI=2"),
        ({"assignments": ["replay.share=0.5"]}, "replay is a hold, .* expected --hold replay beside it"),
        ({"assignments": ["distillation.strength=0.5"]}, "expected --hold distillation beside it"),
    ],
)
def test_strengths_and_holds_in_the_wrong_place(given, message):
    with pytest.raises(ConfigurationError, match=message):
        specs(**given)


def test_a_tolerance_is_for_what_protects_and_all_runs_learn_from_the_same_samples():
    first, second = specs(measures=["EWC", "fine-tune"], tolerance=0.1, tolerance_settings={"aim": 2.0})
    assert first == paper_spec("permuted-digits", "EWC", tolerance=0.1, tolerance_settings={"aim": 2.0})
    assert second == paper_spec("permuted-digits", "fine-tune", kept=300)
    assert [spec.kept for spec in specs(measures=["EWC", "fine-tune"], tolerance=0.1, kept=50)] == [50, 50]
    beside = form_and_holds(None, (), ["tolerance.aim=2", "damping=0.1"], tolerance=0.1)
    assert beside.fields == {"tolerance": 0.1, "tolerance_settings": {"aim": 2}} and beside.left == ["damping=0.1"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tolerance": 0.1, "strengths": ["5"]}, "--tolerance 0.1 beside a strength for SI: expected one or the other"),
        ({"tolerance": 0.1, "relative_strengths": ["5"]}, "--tolerance 0.1 beside a strength for SI"),
        ({"tolerance": 0.1, "measures": ["fine-tune"]}, "fine-tune protects nothing; try --kept"),
        ({"tolerance": 0.1, "kept": 0}, "--tolerance 0.1 --kept 0: a tolerance is measured on kept samples"),
        ({"assignments": ["tolerance=2"]}, "expected --tolerance 2"),
        ({"assignments": ["tolerance.aim=2"]}, "expected --tolerance NATS beside it"),
    ],
)
def test_tolerances_that_make_no_sense(given, message):
    with pytest.raises(ConfigurationError, match=message):
        specs(**given)
