"""Scenarios of one's own, from the decorator to the result of a run."""

import pytest
import torch

from anchorhold.errors import ConfigurationError
from anchorhold_lab.data.locations import Datasets
from anchorhold_lab.experiments import SCENARIOS, Spec, execute, paper_spec, register_scenario, search
from anchorhold_lab.experiments.running.step_counts import StepCounts
from anchorhold_lab.networks import register_network
from anchorhold_lab.scenarios import Samples, Scenario, Task, scenario_of
from anchorhold_lab.training import Settings
from tests.lab.experiments.helpers import same_result

QUICK = {"epochs": 1, "batch_size": 20, "hidden": (8,)}


def points(shift, count, generator=None):
    x = torch.randn(count, 2, generator=generator) + shift
    return Samples(x, (x[:, 0] > shift).long())


def blobs(tasks, seed):
    generator = torch.Generator().manual_seed(seed)
    return scenario_of([(points(i, 60, generator), points(i, 30, generator)) for i in range(tasks)])


def fixed():
    generator = torch.Generator().manual_seed(0)
    return scenario_of([(points(i, 60, generator), points(i, 30, generator)) for i in range(3)])


@pytest.fixture
def registered():
    return register_scenario("blobs", tasks=3)(blobs)


def test_the_smallest_use(registered, tmp_path):
    assert registered is blobs
    spec = paper_spec("Blobs", "SI", strength=2.0, **QUICK)
    assert (spec.scenario, spec.tasks, spec.validation, spec.source) == ("blobs", 3, 0.0, None)
    assert Spec("blobs").hidden == (100, 100) and Spec("blobs").settings == Settings()
    (result,) = execute(spec, tmp_path).finished
    assert len(result.matrix) == 3 and result.spec == spec


def test_what_it_is_given_is_what_its_arguments_name():
    seen = []

    @register_scenario("all", tasks=2, datasets=("digits",), validation=0.25)
    def everything(datasets, tasks, seed, validation, validation_seed):
        seen.append((list(datasets), tasks, seed, validation, validation_seed))
        pair = (datasets["digits"].train.pixels.flatten(1).float(), datasets["digits"].train.labels)
        return scenario_of([(pair, pair)] * tasks, validation=validation, validation_seed=validation_seed)

    made = Spec("all", seed=7, validation_seed=5).make_scenario(Datasets())
    assert seen == [(["digits"], 2, 7, 0.25, 5)]
    assert len(made.tasks[0].validation) == round(0.25 * 1438)


def test_the_seed_decides_what_is_drawn(registered):
    first, again, other = (Spec("blobs", seed=seed).make_scenario({}) for seed in (1, 1, 2))
    assert torch.equal(first.tasks[2].train.x, again.tasks[2].train.x)
    assert not torch.equal(first.tasks[2].train.x, other.tasks[2].train.x)
    assert SCENARIOS["blobs"].seeded


def test_samples_are_kept_back_for_a_function_that_does_not_do_it_itself(registered):
    made = Spec("blobs", judge_by="validation").make_scenario({})
    assert [(len(task.train), len(task.validation), len(task.test)) for task in made.tasks] == [(54, 6, 30)] * 3
    whole = Spec("blobs").make_scenario({}).tasks[0].train.x
    assert {tuple(row) for part in ("train", "validation") for row in getattr(made.tasks[0], part).x.tolist()} == {
        tuple(row) for row in whole.tolist()
    }


def test_samples_that_tasks_share_are_still_shared():
    @register_scenario("shared", tasks=2)
    def shared():
        train, test = points(0, 40), points(0, 20)
        return Scenario("shared", tuple(Task(name, train, test) for name in ("a", "b")), 2)

    first, second = Spec("shared", validation=0.5).make_scenario({}).tasks
    assert first.stored_train is second.stored_train and first.stored_validation is second.stored_validation
    assert len(first.stored_train) == len(first.stored_validation) == 20


