"""A run apart from its steps: what is measured, what is judged, and what a network may be."""

import pytest
import torch
from torch import nn

import anchorhold
from anchorhold.errors import AnchorholdWarning, ConfigurationError
from anchorhold_lab.networks import Dropout, MultiHead
from anchorhold_lab.scenarios import Samples, scenario_of
from anchorhold_lab.training import Learner, PlainRun, Settings
from tests.lab.training.helpers import SETTINGS, finish, make_learner, make_model, make_scenario


def test_accuracies_are_of_the_samples_that_the_run_is_judged_by():
    x = torch.randn(40, 6)
    tests = Samples(x[:20], torch.zeros(20, dtype=torch.long))
    scenario = scenario_of([(Samples(x, torch.ones(40, dtype=torch.long)), tests)], classes=3, validation=0.25)
    model = make_model(scenario, dropout=False)

    def always(answer):
        for parameter in model.parameters():
            parameter.data.zero_()
        model.heads[0].bias.data[answer] = 1.0

    for judge_by, answer in (("test", 0), ("validation", 1)):
        learner = make_learner(scenario=scenario, model=model, judge_by=judge_by)
        always(answer)
        assert learner.accuracies() == [1.0]
        always(2)
        assert learner.accuracies() == [0.0]
    with pytest.raises(ConfigurationError, match="judge_by='validation' for a scenario whose tasks have no such"):
        make_learner(judge_by="validation")
    with pytest.raises(ConfigurationError, match="judge_by='train'"):
        make_learner(judge_by="train")


def test_measures_look_at_random_training_samples_the_same_for_all():
    learner = make_learner(settings=SETTINGS)
    train = learner.scenario.tasks[0].train
    (x, y), *more = learner._measured(0)
    assert not more and len(x) == SETTINGS.samples == 10
    where = [int((train.x == row).all(1).nonzero()) for row in x]
    assert len(set(where)) == 10 and where != sorted(where)
    assert torch.equal(train.y[where], y)


def test_a_failure_is_part_of_the_state():
    learner = make_learner()
    learner.outcome.failure = "it went wrong"
    other = make_learner()
    other.load_state(learner.state())
    assert other.outcome.failure == "it went wrong"


def test_a_network_that_draws_in_its_own_code_is_warned_of():
    class Noisy(nn.Module):
        def forward(self, x):
            return x + torch.randn_like(x) if self.training else x

    scenario = make_scenario()
    model = MultiHead(nn.Sequential(nn.Linear(6, 4), Noisy()), 4, 3, scenario.heads)
    with pytest.warns(AnchorholdWarning, match="draws random numbers in its own code"):
        learner = make_learner(scenario=scenario, model=model)
    assert learner.modes.differs and learner.modes.draws and not learner.modes.drops


def test_importance_is_measured_in_evaluation_mode_with_batch_norm_too():
    """g and g′ are gradients of one function: on the same batch, SI's bias is nothing."""
    scenario = make_scenario(tasks=1)
    body = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU())
    learner = make_learner(
        anchorhold.SIB(clamp="total"), scenario=scenario, model=MultiHead(body, 5, 3), watch=(), settings=SETTINGS
    )
    learner.order = lambda task, epoch, second=False: torch.arange(24).view(3, 8)
    assert learner.modes.differs and not learner.modes.draws
    finish(PlainRun(learner))
    assert all(not bool(value.any()) for value in learner.guard.held.of("SIB").values())


def test_siu_alone_needs_no_gradient_of_its_own():
    assert not make_learner("SIU", watch=()).needs_own_gradient
    assert make_learner("SIU", watch=("SI",)).needs_own_gradient
    assert not make_learner("EWC", watch=()).needs_own_gradient
    assert not make_learner("SI", dropout=False).needs_own_gradient


def test_weights_are_drawn_from_the_seed_whatever_the_layers():
    def drawn(seed):
        scenario = make_scenario(own_heads=False)
        body = nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.PReLU())
        nn.init.constant_(body[1].weight, 7.0)
        return make_learner(scenario=scenario, model=MultiHead(body, 4, 3), seed=seed).model

    assert all(torch.equal(a, b) for a, b in zip(drawn(1).parameters(), drawn(1).parameters(), strict=True))
    assert bool((drawn(1).body[1].weight == 1).all())
    assert not torch.equal(drawn(1).body[0].weight, drawn(2).body[0].weight)


def test_embeddings_and_frozen_layers():
    def learner(seed):
        body = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(24, 5))
        body[2].requires_grad_(False)
        nn.init.constant_(body[2].weight, 0.5)
        words = Samples(torch.arange(120).view(20, 6) % 9, torch.arange(20) % 3)
        scenario = scenario_of([(words, words)] * 2)
        return make_learner(scenario=scenario, model=MultiHead(body, 5, 3, 2), seed=seed, settings=SETTINGS)

    assert torch.equal(learner(1).model.body[0].weight, learner(1).model.body[0].weight)
    assert not torch.equal(learner(1).model.body[0].weight, learner(2).model.body[0].weight)
    run = finish(PlainRun(learner(1)))
    assert bool((run.learner.model.body[2].weight == 0.5).all())


def test_a_dropout_layer_in_two_places_stays_one_layer():
    shared = nn.Dropout(0.5)
    scenario = make_scenario()
    body = nn.Sequential(nn.Linear(6, 4), shared, nn.Linear(4, 4), shared)
    learner = make_learner(scenario=scenario, model=MultiHead(body, 4, 3, scenario.heads))
    first, second = learner.model.body[1], learner.model.body[3]
    assert first is second and isinstance(first, Dropout) and first.generator is learner.dropout
    assert learner.modes.drops_twice


def test_networks_that_do_not_fit_are_refused():
    scenario = make_scenario()
    settings = Settings(batch_size=8)
    with pytest.raises(ConfigurationError, match=r"a Linear; expected a MultiHead. Wrap it"):
        Learner(scenario, nn.Linear(6, 3), anchorhold.SI(), 1.0, settings, seed=0)
    with pytest.raises(ConfigurationError, match="1 heads for a scenario that needs 3"):
        make_learner(scenario=scenario, model=MultiHead(nn.Linear(6, 4), 4, 3))


def test_a_network_that_does_not_fit_the_scenario_is_refused_with_both_numbers():
    x = torch.randn(12, 6)
    samples = Samples(x, torch.arange(12) % 3)
    scenario = scenario_of([(samples, samples)])

    def learner(features, classes):
        model = MultiHead(nn.Linear(6, 8), features, classes)
        return Learner(scenario, model, anchorhold.SOS(), 1.0, SETTINGS, seed=0)

    learner(8, 5)
    with pytest.raises(ConfigurationError, match=r"heads of 2 classes for a scenario of 3; expected .*classes=3"):
        learner(8, 2)
    with pytest.raises(
        ConfigurationError, match=r"cannot take inputs of shape \(\d+, 6\), as the scenario has them: .*features="
    ):
        learner(10, 3)
    pixels = Samples((255 * x.abs()).to(torch.uint8), samples.y)
    with pytest.raises(ConfigurationError, match=r"and type torch.uint8 \(.* own .*torch.float32: x.float\(\) in"):
        Learner(
            scenario_of([(pixels, pixels)]), MultiHead(nn.Linear(6, 8), 8, 3), anchorhold.SOS(), 1.0, SETTINGS, seed=0
        )
