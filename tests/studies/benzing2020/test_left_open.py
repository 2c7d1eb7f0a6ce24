"""What was left open: the runs that decide it, and that they are what the authors' scripts have."""

import pytest

from studies.benzing2020 import ITEMS
from studies.benzing2020.claims.left_open.predictions import loses_more, small_tasks
from studies.benzing2020.claims.left_open.undecided import by_seed
from studies.benzing2020.needed_runs import FROM_DATA, accuracy_runs, runs_at_their_rate, second_runs, unclamped_runs
from studies.benzing2020.presets import PAPER


def test_the_authors_measures_are_not_clamped_and_have_their_damping():
    spec = unclamped_runs(PAPER, "CIFAR")[0]
    assert {name for name in spec.watch if name.endswith(":unclamped")} == {
        "SI:unclamped",
        "SIU:unclamped",
        "SIB:unclamped",
    }
    for name in ("SI:unclamped", "SIU:unclamped", "SIB:unclamped"):
        assert dict(spec.watch_settings[name]) == {"damping": 0.001, "clamp": "total"}
    assert spec.measure_settings["clamp"] == "task" and spec.strength == 5.0  # what protects is the paper's
    assert "MASX-logits" in unclamped_runs(PAPER, "P-MNIST")[0].watch
    assert {spec.settings.learning_rate for spec in runs_at_their_rate(PAPER)} == {0.004}


def test_other_seeds_are_none_of_the_first_ones():
    first, second = accuracy_runs(PAPER, "CIFAR", "EWC"), second_runs(PAPER, "EWC")
    assert [spec.seed for spec in first + second] == list(range(20))
    assert len({spec.id for spec in first + second}) == 20


def test_two_orders_and_two_sizes():
    easy, hard = (PAPER.spec("CIFAR", "SOS", f"{which} first") for which in ("easy", "hard"))
    assert easy.order == hard.order[::-1] and hard.order[0] == 0  # CIFAR-10
    assert (easy.strength, easy.settings) == (500.0, PAPER.spec("CIFAR", "SOS").settings)
    sizes = PAPER.stages["P-MNIST"].variants["unequal sizes"]["sizes"]
    assert small_tasks(PAPER.spec("P-MNIST", "SI", sizes=sizes)) == [1, 3, 5, 7, 9]


@pytest.mark.nightly
def test_what_real_runs_say_of_it(results):
    for half in (False, True):
        means = by_seed(results, half)
        rows = [
            second_runs(results.preset, n) if half else accuracy_runs(results.preset, "CIFAR", n) for n in FROM_DATA
        ]
        runs = [results.finished([row[0]])[0].average_accuracy for row in rows]
        assert next(iter(means.values())) == pytest.approx(100 * sum(runs) / 4)
    assert loses_more("SGD")(results)[0].seeds == 2
    curves = ITEMS["authors-figure1"].draw(results)[0].data.rows
    assert {row[1] for row in curves} >= {"SI", "SIU", "full gradient", "decrease in loss"}
