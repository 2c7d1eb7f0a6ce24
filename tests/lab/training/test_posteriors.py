"""Runs of the laboratory whose weights are distributions."""

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Normal, kl_divergence

from anchorhold.errors import ConfigurationError
from anchorhold.holds import Variational
from anchorhold_lab.experiments import paper_spec
from anchorhold_lab.networks import mlp
from anchorhold_lab.scenarios import of_kind, set_aside
from anchorhold_lab.scenarios.unlike_tasks import with_sizes
from anchorhold_lab.training.plain_run import PlainRun
from anchorhold_lab.training.protocol import Settings
from tests.lab.training.helpers import finish, make_learner, make_model, make_scenario

SETTINGS = Settings(epochs=2, batch_size=8, learning_rate=0.01)


def learner(own_heads, coreset=0, kept=6, settings=SETTINGS, restart=None):
    scenario = with_sizes(make_scenario(2, own_heads, torch.float64, train=35), (1, 0.6), 0)
    scenario = set_aside(scenario, kept, 0) if kept else scenario
    model = make_model(scenario).to(torch.float64)
    hold = Variational(predictions=3, coreset=coreset, restart=restart)
    return make_learner("fine-tune", settings=settings, scenario=scenario, model=model, watch=(), holds=[hold])


def test_every_step_of_a_run_has_the_gradient_of_the_bound_written_out(monkeypatch):
    """In both tasks, by autograd of E[-log p] + KL/N; the KL is torch's, the prior what the task began with."""
    run, take, priors = PlainRun(learner(own_heads=False, kept=0)), PlainRun._take_step, []
    model, noise, steps = run.learner.model, run.learner.dropout, []

    def traced(self, samples, chosen, second):
        now = dict(model.named_parameters())
        if len(priors) == self.task:
            priors.append({name: p.detach() * (self.task > 0) for name, p in now.items()})  # first of variance 1
            assert not self.optimizer.state
        before = noise.get_state()
        model.train()
        bound = F.cross_entropy(model(samples.x[chosen]), samples.y[chosen])
        for name in now.keys() - {name for name in now if name.endswith("_log_variance")}:
            q, p = (Normal(these[name], (0.5 * these[f"{name}_log_variance"]).exp()) for these in (now, priors[-1]))
            bound = bound + kl_divergence(q, p).sum() / len(samples)
        expected = torch.autograd.grad(bound, list(now.values()))
        noise.set_state(before)
        steps.append((self.task, expected))
        return take(self, samples, chosen, second)

    def compared(optimizer, *_):
        torch.testing.assert_close([p.grad for p in model.parameters()], list(steps[-1][1]), rtol=1e-9, atol=1e-12)

    monkeypatch.setattr(PlainRun, "_take_step", traced)
    attach = run.learner.guard.attach

    def attached(optimizer):
        attach(optimizer)
        optimizer.register_step_pre_hook(compared)  # after the guard's own, so that its pull is there

    monkeypatch.setattr(run.learner.guard, "attach", attached)
    run._make_optimizer()
    finish(run)
    assert {task for task, _ in steps} == {0, 1}


@pytest.mark.parametrize("own_heads", [False, True])
def test_a_run_with_coresets_can_stop_and_go_on_exactly(own_heads):
    whole = finish(PlainRun(learner(own_heads, coreset=2, restart=-4.0)))
    stopped = PlainRun(learner(own_heads, coreset=2, restart=-4.0))
    for _ in stopped.learn_task():
        pass
    again = PlainRun(learner(own_heads, coreset=2, restart=-4.0))
    again.load_state(copy.deepcopy(stopped.state()))
    finish(again)
    assert again.learner.outcome.matrix == whole.learner.outcome.matrix
    for name, value in whole.learner.model.state_dict().items():
        assert torch.equal(again.learner.model.state_dict()[name], value)
    hold = whole.learner.posterior.hold
    assert hold.samples == 15  # of 21 in the second task, six are the coreset
    assert len(hold.prior) == (6 if own_heads else 4)


