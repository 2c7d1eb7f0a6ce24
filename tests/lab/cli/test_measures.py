import json

import anchorhold
from anchorhold_lab.cli.commands.measures import choose_when, cost_of


def test_every_measure_is_listed_with_its_advice(call):
    shown = call("measures")
    assert shown.exit_code == 0
    for name, measure in anchorhold.measures.default_measures().items():
        assert name in shown.stdout
        assert choose_when(name, measure)[:40] in shown.stdout


def test_every_measure_has_advice_of_its_own():
    advice = [choose_when(name, measure) for name, measure in anchorhold.measures.default_measures().items()]
    assert len(set(advice)) == len(advice)


def test_nothing_is_left_of_how_documentation_is_typeset(call):
    for name in anchorhold.measures.default_measures():
        shown = call("measures", name).stdout.replace("*positions", "")
        assert not set("\\`*{}") & set(shown), shown


def test_json_is_one_object_a_measure(call):
    found = [json.loads(line) for line in call("measures", "--json").stdout.splitlines()]
    assert [entry["name"] for entry in found] == list(anchorhold.measures.default_measures())
    (si,) = [entry for entry in found if entry["name"] == "SI"]
    assert si["class"] == "SI" and si["settings"] == {"damping": 0.1, "clamp": "task"}


def test_one_measure_is_shown_with_the_meaning_of_its_settings(call):
    shown = call("measures", "ewc").stdout
    assert "EWC: anchorhold.Fisher" in shown
    assert "the seed of drawn labels" in shown  # from the docstring of the class that it derives from
    assert "``" not in shown


def test_a_measure_without_settings_is_shown(call):
    assert "fine-tune" in call("measures", "fine-tune").stdout


def test_every_setting_has_a_meaning(call):
    for name, measure in anchorhold.measures.default_measures().items():
        lines = call("measures", name).stdout.splitlines()
        for setting, value in measure.settings().items():
            if setting != "kind":
                (line,) = [line for line in lines if line.startswith(f"{setting} ")]
                assert len(line.split(maxsplit=2)) == 3, (name, setting, value)


def test_costs_tell_what_is_done_beyond_training():
    assert cost_of(anchorhold.SI()) == "none"
    assert cost_of(anchorhold.SIU()) == "a second batch a step"
    assert cost_of(anchorhold.SOS(alpha="unbiased")) == "a second batch a step"
    assert cost_of(anchorhold.Fisher()) == "a pass a task and label"
    assert cost_of(anchorhold.Fisher(labels="sampled")) == "a pass a task"
    assert cost_of(anchorhold.MAS()) == "a pass a task"
    assert cost_of(anchorhold.L2()) == "none"


def test_an_unknown_measure_is_a_mistake(call):
    shown = call("measures", "EWD")
    assert shown.exit_code == 2
    assert "Did you mean 'EWC'?" in shown.stderr
    assert shown.stdout == ""
