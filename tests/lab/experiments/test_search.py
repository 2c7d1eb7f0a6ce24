"""The search: a grid that extends itself, chosen by validation data alone, and everything in the store."""

import math
import statistics
from functools import partial

import pytest

from anchorhold.errors import ConfigurationError, DamagedError
from anchorhold_lab.experiments import RunStarted, Store, Summary, execute, paper_spec, search
from anchorhold_lab.experiments.strengths.strength_search import FINALISTS, SEARCH_SEEDS
from tests.lab.experiments.helpers import StopAfter, result_of

TINY = {"hidden": (30,), "epochs": 1, "tasks": 2, "batch_size": 128}
WILD = {**TINY, "optimizer": "sgd", "learning_rate": 0.1}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


class Recording:
    """Makes runs, and remembers which it was asked for, round by round."""

    def __init__(self, run=execute):
        self.rounds = []
        self.run = run

    def __call__(self, specs, store):
        self.rounds.append(list(specs))
        return self.run(specs, store)


def of_accuracy(accuracy):
    """Return what makes runs without training, whose accuracy is told by strength, re-initialisation and seed."""

    def run(specs, store):
        for spec in specs:
            claim = store.claim(spec)
            claim.finish(result_of(spec, accuracy(spec.strength, spec.settings.reinitialise, spec.seed)))
            claim.release()
        return Summary()

    return run


def refuse(specs, store):
    """Ask for the runs that would be made, and make none."""
    raise AssertionError(f"{len(specs)} runs were asked for")


def strengths(outcome, reinitialise=False):
    return [point.strength for point in outcome.points if point.reinitialise == reinitialise]


def test_the_best_on_validation_data_is_chosen_and_tested_with_fresh_seeds(store):
    recording = Recording()
    options = {"low": 10, "high": 50, "seeds": (0, 1), "search_seeds": (1000,)}
    found = search("permuted-digits", "SI", store, run=recording, **options, **TINY)
    *searched, tested = recording.rounds
    assert {spec.judge_by for specs in searched for spec in specs} == {"validation"}
    assert {spec.seed for specs in searched for spec in specs} == {1000}
    # Runs of our own, without the search, and judged as it should judge.
    own = {
        (point.strength, point.reinitialise): execute(
            [
                paper_spec(
                    "permuted-digits",
                    "SI",
                    seed=1000,
                    strength=point.strength,
                    reinitialise=point.reinitialise,
                    judge_by="validation",
                    **TINY,
                )
            ],
            Store(store.folder / "own"),
        )
        .finished[0]
        .average_accuracy
        for point in found.points
    }
    assert {(point.strength, point.reinitialise): point.accuracy for point in found.points} == own
    best = max(own, key=own.get)
    assert (found.choice.strength, found.choice.reinitialise) == best
    expected = [
        paper_spec("permuted-digits", "SI", seed=seed, strength=best[0], reinitialise=best[1], **TINY)
        for seed in (0, 1)
    ]
    assert tested == expected
    assert {spec.judge_by for spec in tested} == {"test"}
    assert found.test.accuracies == tuple(store.get(spec.id).average_accuracy for spec in expected)
    assert str(found.choice) in found.why and found.stopped is None


def test_both_re_initialisations_are_searched_and_the_second_call_costs_nothing(store):
    found = search("permuted-digits", "SI", store, low=10, high=20, seeds=(0,), **TINY)
    assert {10, 20} <= set(strengths(found)) and {10, 20} <= set(strengths(found, reinitialise=True))
    assert search("permuted-digits", "SI", store, low=10, high=20, seeds=(0,), run=refuse, **TINY) == found
    alone = search("permuted-digits", "SI", store, low=10, high=20, seeds=(0,), reinitialise=False, run=execute, **TINY)
    assert strengths(alone) == strengths(found) and strengths(alone, reinitialise=True) == []


def test_a_coarse_search_begins_with_every_third_strength_and_looks_closely_around_the_best(store):
    recording = Recording(of_accuracy(lambda strength, reinitialise, seed: 0.9 - abs(math.log10(strength / 20)) / 10))
    options = {"low": 1, "high": 1000, "coarse": True, "reinitialise": False, "search_seeds": (1000,)}
    found = search("permuted-digits", "EWC", store, run=recording, **options, **TINY)
    first, second, tested = ([spec.strength for spec in specs] for specs in recording.rounds)
    assert first == [1, 10, 100, 1000] and second == [2, 5, 20, 50]
    assert found.choice.strength == 20 and set(tested) == {20}