def test_a_function_that_keeps_samples_back_unasked_is_refused():
    @register_scenario("greedy", tasks=1)
    def greedy():
        return scenario_of([(points(0, 40), points(0, 20))], validation=0.5)

    with pytest.raises(ConfigurationError, match="keeps samples back by itself"):
        Spec("greedy").make_scenario({})


def test_without_a_number_of_tasks_the_first_few_can_be_asked_for():
    register_scenario("fixed", tasks=3)(fixed)
    kind = SCENARIOS["fixed"]
    assert kind.possible_tasks == range(1, 4) and not kind.seeded
    few, all_of_them = (Spec("fixed", tasks=tasks).make_scenario({}) for tasks in (2, 3))
    assert (len(few), few.heads, len(all_of_them)) == (2, 2, 3)
    assert torch.equal(few.tasks[1].train.x, all_of_them.tasks[1].train.x)
    with pytest.raises(ConfigurationError, match="tasks=4: expected 1 to 3 for fixed"):
        Spec("fixed", tasks=4)


def test_usual_settings_and_strengths_are_its_own(registered):
    usual = Settings(epochs=3, batch_size=20, reinitialise=True)
    register_scenario("mine", tasks=2, settings=usual, strengths={"si": 4, "EWC": 50.0}, hidden=(9,))(blobs)
    spec = paper_spec("mine", "SI")
    assert (spec.settings, spec.strength, spec.hidden) == (usual, 4, (9,))
    assert dict(spec.measure_settings) == {"damping": 0.1, "clamp": "task"}
    assert paper_spec("mine", "fine-tune").strength == 0
    assert paper_spec("mine", "SOS", strength=1.0, epochs=1).settings == Settings(1, None, 20, reinitialise=True)
    assert not paper_spec("mine", "SI", reinitialise=False).settings.reinitialise
    with pytest.raises(ConfigurationError, match="No strength is known for 'MAS' on 'mine'"):
        paper_spec("mine", "MAS")


def test_a_network_of_ones_own_can_be_the_usual_one():
    @register_network("own")
    def own(scenario):
        raise AssertionError

    register_scenario("mine", tasks=2, network="Own")(blobs)
    assert Spec("mine").hidden is None and Spec("mine", network="own") == Spec("mine")
    assert Spec("mine", network="mlp", hidden=(3,)).network == "mlp"


def test_runs_that_differ_in_the_seed_train_side_by_side_on_tasks_of_their_own(registered, tmp_path):
    specs = [paper_spec("blobs", "SI", seed=seed, strength=1.0, **QUICK) for seed in range(2)]
    together = execute(specs, tmp_path / "together", side_by_side=2).finished
    alone = execute(specs, tmp_path / "alone").finished
    assert [result.side_by_side for result in together] == [2, 2]
    assert [result.matrix for result in together] == [result.matrix for result in alone]
    assert together[0].matrix != together[1].matrix


def test_the_same_run_again_is_the_same_result(registered, tmp_path):
    spec = paper_spec("blobs", "EWC", strength=10.0, **QUICK)
    first, second = (execute(spec, tmp_path / name).finished[0] for name in "ab")
    assert same_result(first, second)


def test_a_search(registered, tmp_path):
    found = search("blobs", "L2", tmp_path, low=0.1, high=0.1, reinitialise=False, search_seeds=[9], seeds=[0], **QUICK)
    assert found.choice is not None and found.test is not None


def test_steps_are_counted_by_the_tasks_themselves(tmp_path):
    @register_scenario("growing", tasks=2)
    def growing(tasks, seed):
        return scenario_of([(points(i, 20 * (1 + seed + i)), points(i, 10)) for i in range(tasks)])

    counts = StepCounts(Datasets())
    quick = {"strength": 1.0, "epochs": 1, "batch_size": 20}
    assert [counts.of(paper_spec("growing", "SI", seed=seed, **quick)) for seed in (0, 1, 0)] == [3, 5, 3]


