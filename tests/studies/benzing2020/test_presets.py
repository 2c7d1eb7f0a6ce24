import dataclasses

import pytest

from anchorhold.errors import ConfigurationError
from anchorhold_lab.experiments import SCENARIOS, paper_spec
from studies.benzing2020.presets import DIGITS, PAPER, PRESETS, Chosen
from tests.studies.benzing2020.tiny import FOUND, with_unknown_strength


def test_the_paper_preset_is_the_papers_protocol():
    assert PAPER.spec("P-MNIST", "SI", seed=2) == paper_spec("permuted-mnist", "SI", seed=2, precision="bf16")
    assert PAPER.spec("CIFAR", "EWC") == paper_spec("split-cifar", "EWC", precision="bf16")
    assert [PAPER.stages[benchmark].seeds for benchmark in ("P-MNIST", "CIFAR")] == [3, 10]
    assert (PAPER.repetitions, PAPER.logits_seeds) == (5, 10)


def test_large_batches_have_the_papers_own_strengths_rates_and_epochs():
    mnist, cifar = (PAPER.spec(benchmark, "SOS", "large batch") for benchmark in ("P-MNIST", "CIFAR"))
    assert (mnist.strength, mnist.settings.batch_size, mnist.settings.learning_rate) == (10.0, 2048, 0.008)
    assert (cifar.strength, cifar.settings.learning_rate, cifar.settings.later_epochs) == (2000.0, 0.001, 600)
    assert mnist.measure_settings["alpha"] == cifar.measure_settings["alpha"] == 1.0
    assert PAPER.spec("CIFAR", "SOS", "large batch, α = 0").measure_settings["alpha"] == 0.0


def test_the_controls_differ_from_si_in_regularisation_alone():
    usual, free, kept = (PAPER.spec("CIFAR", "SI", variant) for variant in ("usual", "c = 0", "no re-init"))
    assert (usual.strength, usual.settings.reinitialise) == (5.0, True)
    assert (free.strength, free.settings) == (0.0, usual.settings)
    assert (kept.strength, kept.settings.reinitialise) == (0.5, False)


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_a_large_batch_is_eight_times_the_usual_one(preset):
    for benchmark in preset.stages:
        usual, large = (preset.spec(benchmark, "SI", variant) for variant in ("usual", "large batch"))
        assert large.settings.batch_size == 8 * usual.settings.batch_size


def with_strengths(preset, strength=7.0):
    """Return the preset with a strength for each form that it would search for."""
    for benchmark, stage in preset.stages.items():
        for measure, variant in stage.searched:
            preset = preset.with_choice(benchmark, measure, variant, Chosen(strength, reinitialise=False))
    return preset


def test_beyond_the_diagonal_runs_are_the_papers_but_for_form_samples_and_re_initialisation():
    preset = with_strengths(PAPER)
    usual = {"strength": 7.0, "reinitialise": False, "precision": "bf16"}
    rotated = {"form": "rotated", "form_settings": {"precision": "tf32", "damping": 0.001}}
    for benchmark, scenario, samples in (("P-MNIST", "permuted-mnist", 10_000), ("CIFAR", "split-cifar", 5000)):
        assert preset.spec(benchmark, "EWC", "diagonal") == paper_spec(scenario, "EWC", samples=samples, **usual)
        expected = paper_spec(scenario, "EWC", samples=samples, **usual, **rotated)
        assert preset.spec(benchmark, "EWC", "rotated") == expected
    fifty = preset.spec("P-MNIST", "EWC", "Kronecker, many tasks")
    assert (fifty.form, dict(fifty.form_settings), fifty.tasks, fifty.hidden) == (
        "kronecker",
        {"damping": 0.001},
        50,
        (100, 100),
    )
    assert fifty.engine == "fast" and not fifty.settings.reinitialise
    assert (PAPER.seeds("P-MNIST", "EWC", "rotated"), PAPER.seeds("P-MNIST", "EWC", "rotated, all samples")) == (5, 3)
    assert PAPER.seeds("CIFAR", "EWC", "rotated") == 10 and PAPER.seeds("P-MNIST", "EWC") == 3


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_every_form_has_a_diagonal_beside_it_that_differs_in_form_and_strength_alone(preset):
    known = with_strengths(preset)
    for benchmark, stage in known.stages.items():
        for variant in stage.variants:
            if variant.startswith(("rotated", "Kronecker")):
                kind, *rest = variant.removesuffix(", damped").split(", ")
                form, control = (known.spec(benchmark, "EWC", v) for v in (variant, ", ".join(["diagonal", *rest])))
                assert form.form == kind.lower() and control.form == "diagonal"
                alike = dataclasses.replace(form, form="diagonal", form_settings={}, strength=control.strength)
                assert alike == control


def test_the_digits_need_no_download():
    assert {SCENARIOS[stage.scenario].datasets for stage in DIGITS.stages.values()} == {("digits",)}
    assert not any(stage.searched for stage in DIGITS.stages.values())


def test_a_strength_that_nobody_knows_is_asked_for_and_then_used():
    preset = with_unknown_strength()
    assert not preset.is_known("P-MNIST", "L2") and preset.is_known("P-MNIST", "SI")
    with pytest.raises(ConfigurationError, match=r"L2 on P-MNIST.*search for it first"):
        preset.spec("P-MNIST", "L2")
    found = preset.with_choice("P-MNIST", "L2", "usual", FOUND)
    assert found.is_known("P-MNIST", "L2")
    assert found.spec("P-MNIST", "L2").strength == FOUND.strength
    assert not preset.is_known("P-MNIST", "L2")


def test_a_run_is_made_once_and_anew_where_a_choice_has_changed_it():
    preset = with_unknown_strength()
    si, sos = (preset.spec("P-MNIST", measure, seed=1) for measure in ("SI", "SOS"))
    watched = preset.spec("P-MNIST", "SI", seed=1, watch=["SOS"], watch_settings={"SOS": {"alpha": 0.5}})
    assert preset.spec("P-MNIST", "SI", seed=1) is si
    assert preset.spec("P-MNIST", "SI", seed=1, watch=("SOS",), watch_settings={"SOS": {"alpha": 0.5}}) is watched
    others = (
        preset.spec("P-MNIST", "SI", seed=2),
        preset.spec("P-MNIST", "SI", "long training", seed=1),
        preset.spec("CIFAR", "SI", seed=1),
        watched,
        preset.spec("P-MNIST", "SI", seed=1, watch=("SOS",), watch_settings={"SOS": {"alpha": 0.2}}),
    )
    assert len({si, *others}) == 6
    chosen = preset.with_choice("P-MNIST", "SOS", "usual", FOUND)
    assert chosen.spec("P-MNIST", "SI", seed=1) is si
    assert chosen.spec("P-MNIST", "SOS", seed=1).strength == FOUND.strength != sos.strength
    assert preset.spec("P-MNIST", "SOS", seed=1) is sos


def test_what_is_chosen_for_a_measure_can_hold_settings_of_its_own():
    chosen = Chosen(3.0, reinitialise=True, settings={"alpha": 0.5})
    spec = with_unknown_strength().with_choice("CIFAR", "SOS", "usual", chosen).spec("CIFAR", "SOS")
    assert (spec.strength, spec.settings.reinitialise, spec.measure_settings["alpha"]) == (3.0, True, 0.5)
