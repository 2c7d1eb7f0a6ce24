"""The fast engine against the plain loop: the same weights, importances and accuracies, alone and side by side."""

import dataclasses
import functools
import math

import pytest
import torch

import anchorhold
from anchorhold.errors import AnchorholdWarning, ConfigurationError, NotFiniteError
from anchorhold_lab.networks import MultiHead
from anchorhold_lab.scenarios import Samples, scenario_of
from anchorhold_lab.training.fast import FastRuns
from anchorhold_lab.training.fast.shared_steps import can_measure
from anchorhold_lab.training.plain_run import PlainRun
from anchorhold_lab.training.protocol import Settings
from tests.lab.training.helpers import finish, make_learner, make_model, make_scenario

# 4 steps an epoch, 26 epochs, 2 tasks: 208 steps and a change of task.
LONG = Settings(epochs=26, batch_size=8, learning_rate=0.003, reinitialise=True, samples=20)
# 28 steps a task, two of the tens that RWalk counts and a shorter one; a formula that differs is far off by then.
USUAL = dataclasses.replace(LONG, epochs=7)
WAYS = {"alone": (1, False), "alone as a formula": (1, True), "several": (2, False), "several batched": (2, True)}


def learner(
    seed=3, measure="SI", settings=USUAL, strength=0.5, dropout=True, own_heads=True, dtype=torch.float64, **options
):
    scenario = make_scenario(2, own_heads, dtype, train=35, seed=seed)
    model = make_model(scenario, dropout).to(dtype)
    return make_learner(
        measure, settings=settings, seed=seed, scenario=scenario, model=model, strength=strength, **options
    )


def relative(found, expected):
    errors = [float((found[k] - v).double().norm() / v.double().norm().clamp(min=1e-30)) for k, v in expected.items()]
    assert all(map(math.isfinite, errors))
    return max(errors)


def compare(fast, plain, tolerance):
    """Weights, anchors, every measure's importance, accuracies."""
    assert fast.outcome.matrix == plain.outcome.matrix
    assert fast.outcome.untrained == plain.outcome.untrained
    assert relative(fast.model.state_dict(), plain.model.state_dict()) < tolerance
    assert relative(fast.guard.anchor, plain.guard.anchor) < tolerance
    for name in plain.guard.measures:
        assert relative(fast.guard.held.of(name), plain.guard.held.of(name)) < tolerance


@functools.cache
def plain_learner(seed, measure):
    return finish(PlainRun(learner(seed, measure, strength=0.1 * seed))).learner


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "measure", [name for name, made in anchorhold.measures.default_measures().items() if can_measure(made)]
)
def test_every_measure_as_in_the_plain_loop(measure, way):
    runs, batched = WAYS[way]
    seeds = range(3, 3 + runs)
    plain = [plain_learner(seed, measure) for seed in seeds]
    fast = FastRuns([learner(seed, measure, strength=0.1 * seed) for seed in seeds], batched=batched)
    finish(fast)
    for found, expected in zip(fast.learners, plain, strict=True):
        assert found.guard.strength == expected.guard.strength
        compare(found, expected, 1e-8)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("measure", ["SI", "SIU", "SOS", "EWC", "fine-tune"])
def test_a_measure_by_itself(measure, batched):
    """Without the others that watch, so without second batches or gradients that only they need; and for long."""
    fast = finish(FastRuns([learner(seed, measure, LONG, watch=()) for seed in (1, 2)], batched=batched))
    plain = finish(PlainRun(learner(2, measure, LONG, watch=())))
    compare(fast.learners[1], plain.learner, 1e-8)


@pytest.mark.parametrize("measure", ["SOS", "EWC"])
def test_a_mean_of_solutions_is_held_to_as_in_the_plain_loop(measure):
    scenario = make_scenario(3, dtype=torch.float64, train=35)

    def make(anchor="mean"):
        return make_learner(
            measure, settings=USUAL, scenario=scenario, model=make_model(scenario).double(), anchor=anchor
        )

    fast, plain = finish(FastRuns([make()])), finish(PlainRun(make()))
    compare(fast.learners[0], plain.learner, 1e-8)
    other = finish(FastRuns([make("last")])).learners[0]
    assert relative(other.guard.anchor, plain.learner.guard.anchor) > 1e-3


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
@pytest.mark.parametrize("measure", ["SI", "EWC"])
def test_an_implicit_hold_is_that_of_the_plain_loop(measure, optimizer, batched):
    settings = dataclasses.replace(USUAL, optimizer=optimizer, learning_rate=0.02)
    made = [learner(seed, measure, settings, 3.0, implicit=True) for seed in (1, 2)]
    fast = finish(FastRuns(made, batched=batched))
    plain = finish(PlainRun(learner(2, measure, settings, 3.0, implicit=True)))
    compare(fast.learners[1], plain.learner, 1e-8)
    explicit = finish(PlainRun(learner(2, measure, settings, 3.0)))
    assert relative(explicit.learner.guard.anchor, plain.learner.guard.anchor) > 1e-3