def test_a_data_set_is_counted_whole():
    @register_scenario("whole", tasks=1, datasets=("digits",))
    def whole(datasets):
        part = datasets["digits"].train
        rows = part.pixels.reshape(-1, 64).float()  # which one pixel an image could not give
        return scenario_of([((rows, part.labels),) * 2])

    assert StepCounts(Datasets()).of(Spec("whole", settings=Settings(epochs=1, batch_size=719))) == 2


def takes_others(tasks, colour):
    raise AssertionError


def takes_anything(**options):
    raise AssertionError


def takes_datasets(datasets):
    raise AssertionError


def takes_half(validation):
    raise AssertionError


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (takes_others, {}, "a function with the arguments colour; expected none but datasets, tasks, seed, validation"),
        (takes_anything, {}, r"with the arguments \*\*options;"),
        (takes_datasets, {}, r"datasets=\(\); expected some of digits, MNIST"),
        (blobs, {"datasets": ("digits",)}, r"datasets=\('digits',\); expected"),
        (takes_datasets, {"datasets": ("minst",)}, "datasets=.*; expected some of digits, MNIST, CIFAR-10, CIFAR-100"),
        (takes_datasets, {"datasets": "digits"}, "in a tuple"),
        (takes_half, {}, "one of the arguments validation and validation_seed"),
        (Scenario, {}, "expected a function"),
        (blobs, {"tasks": 0}, "tasks=0; expected a number in range"),
        (blobs, {"tasks": "3"}, "tasks='3'; expected a whole number"),
        (blobs, {"possible_tasks": range(0)}, "tasks=3; expected a number in"),
        (blobs, {"possible_tasks": range(4, 9)}, r"tasks=3; expected a number in range\(4, 9\)"),
        (blobs, {"hidden": ()}, r"hidden=\(\); expected one or more positive widths"),
        (blobs, {"hidden": (0,)}, r"hidden=\(0,\); expected one or more positive widths"),
        (blobs, {"validation": 1.0}, "validation=1.0; expected a share"),
        (blobs, {"settings": {"epochs": 3}}, "expected anchorhold_lab.training.Settings"),
        (blobs, {"network": "resnet"}, "No network is called 'resnet'"),
        (blobs, {"strengths": {"SII": 1.0}}, r"No measure is called 'SII'. Did you mean 'SI'"),
        (blobs, {"strengths": {"SI": -1}}, r"strengths\['SI'\]=-1: expected a number, 0 or more"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(make, options, message):
    with pytest.raises(ConfigurationError, match=message):
        register_scenario("wrong", **{"tasks": 3, **options})(make)
    assert "wrong" not in SCENARIOS


def test_a_name_that_is_taken(registered):
    with pytest.raises(ConfigurationError, match="A scenario is called 'split-digits' already"):
        register_scenario("Split-Digits", tasks=3)(blobs)
    register_scenario("blobs", tasks=2)(blobs)  # a cell that is run again
    assert SCENARIOS["blobs"].tasks == 2


def test_what_a_function_does_wrong_is_told_with_its_line():
    @register_scenario("broken", tasks=1)
    def broken():
        return {}["nothing"]

    line = broken.__code__.co_firstlineno + 2
    expected = rf"could not be made: line {line}: KeyError: 'nothing'. That was in broken of .*test_scenario_kinds.py"
    with pytest.raises(ConfigurationError, match=expected):
        Spec("broken").make_scenario({})


@pytest.mark.parametrize(
    ("returned", "message"), [([], "returned a list; expected an .*Scenario"), (None, "has 3 tasks; expected 5")]
)
def test_what_a_function_returns_is_looked_at(returned, message):
    @register_scenario("odd", tasks=5)
    def odd(tasks):
        return fixed() if returned is None else returned

    with pytest.raises(ConfigurationError, match=message):
        Spec("odd").make_scenario({})


def test_an_error_of_anchorholds_own_stays_what_it_is():
    @register_scenario("empty", tasks=1)
    def empty():
        return scenario_of([])

    with pytest.raises(ConfigurationError, match=r"^A scenario needs at least one task"):
        Spec("empty").make_scenario({})