def test_the_finalists_and_only_they_are_repeated_with_the_other_seeds(store):
    recording = Recording()
    found = search("permuted-digits", "SI", store, low=10, high=20, seeds=(0,), run=recording, **TINY)
    *walked, repeated, tested = recording.rounds
    assert {spec.seed for specs in walked for spec in specs} == {1000}
    assert {spec.judge_by for spec in repeated} == {"validation"} and {spec.seed for spec in tested} == {0}
    by_the_first = sorted(found.points, key=lambda p: (-round(p.accuracies[0], 9), p.strength, p.reinitialise))
    expected = {(p.strength, p.reinitialise, seed) for p in by_the_first[:FINALISTS] for seed in (1001, 1002)}
    asked = [(spec.strength, spec.settings.reinitialise, spec.seed) for spec in repeated]
    assert len(found.points) > FINALISTS and len(asked) == len(expected) == 8 and set(asked) == expected
    for place, point in enumerate(by_the_first):
        runs = [
            paper_spec(
                "permuted-digits",
                "SI",
                seed=seed,
                strength=point.strength,
                reinitialise=point.reinitialise,
                judge_by="validation",
                **TINY,
            )
            for seed in SEARCH_SEEDS[: point.seeds]
        ]
        assert point.seeds == (3 if place < FINALISTS else 1)
        assert point.accuracies == tuple(store.get(spec).average_accuracy for spec in runs)
        assert math.isfinite(point.error) == (point.seeds > 1)
    assert found.choice == min(by_the_first[:FINALISTS], key=lambda point: point.rank)


def test_the_choice_is_the_best_mean_and_not_the_best_of_the_first_seed(store):
    accuracies = {  # with seeds 1000, 1001 and 1002
        (1, False): (0.5,),
        (2, False): (0.8, 0.8, 0.9),
        (5, False): (0.9, 0.6, 0.6),
        (10, False): (0.6,),
        (1, True): (0.4,),
        (2, True): (0.7, 0.85, 0.85),
        (5, True): (0.85, 0.7, 0.75),
        (10, True): (0.3,),
    }

    def accuracy(strength, reinitialise, seed):
        return 0.77 if seed < 1000 else accuracies[strength, reinitialise][seed - 1000]

    options = {"low": 1, "high": 10, "seeds": (0, 1), **TINY}
    found = search("permuted-digits", "SI", store, run=of_accuracy(accuracy), **options)
    assert {(p.strength, p.reinitialise): p.accuracies for p in found.points} == accuracies
    assert (found.choice.strength, found.choice.reinitialise) == (2, False)
    assert found.choice.accuracy == pytest.approx(statistics.mean(accuracies[2, False]))
    assert found.why == (
        "c = 2 without re-initialisation is the best of 8 points, by the mean over 3 seeds of the 4 that did best with "
        "the first."
    )
    assert found.test.accuracies == (0.77, 0.77)
    assert search("permuted-digits", "SI", store, run=refuse, **options) == found
    first = search("permuted-digits", "SI", store, run=of_accuracy(accuracy), search_seeds=(1000,), **options)
    assert (first.choice.strength, first.choice.reinitialise) == (5, False)
    assert first.why == "c = 5 without re-initialisation is the best of 8 points."


@pytest.mark.parametrize(
    ("low", "high", "first_best", "then_best", "where"),
    [
        (1, 5, 2, 5, "the upper end of the grid:"),
        (1, 5, 2, 1, "the lower end of the grid:"),
        (1, 1, 5, 10, "the upper end of the grid, which was extended by 1 decade:"),
    ],
)
def test_an_end_that_only_the_other_seeds_prefer_is_named(store, low, high, first_best, then_best, where):
    """The grid is not extended once more for them."""

    def accuracy(strength, reinitialise, seed):
        best = first_best if seed == 1000 else then_best
        return 0.9 - 0.1 * abs(math.log10(strength / best))

    recording = Recording(of_accuracy(accuracy))
    options = {"low": low, "high": high, "reinitialise": False, "seeds": (0,), **TINY}
    found = search("permuted-digits", "SI", store, run=recording, search_seeds=range(1000, 1005), **options)
    assert found.choice.strength == then_best
    assert f"It lies at {where} search from there on" in found.why
    *_, repeated, tested = recording.rounds
    assert {spec.seed for spec in repeated} == {1001, 1002, 1003, 1004} and {spec.seed for spec in tested} == {0}