def test_an_implicit_hold_has_no_place_in_other_forms_with_a_rate_for_each_weight():
    with pytest.raises(
        ConfigurationError, match=r"implicit=True in the form Rotated.* with optimizer='adam'; expected"
    ):
        FastRuns([learner(1, "EWC", form="rotated", implicit=True)])
    with pytest.raises(ConfigurationError, match=r"alike but for seed and strength.*implicit=True"):
        FastRuns([learner(1, "EWC"), learner(2, "EWC", implicit=True)])


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("own_heads", [False, True])
@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "sgd", "learning_rate": 0.05},
        {"optimizer": "adamw", "learning_rate": 0.02},
        {"reinitialise": False},
        {"epochs": 5, "later_epochs": 9},
    ],
    ids=str,
)
def test_optimizers_heads_dropout_and_protocols(changes, dropout, own_heads, batched):
    settings = dataclasses.replace(USUAL, **changes)
    made = [learner(seed, "SOS", settings, 0.3, dropout, own_heads) for seed in (1, 2)]
    fast = finish(FastRuns(made, batched=batched))
    plain = finish(PlainRun(learner(2, "SOS", settings, 0.3, dropout, own_heads)))
    compare(fast.learners[1], plain.learner, 1e-8)


def test_single_precision_stays_near():
    fast = finish(FastRuns([learner(seed, "SI", LONG, dtype=torch.float32) for seed in (1, 2)], batched=True))
    plain = finish(PlainRun(learner(2, "SI", LONG, dtype=torch.float32)))
    compare(fast.learners[1], plain.learner, 2e-4)


def stoppable(batched):
    return FastRuns([learner(seed, "SIU") for seed in (1, 2)], batched=batched)


@functools.cache
def never_stopped(batched):
    return finish(stoppable(batched))


@pytest.mark.parametrize("stop_after", [1, 7, 8, 11])
@pytest.mark.parametrize("batched", [False, True])
def test_runs_that_stopped_anywhere_go_on_exactly(stop_after, batched):
    """After an epoch, and between tasks: 7 pauses a task for its epochs, and one for its end."""
    whole, stopped, resumed = never_stopped(batched), stoppable(batched), stoppable(batched)
    for _ in zip(range(stop_after), stopped.learn(), strict=False):
        pass
    resumed.load_state(stopped.state())
    assert (resumed.task, resumed.step) == (stopped.task, stopped.step)
    finish(resumed)
    for found, expected in zip(resumed.learners, whole.learners, strict=True):
        assert found.outcome == expected.outcome
        for name, value in expected.model.state_dict().items():
            assert torch.equal(found.model.state_dict()[name], value)
        for name in expected.guard.measures:
            importance = expected.guard.held.of(name)
            assert all(torch.equal(found.guard.held.of(name)[k], v) for k, v in importance.items())


def test_a_run_within_an_epoch_goes_on_exactly(monkeypatch):
    """With so little patience that every step is told."""
    monkeypatch.setattr("anchorhold_lab.training.fast.fast_runs.TELL_EVERY", 0.0)
    whole, stopped, resumed = (FastRuns([learner()]) for _ in range(3))
    told = [progress.step for progress, _ in zip(stopped.learn(), range(7), strict=False)]
    assert told == [1, 2, 3, 4, 5, 6, 7]
    resumed.load_state(stopped.state())
    finish(resumed)
    finish(whole)
    assert torch.equal(resumed.learners[0].model.body[0].weight, whole.learners[0].model.body[0].weight)


def test_a_run_that_diverges_does_not_touch_the_others():
    good = finish(FastRuns([learner(1)])).learners[0]
    pair = FastRuns([learner(1), learner(2)], batched=True)
    pair._kept.weights[1, 0] = float("nan")
    finish(pair)
    assert "at step 1 of task 1: training has diverged" in pair.outcomes[1].failure
    assert pair.outcomes[0].failure is None
    compare(pair.learners[0], good, 1e-12)
    alone = FastRuns([learner(2)])
    alone._kept.weights[0, 0] = float("nan")
    with pytest.raises(NotFiniteError, match="step 1 of task 1"):
        finish(alone)


def test_runs_that_are_not_alike_are_refused():
    with pytest.raises(ConfigurationError, match="alike but for seed and strength"):
        FastRuns([learner(1), learner(2, settings=dataclasses.replace(USUAL, epochs=3))])
    with pytest.raises(ConfigurationError, match="alike but for seed and strength"):
        FastRuns([learner(1), learner(2, "SOS")])
    with pytest.raises(ConfigurationError, match="at least one"):
        FastRuns([])
    with pytest.raises(ConfigurationError, match="A state of 2 runs for 1"):
        FastRuns([learner(1)]).load_state(FastRuns([learner(1), learner(2)]).state())


