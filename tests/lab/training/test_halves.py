"""SOS from the halves of a batch: by hand, in both engines, and refused for what cannot take it."""

import dataclasses

import pytest
import torch
from torch.nn.functional import cross_entropy

import anchorhold
from anchorhold.errors import ConfigurationError
from anchorhold_lab.experiments import Spec
from anchorhold_lab.training.fast import FastRuns
from anchorhold_lab.training.plain_run import PlainRun
from anchorhold_lab.training.protocol import Settings
from tests.lab.training.fast.test_engine import compare
from tests.lab.training.helpers import finish, make_learner, make_model, make_scenario

SETTINGS = Settings(epochs=2, batch_size=8, learning_rate=0.01, reinitialise=True, second_batch="halves")


def learner(alpha=1.0, seed=3, dropout=True, settings=SETTINGS, watch=()):
    scenario = make_scenario(2, True, torch.float64, train=35, seed=seed)
    model = make_model(scenario, dropout).to(torch.float64)
    sos = anchorhold.SOS(alpha=alpha, normalise=False)
    return make_learner(sos, settings=settings, seed=seed, scenario=scenario, model=model, watch=watch)


@pytest.mark.parametrize("alpha", [1.0, 0.5, "unbiased"])
def test_v_is_made_of_the_halves_gradients(alpha):
    own = learner(alpha, dropout=False, settings=dataclasses.replace(SETTINGS, epochs=1))
    run = PlainRun(own)
    # α(b) = (b + √(2b − 1)) / (b − 1), with the four samples that each half has.
    number = (4 + 7**0.5) / 3 if alpha == "unbiased" else alpha
    samples, order = own.scenario.tasks[0].train, own.order(0, 0)
    v = {name: torch.zeros_like(p) for name, p in own.guard.parameters.items()}
    twin = learner(alpha, dropout=False, settings=own.settings).model
    adam = torch.optim.Adam(twin.parameters(), lr=0.01)
    for chosen in order:
        names = dict(twin.named_parameters())
        halves = [
            torch.autograd.grad(cross_entropy(twin(samples.x[half], 0), samples.y[half]), [names[name] for name in v])
            for half in (chosen[:4], chosen[4:])
        ]
        for (name, old), first, second in zip(v.items(), *halves, strict=True):
            v[name] = 0.999 * old + 0.001 * (first - number * second) ** 2
        adam.zero_grad()
        cross_entropy(twin(samples.x[chosen], 0), samples.y[chosen]).backward()
        adam.step()
    for _ in run.learn_task():
        pass
    for name, expected in v.items():
        torch.testing.assert_close(own.guard.importance[name], expected.sqrt(), rtol=1e-10, atol=0)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("alpha", [1.0, "unbiased"])
@pytest.mark.parametrize("dropout", [False, True])
def test_the_fast_engine_sees_the_same(alpha, batched, dropout):
    plain = [finish(PlainRun(learner(alpha, seed, dropout))).learner for seed in (3, 4)]
    fast = FastRuns([learner(alpha, seed, dropout) for seed in (3, 4)], batched=batched)
    finish(fast)
    for found, expected in zip(fast.learners, plain, strict=True):
        compare(found, expected, 1e-8)


def test_it_is_another_run_than_with_a_batch_drawn_for_it():
    halves, drawn = (
        finish(PlainRun(learner(settings=dataclasses.replace(SETTINGS, second_batch=way)))).learner
        for way in ("halves", "drawn")
    )
    assert not torch.equal(halves.guard.importance["body.0.weight"], drawn.guard.importance["body.0.weight"])


@pytest.mark.parametrize("measure", ["SIU", "SIB", "SI", "EWC", "fine-tune"])
def test_what_needs_a_whole_batch_or_an_independent_one_is_refused(measure):
    with pytest.raises(ConfigurationError, match=r"second_batch='halves' for .*; expected SOS with alpha other than 0"):
        make_learner(measure, settings=SETTINGS, watch=())
    with pytest.raises(ConfigurationError, match="second_batch='halves'"):
        Spec("permuted-digits", measure, settings=SETTINGS)
    with pytest.raises(ConfigurationError, match="second_batch='halves'"):
        Spec("permuted-digits", "SOS", settings=SETTINGS)  # α = 0
    if measure not in ("EWC", "fine-tune"):
        with pytest.raises(ConfigurationError, match="second_batch='halves'"):
            learner(watch=(measure,))


def test_a_batch_that_has_no_halves_is_refused():
    with pytest.raises(ConfigurationError, match="batch_size=7 in halves: expected an even number"):
        dataclasses.replace(SETTINGS, batch_size=7)
    with pytest.raises(ConfigurationError, match="second_batch='both': expected one of 'drawn', 'halves'"):
        dataclasses.replace(SETTINGS, second_batch="both")


def test_ids_of_runs_from_before_stay(tmp_path):
    spec = Spec("permuted-digits", "SOS", measure_settings={"alpha": 1.0}, settings=Settings(batch_size=64))
    assert "second_batch" not in spec.to_dict()["settings"]
    halved = dataclasses.replace(spec, settings=dataclasses.replace(spec.settings, second_batch="halves"))
    assert halved.id != spec.id and Spec.from_dict(halved.to_dict()) == halved
