"""What α is for: cells that differ in one thing each, and a rule that says which of them it is."""

import dataclasses

import pytest

from anchorhold_lab.analysis import Estimate
from anchorhold_lab.experiments import Store, execute
from studies.benzing2020 import ITEMS
from studies.benzing2020.algorithms import WINDOWS
from studies.benzing2020.claims.left_open.window import finding
from studies.benzing2020.findings import NotMeasuredError, Results
from studies.benzing2020.needed_runs import AVERAGES, reading_runs, watched_average
from studies.benzing2020.presets import DIGITS, PAPER, Chosen, SearchPlan
from studies.benzing2020.presets.window_variants import CELLS
from studies.benzing2020.searched_strengths import find_strengths
from tests.studies.benzing2020.tiny import tiny_preset

LONG = {"with α": 97.0, "without α": 96.0}
NAMES = {
    "with α": "SOS(2048), long window",
    "without α": "SOS(2048, α=0)",
    "tied": "SOS(2048), tied window, α = 0",
    "tied, α": "SOS(2048), tied window",
    "skipped": "SOS(2048), first steps left out, α = 0",
    "short": "SOS(2048), short window, α = 0",
    "other, α": "SOS(2048), another rate",
    "other": "SOS(2048), another rate, α = 0",
}


class Made:
    """Accuracies that were made up, each with an error of 0.1."""

    preset = DIGITS

    def __init__(self, **means):
        self.means = {NAMES[name]: mean for name, mean in means.items()}

    def accuracy(self, benchmark, algorithm):
        if algorithm not in self.means:
            raise NotMeasuredError(f"no run of {algorithm}")
        return Estimate(self.means[algorithm], 0.1, 3)


def cells(gain=1.0, *, tied=0.0, skipped=0.0, short=0.0, beyond=0.0, elsewhere=1.0):
    return Made(
        **{
            "with α": 96.0 + gain,
            "without α": 96.0,
            "tied": 96.0 + tied,
            "tied, α": 96.0 + tied + beyond,
            "skipped": 96.0 + skipped,
            "short": 96.0 + short,
            "other, α": 90.0 + elsewhere,
            "other": 90.0,
        }
    )


@pytest.mark.parametrize(
    ("made", "verdict"),
    [
        (cells(tied=0.9), "the window"),
        (cells(skipped=0.9), "the window"),
        (cells(tied=-3.5, skipped=-4.4, short=0.9), "the window"),
        (cells(tied=-3.5, skipped=-4.4, short=1.6), "the window: a shorter one without α keeps more than α"),
        (cells(tied=0.4, beyond=0.6), "noise"),  # above what chance does, but less than half of what α does
        (cells(tied=0.6, beyond=0.6), "the window and noise"),
        (cells(tied=0.2, beyond=0.2), "neither the window nor noise"),  # within two errors
        (cells(tied=0.9, elsewhere=0.0), "the window, at the paper's rate alone"),
        (cells(tied=0.9, elsewhere=0.8), "the window"),
        (cells(gain=0.2, elsewhere=0.1), "nothing"),
        (cells(gain=0.2, elsewhere=1.0), "something at the other rate alone"),
    ],
)
def test_the_rule_says_what_it_is(made, verdict):
    assert finding(made, "P-MNIST").verdict == verdict


def test_a_cell_that_is_missing_is_named_and_nothing_is_decided():
    made = cells(tied=0.9)
    del made.means[NAMES["tied, α"]]
    with pytest.raises(NotMeasuredError, match="tied window"):
        finding(made, "P-MNIST")


def test_cells_differ_from_sos_2048_in_what_they_are_called_for_alone():
    preset = PAPER
    for cell in CELLS:
        for benchmark in preset.stages:
            preset = preset.with_choice(benchmark, "SOS", cell, Chosen(10.0, reinitialise=True))
    usual = preset.spec("P-MNIST", "SOS", "large batch")
    settings = {"beta2": 0.999, "normalise": False, "alpha": 1.0, "batch_size": None}
    assert dict(usual.measure_settings) == settings
    for cell, changed, rate in (
        ("large batch, tied window", {"window": 0.1, "normalise": True}, 0.008),
        ("large batch, short window, α = 0", {"beta2": 0.97, "alpha": 0.0}, 0.008),
        ("large batch, first steps left out, α = 0", {"skip": 50, "alpha": 0.0}, 0.008),
        ("large batch, another rate", {}, 0.001),
    ):
        spec = preset.spec("P-MNIST", "SOS", cell)
        assert dict(spec.measure_settings) == settings | changed
        slowed = dataclasses.replace(usual.settings, learning_rate=rate)
        assert dataclasses.replace(spec, measure_settings=usual.measure_settings) == dataclasses.replace(
            usual, settings=slowed
        )
        assert spec.engine == "fast"


def test_a_cells_strength_is_searched_for_and_all_of_it_is_read_off_in_one_run(tmp_path):
    searched = {("SOS", "large batch, tied window, α = 0"): SearchPlan(1.0, 2.0, seeds=(1000,))}
    preset = tiny_preset(searched=searched, chosen={})
    asked = []

    def run(specs, store):
        asked.extend(specs)
        return execute(specs, store, device="cpu")

    tied = dataclasses.replace(WINDOWS[0], benchmarks=("P-MNIST",))
    preset, damaged = find_strengths(preset, [tied], Store(tmp_path), run)
    assert not damaged and preset.is_known("P-MNIST", tied.measure, tied.variant)
    assert {spec.judge_by for spec in asked} == {"validation", "test"}
    assert all(dict(spec.measure_settings)["window"] == 0.3 for spec in asked)
    spec = reading_runs(tiny_preset(), "P-MNIST", "another rate")[0]
    watched = {watched_average(average, alpha) for average in AVERAGES for alpha in (0.0, 1.0)}
    assert {spec.measure, *spec.watch} == {*watched, "sqrtFisher"} and spec.tasks == 1


def test_the_item_says_what_is_missing(nothing):
    text = ITEMS["window-cifar"].draw(Results(nothing.store, nothing.preset))[0].text
    assert text.startswith("What α is for on Split digits. Not measured yet: no run of SOS(2048) on CIFAR")