@pytest.mark.filterwarnings("ignore:Batch norms in training mode")
def test_a_network_with_buffers_runs_as_it_is():
    def make():
        scenario = make_scenario(2, True, torch.float64, train=35)
        # A bias in front of it would have no gradient but rounding, which Adam blows up.
        body = torch.nn.Sequential(torch.nn.Linear(6, 10, bias=False), torch.nn.BatchNorm1d(10), torch.nn.ReLU())
        model = MultiHead(body, 10, 3, scenario.heads).double()
        return make_learner("SI", settings=USUAL, scenario=scenario, model=model)

    fast, plain = finish(FastRuns([make(), make()])), finish(PlainRun(make()))
    compare(fast.learners[1], plain.learner, 1e-8)
    with pytest.raises(ConfigurationError, match="batched=True for a network"):
        FastRuns([make()], batched=True)


def test_a_state_from_before_is_gone_back_to():
    """An engine that has gone further forgets what it held, and takes over the state's strength."""
    stopped = FastRuns([learner(strength=5.0)])
    early = stopped.state()
    finish(stopped)
    again = FastRuns([learner(strength=0.0)])
    finish(again)
    with pytest.warns(AnchorholdWarning, match="has strength=5"):
        again.load_state(early)
    finish(again)
    compare(again.learners[0], stopped.learners[0], 1e-12)


def test_the_strength_may_change_between_tasks():
    fast, plain = FastRuns([learner(strength=0.0)]), PlainRun(learner(strength=0.0))
    for engine, own in ((fast, fast.learners[0]), (plain, plain.learner)):
        for progress in engine.learn():
            if progress.learned:
                own.guard.strength = 50.0
                if engine is fast:
                    break
        if engine is fast:
            fast._hold(0)
            finish(fast)
    compare(fast.learners[0], plain.learner, 1e-8)


@pytest.mark.parametrize("measure", ["SI", "EWC", "MAS"])
@pytest.mark.parametrize("batched", [False, True])
def test_a_relative_strength_is_found_as_in_the_plain_loop(measure, batched):
    def make(seed):
        return learner(seed, measure, relative_strength=0.2 * seed)

    fast = finish(FastRuns([make(1), make(2)], batched=batched))
    for found in fast.learners:
        plain = finish(PlainRun(make(found.seed))).learner
        compare(found, plain, 1e-8)
        assert found.guard.strength == pytest.approx(plain.guard.strength, rel=1e-8)
        assert found.guard.strength > 0 and found.guard.relative_strength == 0.2 * found.seed
    unheld = finish(PlainRun(learner(1, measure, strength=0.0))).learner
    assert relative(fast.learners[0].model.state_dict(), unheld.model.state_dict()) > 1e-6


@pytest.mark.parametrize("stop_after", [2, 8, 11])
def test_runs_with_a_relative_strength_that_stopped_go_on_exactly(stop_after):
    whole, stopped, resumed = (FastRuns([learner(1, relative_strength=0.3)]) for _ in range(3))
    finish(whole)
    for _ in zip(range(stop_after), stopped.learn(), strict=False):
        pass
    resumed.load_state(stopped.state())
    finish(resumed)
    for name, value in whole.learners[0].model.state_dict().items():
        assert torch.equal(resumed.learners[0].model.state_dict()[name], value)
    assert resumed.learners[0].guard.strength == whole.learners[0].guard.strength > 0


def test_strengths_by_pattern_are_refused():
    run = FastRuns([learner()])
    run.learners[0].guard.strength = {"body.*": 2.0}
    with pytest.raises(ConfigurationError, match="cannot do with strengths by pattern"):
        finish(run)


class Tied(MultiHead):
    """The head shares its weights with the body, and there is a scale that belongs to neither."""

    def __init__(self):
        super().__init__(torch.nn.Linear(6, 3, bias=False), 6, 3)
        self.heads[0].weight = self.body.weight
        self.scale = torch.nn.Parameter(torch.tensor(1.0))

    def forward(self, x, head=0):
        return self.scale * self.heads[head](x + x @ self.body.weight.T @ self.body.weight)


def frozen(scenario):
    torch.manual_seed(0)  # what is frozen is not drawn anew, so it must be the same in both engines
    body = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.ReLU(), torch.nn.Linear(10, 10))
    body[0].weight.requires_grad_(False)
    return MultiHead(body, 10, 3, scenario.heads)


def with_embedding(scenario):
    """Layers that draw their own weights, and inputs that are numbers of words."""
    body = torch.nn.Sequential(torch.nn.Embedding(20, 4), torch.nn.Flatten(), torch.nn.LayerNorm(24), torch.nn.Tanh())
    return MultiHead(body, 24, 3, scenario.heads)