def test_a_damaged_run_is_named_and_not_made_again(store):
    options = {"low": 10, "high": 20, "reinitialise": False, "seeds": (0,), **TINY}
    found = search("permuted-digits", "SI", store, run=of_accuracy(lambda c, *_: 0.5 + 0.01 * (c == 10)), **options)
    assert found.choice.strength == 10
    path = next(store.folder.glob("runs/*/result.json"))
    path.write_text("{")
    with pytest.raises(DamagedError, match="Restore or remove it"):
        search("permuted-digits", "SI", store, run=refuse, **options)
    assert path.read_text() == "{"


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.5), (200, 500)])
def test_the_grid_is_extended_to_either_side_until_the_best_has_neighbours(store, low, high):
    """Accuracy rises from 0.2 to about 10, and falls from there on."""
    recording = Recording()
    changes = {**TINY, "epochs": 3, "tasks": 3, "search_seeds": (1000,)}
    found = search(
        "permuted-digits", "SI", store, low=low, high=high, reinitialise=False, seeds=(0,), run=recording, **changes
    )
    assert [spec.strength for spec in recording.rounds[0]] == [low, high]
    assert len(recording.rounds) == 4  # it is extended twice, and then tested
    tried = strengths(found)
    assert tried[0] < found.choice.strength < tried[-1]
    assert 0.5 < found.choice.strength < 200
    assert "end of the grid" not in found.why


def test_a_tie_is_the_smaller_strength_and_the_extension_has_a_limit(store):
    """Strengths around 1e-10 hold nothing, so all do equally well."""
    found = search("permuted-digits", "SI", store, low=1e-10, high=1e-10, reinitialise=False, seeds=(0,), **TINY)
    assert len({point.accuracies[0] for point in found.points}) == 1
    assert [point.strength for point in found.points if point.seeds == 3] == strengths(found)[:FINALISTS]
    assert found.choice.strength == strengths(found)[0] == 1e-13
    assert strengths(found)[-1] == 1e-9
    assert "lower end of the grid, which was extended by 3 decades" in found.why


def test_what_diverges_counts_as_worst(store):
    """SGD with a strength of 1e7 takes the weights beyond what a float can hold, once there is something to hold."""
    found = search("permuted-digits", "L2", store, low=0.01, high=1e7, reinitialise=False, seeds=(0,), **WILD)
    diverged = [point for point in found.points if point.failed]
    assert diverged and max(point.strength for point in diverged) == 1e7
    assert found.choice.failed == 0
    assert found.choice.accuracy == max(point.accuracy for point in found.points if point.seeds == 3)
    assert found.test.failed == 0
    assert all(point.accuracies == (None,) for point in diverged)


def test_where_everything_diverges_nothing_is_chosen(store):
    changes = {**WILD, "learning_rate": 1e30}
    found = search("permuted-digits", "SI", store, low=1, high=1, reinitialise=False, **changes)
    assert (found.choice, found.test, found.stopped) == (None, None, None)
    assert "failed. The loss is" in found.why
    assert strengths(found)[0] == 0.001  # smaller strengths were tried, as far as it goes


@pytest.mark.parametrize("where", ["the first run", "the first round", "a later round", "the repetitions", "the test"])
def test_a_search_that_was_interrupted_goes_on_to_the_same_outcome(store, tmp_path, where):
    options = {"low": 1, "high": 5, "reinitialise": False, "seeds": (0, 1), "search_seeds": (1000, 1001), **TINY}
    whole = search("permuted-digits", "SI", Store(tmp_path / "whole"), **options)
    assert len(whole.points) > 3  # so that there is a later round
    judged = len(whole.points) + FINALISTS
    done = {"the first run": 0, "the first round": 1, "a later round": 3, "the repetitions": len(whole.points) + 1}.get(
        where, judged
    )
    stop = StopAfter(4 * done + 2)  # progress is told after the epoch and the end of each of two tasks
    stopped = search("permuted-digits", "SI", store, run=partial(execute, on_event=stop.on_event, stop=stop), **options)
    assert stopped.stopped == "interrupted" and stopped.test is None
    assert stopped.choice == (whole.choice if where == "the test" else None)
    assert ("while it repeated the best 4" in stopped.why) == (where == "the repetitions")
    assert len(store.results()) == sum(point.seeds for point in stopped.points) == done
    assert {(p.strength, p.accuracies[0]) for p in stopped.points} <= {
        (p.strength, p.accuracies[0]) for p in whole.points
    }
    events = []
    found = search("permuted-digits", "SI", store, run=partial(execute, on_event=events.append), **options)
    assert found == whole
    begun = [event.resumed for event in events if isinstance(event, RunStarted)]
    assert begun == [True] + [False] * (judged + 2 - done - 1)