def test_a_task_restarts_the_variances_of_what_it_trains_and_no_prior():
    run = PlainRun(learner(own_heads=True, kept=0, restart=-4.0))
    start = [value for n, value in run.learner.model.state_dict().items() if n.endswith("_log_variance")]
    assert all(bool((value == -6).all()) for value in start)
    for _ in run.learn_task():
        pass
    prior = {name: q.log_variance for name, q in run.learner.posterior.hold.prior.items()}
    body, old, new = (part.state_dict() for part in (run.learner.model.body, *run.learner.model.heads))
    narrow = [value for part in (body, new) for name, value in part.items() if name.endswith("_log_variance")]
    assert narrow and all(bool((value == -4).all()) for value in narrow)
    assert torch.equal(old["weight_log_variance"], prior["heads.0.weight"])
    assert all(not bool((value == -4).any()) for value in prior.values())


def test_narrow_weights_at_beginnings_that_nobody_tells_of_are_refused():
    settings = dataclasses.replace(SETTINGS, consolidate=3)
    with pytest.raises(ConfigurationError, match=r"restart=-4 with consolidate=3: .*expected consolidate='tasks'"):
        learner(own_heads=False, kept=0, settings=settings, restart=-4.0)
    holds = {"holds": ("variational",), "hold_settings": {"variational": {"restart": -4.0}}}
    with pytest.raises(ConfigurationError, match="restart=-4 with consolidate='plateaus'"):
        paper_spec("permuted-digits", "fine-tune", consolidate="plateaus", **holds)
    finish(PlainRun(learner(own_heads=False, kept=0, settings=settings)))


def test_tasks_with_heads_are_judged_by_weights_that_have_seen_their_own_coreset():
    run = PlainRun(learner(own_heads=True, coreset=1))
    for _ in run.learn_task():
        pass
    seen, unseen = run.learner.posterior.weights(1)
    assert unseen is None and seen is not None
    moved = [name for name, value in run.learner.model.named_parameters() if not torch.equal(seen[name], value)]
    assert "heads.0.weight" in moved and "heads.1.weight" not in moved


def test_closed_outputs_have_no_part_in_predictions_or_coresets():
    scenario = set_aside(of_kind(make_scenario(2, own_heads=False, dtype=torch.float64, train=35), "class"), 6, 0)
    model = mlp(6, (10,), scenario.classes).to(torch.float64)
    hold = Variational(predictions=3, coreset=2)
    run = PlainRun(make_learner("fine-tune", settings=SETTINGS, scenario=scenario, model=model, watch=(), holds=[hold]))
    for _ in run.learn_task():
        pass
    posterior, x = run.learner.posterior, scenario.tasks[0].test.x
    predicted = posterior.scores(x, 0, None, outputs=3).exp()
    torch.testing.assert_close(predicted[:, :3].sum(1), torch.ones(len(x), dtype=torch.float64), rtol=0, atol=1e-12)
    seen, now = posterior.weights(1, outputs=3)[0]["heads.0.weight"], model.heads[0].weight
    assert torch.equal(seen[3:], now[3:]) and not torch.equal(seen[:3], now[:3])
    assert model(x, 0)[:, 3:].min() > -1e3  # open again


def test_coresets_of_tasks_to_come_are_not_looked_at_however_often_was_consolidated(monkeypatch):
    run = PlainRun(learner(own_heads=False, coreset=1, settings=dataclasses.replace(SETTINGS, consolidate=2)))
    seen, refined = [], Variational.refined
    monkeypatch.setattr(Variational, "refined", lambda *given, **how: seen.append(given[2]) or refined(*given, **how))
    finish(run)
    assert run.learner.guard.tasks > 2
    first, second = (task.kept.x for task in run.learner.scenario.tasks)
    judged = [torch.cat([x for x, *_ in batches]) for batches in seen]
    assert len(judged) == 2 and torch.equal(judged[0], first) and torch.equal(judged[1], torch.cat([first, second]))


def test_coresets_need_samples_that_were_set_aside():
    with pytest.raises(ConfigurationError, match="has set no samples aside"):
        learner(own_heads=False, coreset=2, kept=0)