def words(own_heads):
    given = make_scenario(2, own_heads, train=35)
    pairs = [(t.stored_train, t.stored_test) for t in given.tasks]
    return scenario_of(
        [tuple(Samples((s.x * 5).long().abs() % 20, s.y) for s in pair) for pair in pairs],
        classes=3,
        own_heads=own_heads,
    )


@pytest.mark.parametrize("network", ["tied", "frozen", "embedding"])
def test_networks_of_all_kinds(network):
    def make(seed):
        scenario = (
            words(True) if network == "embedding" else make_scenario(2, network != "tied", torch.float64, train=35)
        )
        built = {"tied": lambda _: Tied(), "frozen": frozen, "embedding": with_embedding}[network](scenario)
        return make_learner("SI", settings=USUAL, scenario=scenario, model=built.double(), seed=seed, strength=1.0)

    fast, plain = finish(FastRuns([make(1), make(2)])), finish(PlainRun(make(2)))
    compare(fast.learners[1], plain.learner, 1e-8)
    if network == "frozen":
        assert not torch.equal(make(1).model.body[2].weight, make(2).model.body[2].weight)


def test_heads_may_be_learned_again():
    def make():
        given = make_scenario(3, True, torch.float64, train=35)
        tasks = tuple(dataclasses.replace(task, head=head) for task, head in zip(given.tasks, (1, 0, 1), strict=True))
        scenario = dataclasses.replace(given, tasks=tasks)
        return make_learner("SOS", settings=USUAL, scenario=scenario, model=make_model(scenario).double())

    fast, plain = finish(FastRuns([make()], batched=True)), finish(PlainRun(make()))
    compare(fast.learners[0], plain.learner, 1e-8)


def test_inputs_may_be_stored_in_another_form():
    def make():
        given = make_scenario(2, True, torch.float64, train=35)
        tasks = []
        for task in given.tasks:
            stored = [
                Samples((samples.x * 50).clamp(-100, 100).to(torch.int8).view(-1, 2, 3), samples.y)
                for samples in (task.stored_train, task.stored_test)
            ]
            tasks.append(
                dataclasses.replace(
                    task, stored_train=stored[0], stored_test=stored[1], transform=lambda x: x.flatten(1).double() / 50
                )
            )
        scenario = dataclasses.replace(given, tasks=tuple(tasks))
        return make_learner("SI", settings=USUAL, scenario=scenario, model=make_model(scenario).double())

    fast, plain = finish(FastRuns([make()])), finish(PlainRun(make()))
    compare(fast.learners[0], plain.learner, 1e-8)


def test_a_finished_network_has_weights_of_its_own():
    runs = finish(FastRuns([learner(1), learner(2)], batched=True))
    weight = runs.learners[0].model.body[0].weight
    assert weight.untyped_storage().nbytes() == weight.numel() * weight.element_size()
    assert runs.learners[0].guard.gradients.path.steps == 0
    runs.state()
    assert runs.learners[0].guard.gradients.path.steps == 0


def test_a_state_is_no_larger_than_what_it_holds():
    state = FastRuns([learner(1), learner(2)], batched=True).state()
    tensors = state["runs"][0]["guard"]["tensors"].values()
    assert all(t.untyped_storage().nbytes() == t.numel() * t.element_size() for t in tensors)


def test_what_cannot_share_steps_is_refused(monkeypatch):
    one = learner(1)
    with pytest.raises(ConfigurationError, match="Several runs have one network"):
        FastRuns([one, make_learner("SI", settings=USUAL, seed=2, scenario=one.scenario, model=one.model)])
    other = make_model(one.scenario).double()
    other.body[1] = torch.nn.Tanh()
    with pytest.raises(ConfigurationError, match="alike but for seed and strength"):
        FastRuns([one, make_learner("SI", settings=USUAL, seed=2, scenario=one.scenario, model=other, strength=0.5)])
    for leaning in ({"gradient_term": True}, {"form": "rotated"}):
        with pytest.raises(ConfigurationError, match=r"cannot do with anchor='mean' and .*; expected engine='plain'"):
            FastRuns([learner(1, "EWC", anchor="mean", **leaning)])
    monkeypatch.setattr(anchorhold.RWalk, "counts_on_device", False)
    with pytest.raises(ConfigurationError, match="cannot do with RWalk, which counts steps in Python"):
        FastRuns([learner(1, "RWalk")])
    half = make_scenario(2, True, torch.bfloat16, train=35)
    with pytest.raises(ConfigurationError, match="precision='bf16' computes in 16 bits"):
        FastRuns([make_learner("SI", settings=USUAL, scenario=half, model=make_model(half).bfloat16())])