def test_the_strengths_of_a_grid_train_side_by_side(store):
    options = {"low": 5, "high": 20, "reinitialise": False, "seeds": (0,), **TINY}
    search("permuted-digits", "SI", store, run=partial(execute, side_by_side=3), **options)
    together = {result.spec.strength: result.side_by_side for result in store.results() if result.spec.seed == 1000}
    assert [together[strength] for strength in (5, 10, 20)] == [3, 3, 3]


def test_runs_that_another_process_makes_are_waited_for(store):
    spec = paper_spec(
        "permuted-digits", "SI", seed=1000, strength=20.0, reinitialise=False, judge_by="validation", **TINY
    )
    claim = store.claim(spec)
    options = {"low": 10, "high": 20, "reinitialise": False, "seeds": (0,)}
    found = search("permuted-digits", "SI", store, **options, **TINY)
    assert (found.stopped, found.choice, strengths(found)) == ("waiting", None, [10])
    claim.release()
    assert search("permuted-digits", "SI", store, **options, **TINY).stopped is None


class MeanKey:
    """Remembers what it is asked for, and stops."""

    def __call__(self, specs, store):
        self.strengths = sorted({spec.strength for spec in specs})
        self.reinitialise = {spec.settings.reinitialise for spec in specs}
        return Summary(interrupted=True)


@pytest.mark.parametrize(
    ("measure", "options", "expected"),
    [
        ("SI", {}, [0.02, 0.05, 0.1, 0.2, 0.5, 1, 2]),
        ("SI", {"batch_size": 2048}, [0.1, 0.2, 0.5, 1, 2, 5, 10]),
        ("SI", {"low": 0.5}, [0.5, 1, 2]),
        ("SI", {"low": 5}, [5]),
        ("SI", {"high": 0.05}, [0.02, 0.05]),
        ("L2", {}, [0.001, 0.01, 0.1, 1, 10, 100, 1000]),
        ("L2", {"low": 1, "high": 2}, [1, 2]),
    ],
)
def test_where_the_grid_begins(store, measure, options, expected):
    """Around the paper's strength, or, where it gives none, with powers of ten."""
    asked = MeanKey()
    assert search("permuted-mnist", measure, store, run=asked, **options).stopped == "interrupted"
    assert asked.strengths == expected
    assert asked.reinitialise == {False, True}


@pytest.mark.parametrize(
    ("measure", "options", "message"),
    [
        ("fine-tune", {}, "fine-tune has no strength to search for"),
        ("SI", {"strength": 1.0}, "strength, which it decides itself"),
        ("SI", {"judge_by": "test"}, "judge_by, which it decides itself"),
        ("SI", {"low": 2, "high": 1}, "the smaller one first"),
        ("SI", {"seeds": (1, 2), "search_seeds": (2, 3)}, "none in both"),
        ("SI", {"search_seeds": ()}, "one or more of each"),
        ("SI", {"validation": 0.0}, "nothing is kept back"),
        ("SI", {"colour": "red"}, "colour"),
        ("nothing", {}, "nothing"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(store, measure, options, message):
    with pytest.raises(ConfigurationError, match=message):
        search("permuted-digits", measure, store, run=refuse, **options)
    assert store.ids() == []


def test_a_search_over_relative_strengths(store):
    def run(specs, store):
        assert all(spec.strength == 0 for spec in specs)
        return of_relative(specs, store)

    def of_relative(specs, store):
        for spec in specs:
            claim = store.claim(spec)
            claim.finish(result_of(spec, 0.9 - abs(math.log10(spec.relative_strength / 0.02)) / 10))
            claim.release()
        return Summary()

    found = search("permuted-digits", "EWC", store, relative=True, reinitialise=False, run=run, **TINY)
    assert found.choice.strength == 0.02 and found.choice.relative
    assert found.why.startswith("s = 0.02 without re-initialisation is the best of")
    assert {point.strength for point in found.points} >= {0.0001, 0.001, 0.01, 0.1, 1.0, 10.0}
    assert found.test.to_dict()["relative_strength"] == 0.02 and "strength" not in found.test.to_dict()


def test_a_tolerance_has_no_strength_to_be_searched_for(store):
    with pytest.raises(ConfigurationError, match="search was given tolerance, which it decides itself"):
        search("permuted-digits", "EWC", store, tolerance=0.1, **TINY)
