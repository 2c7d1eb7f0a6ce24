"""Progress & Compress (Schwarz et al. 2018): its formulas in float64, what it keeps, and that it can stop anywhere."""

import copy
import dataclasses

import pytest
import torch

import anchorhold
from anchorhold.errors import ConfigurationError
from anchorhold.holds import Replay
from anchorhold_lab.experiments import Spec, Store, execute, paper_spec
from anchorhold_lab.experiments.specs.method_names import method_name
from anchorhold_lab.networks import MultiHead
from anchorhold_lab.scenarios import of_kind
from anchorhold_lab.training.fast import FastRuns
from anchorhold_lab.training.plain_run import PlainRun
from anchorhold_lab.training.protocol import Settings
from tests import oracles
from tests.lab.experiments.helpers import StopAfter, same_result, small_spec
from tests.lab.training.helpers import finish, make_learner, make_model, make_scenario

# Three steps an epoch: six of progress and six of compress.
USUAL = Settings(epochs=2, batch_size=8, learning_rate=0.05, optimizer="sgd", momentum=0.0, compress=2)
GAMMA, C = 0.7, 0.3


def run_of(measure="online-EWC", settings=USUAL, watch=(), **options):
    return PlainRun(make_learner(measure, settings=settings, watch=watch, **options))


def exact_run(**changes):
    scenario = make_scenario(own_heads=False, dtype=torch.float64)
    settings = dataclasses.replace(USUAL, **changes)
    measure, model = anchorhold.OnlineEWC(decay=GAMMA), make_model(scenario, dropout=False).double()
    return run_of(measure, settings, strength=C, scenario=scenario, model=model)


def take_steps(run, steps):
    """Take so many steps of the current task, as its loop would."""
    for _ in range(steps):
        epoch, place = divmod(run.step, 3)
        chosen = run.learner.order(run.task, epoch)[place]
        run._take_step(run.learner.samples(run.task), chosen, chosen)


def next_batch(run):
    epoch, place = divmod(run.step, 3)
    chosen = run.learner.order(run.task, epoch)[place]
    samples = run.learner.samples(run.task)
    return samples.x[chosen], samples.y[chosen]


def weights(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def moved(before, after):
    """By how much weights have gone, as gradients of plain SGD."""
    return {name: (before[name] - after[name]) / USUAL.learning_rate for name in before}


def said_by(active, x):
    """The logits of an active column, from the formula of a lateral connection."""
    lateral, own = active.lateral[0], active.own
    features = active.lent(x)
    hidden = torch.clamp(features @ lateral.down.weight.T + lateral.down.bias, min=0)
    return own.heads[0](own.body(x)) + lateral.scale * (hidden @ lateral.up.weight.T)


def test_compress_lowers_the_divergence_and_online_ewcs_penalty_and_nothing_else():
    run = exact_run()
    learner, total = run.learner, {}
    for task in range(2):
        list(run.learn_task())
        x = learner.samples(task).x
        fisher = oracles.importance(learner.model, oracles.one_by_one(x), oracles.every_label, torch.square)
        mean = torch.cat([value.flatten() for value in fisher.values()]).mean()
        total = {name: GAMMA * total.get(name, 0.0) + value / mean for name, value in fisher.items()}
    anchor = weights(learner.model)
    take_steps(run, 6 + 4)  # far enough from the anchor for the penalty to matter
    before = weights(learner.model)
    model, active = copy.deepcopy(learner.model), copy.deepcopy(learner.columns.active)
    x, _ = next_batch(run)
    p = said_by(active, x).softmax(-1).detach()
    divergence = (p * (p.log() - model(x).log_softmax(-1))).sum(-1).mean()
    penalty = sum(
        (C * total[name] * (parameter - anchor[name]) ** 2).sum() for name, parameter in model.named_parameters()
    )
    pull, teach = (torch.autograd.grad(part, list(model.parameters())) for part in (penalty, divergence))
    assert all(float(part.norm()) > 1e-3 for part in (*pull, *teach))  # either would be missed
    take_steps(run, 1)
    for (name, found), a, b in zip(moved(before, weights(learner.model)).items(), teach, pull, strict=True):
        torch.testing.assert_close(found, a + b, rtol=1e-10, atol=1e-10, msg=name)


def test_progress_teaches_the_active_column_alone_with_lent_features_beside_its_own():
    run = exact_run()
    list(run.learn_task())
    learner, active = run.learner, run.learner.columns.active
    take_steps(run, 2)
    base = weights(learner.model)
    trained = {name: value for name, value in weights(active).items() if not name.startswith("lent.")}
    assert all(torch.equal(value, base[f"body.{name}"]) for name, value in weights(active.lent).items())
    x, y = next_batch(run)
    copied = copy.deepcopy(active)
    loss = -said_by(copied, x).log_softmax(-1)[range(8), y].mean()
    expected = torch.autograd.grad(loss, [dict(copied.named_parameters())[name] for name in trained])
    take_steps(run, 1)
    for (name, found), gradient in zip(moved(trained, weights(active)).items(), expected, strict=True):
        torch.testing.assert_close(found, gradient, rtol=1e-10, atol=1e-10, msg=name)
        assert float(gradient.norm()) > 0, name
    take_steps(run, 3)
    taught = weights(active)
    assert all(torch.equal(value, base[name]) for name, value in weights(learner.model).items())
    take_steps(run, 6)  # compress, in which the active column only tells, and says the same whatever the base becomes
    assert all(torch.equal(value, taught[name]) for name, value in weights(active).items())
    assert not torch.equal(learner.model.body[0].weight, base["body.0.weight"])


@pytest.mark.parametrize("reinitialise", [True, False])
def test_the_active_column_begins_anew_where_asked_and_the_knowledge_base_never(reinitialise):
    run = exact_run(reinitialise=reinitialise)
    learner = run.learner
    take_steps(run, 12)
    base, active = weights(learner.model), weights(learner.columns.active.own)
    take_steps(run, 0)
    learner.end_task(0)
    run.task += 1
    run._begin_task()
    assert all(torch.equal(value, base[name]) for name, value in weights(learner.model).items())
    same = torch.equal(learner.columns.active.own.body[0].weight, active["body.0.weight"])
    assert same is not reinitialise
    assert torch.equal(learner.columns.active.lent[0].weight, base["body.0.weight"])


def test_the_rate_decays_over_each_phase():
    run = exact_run(rate_decay=0.01)
    rates = []
    for _ in range(12):
        take_steps(run, 1)
        rates.append(run.optimizer.param_groups[0]["lr"])
    # The optimizer that is told of here after the sixth step is the next phase's, at the full rate.
    falling = [0.05 * 0.01 ** (i / 5) for i in range(6)]
    assert rates == pytest.approx([*falling[:5], 0.05, *falling])


@pytest.mark.parametrize("stop_after", [1, 6, 7, 14, 18, 20, 23, 35])
@pytest.mark.parametrize("own_heads", [True, False])
def test_a_run_that_stopped_anywhere_goes_on_exactly(stop_after, own_heads):
    """Within progress, between both phases (6 and 18), within compress, with dropout and Adam: 12 steps a task."""
    settings = dataclasses.replace(USUAL, optimizer="adam", reinitialise=True)
    whole, stopped, resumed = (run_of(settings=settings, own_heads=own_heads) for _ in range(3))
    for _ in range(stop_after // 12):
        list(stopped.learn_task())
    take_steps(stopped, stop_after % 12)
    resumed.load_state(copy.deepcopy(stopped.state()))
    assert (resumed.task, resumed.step) == divmod(stop_after, 12)
    assert finish(resumed).outcomes == finish(whole).outcomes
    ours, theirs = (
        {**run.learner.model.state_dict(), **run.learner.columns.active.state_dict()} for run in (resumed, whole)
    )
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


@pytest.mark.parametrize("stop_after", [1, 2, 3, 4, 6])
def test_a_stored_run_that_stopped_goes_on_exactly(tmp_path, stop_after):
    """Each of three tasks is told of after one epoch of progress, after two of compress, and at its end."""
    settings = Settings(epochs=1, batch_size=256, learning_rate=0.03, samples=50, compress=2)
    spec = small_spec(measure="online-EWC", strength=0.02, engine="plain", settings=settings)
    (whole,) = execute([spec], Store(tmp_path / "whole")).finished
    store, stop = Store(tmp_path / "stopped"), StopAfter(stop_after)
    assert not execute([spec], store, on_event=stop.on_event, stop=stop).finished
    (resumed,) = execute([spec], store).finished
    assert same_result(whole, resumed) and resumed.resumed == 1


def test_the_knowledge_base_keeps_old_tasks_and_learns_new_ones_from_what_it_is_told(tmp_path):
    """On permuted digits; fine-tuning and what is compressed without a hold forget alike."""
    kept, free, plainly = (
        paper_spec("permuted-digits", measure, tasks=3, hidden=(100,), **changes)
        for measure, changes in (
            ("online-EWC", {"strength": 0.02, "compress": 6}),
            ("fine-tune", {"compress": 6}),
            ("fine-tune", {}),
        )
    )
    store = Store(tmp_path)
    execute([kept, free, plainly], store, device="cpu")
    rows = [store.get(spec.id).matrix[-1] for spec in (kept, free, plainly)]
    held, unheld, tuned = (sum(row[:2]) / 2 for row in rows)
    assert held > max(unheld, tuned) + 0.1
    assert min(row[2] for row in rows) > 0.8  # that of the active column alone would be worth nothing here


@pytest.mark.parametrize("kind", ["task", "domain", "class"])
def test_every_kind_of_learning_runs_with_what_else_can_be_asked_for(kind):
    scenario = of_kind(make_scenario(), kind)
    model = make_model(scenario)
    if kind == "class":
        model.heads[0] = torch.nn.Linear(10, scenario.classes)
    run = finish(run_of("EWC", scenario=scenario, model=model, watch=("AF",), form="rotated", precision="bf16"))
    assert len(run.outcomes[0].matrix) == 3 and run.learner.guard.tasks == 3


def test_classes_that_are_not_there_yet_are_closed_in_both_phases():
    """A head that grows: no step moves what belongs to classes that no task so far has, of either network."""
    scenario = of_kind(make_scenario(), "class")
    model = make_model(scenario, dropout=False)
    model.heads[0] = torch.nn.Linear(10, scenario.classes)
    run = run_of("EWC", scenario=scenario, model=model)
    base, active = run.learner.model.heads[0], run.learner.columns.active
    rows = [base.weight, base.bias, active.own.heads[0].weight, active.own.heads[0].bias, active.lateral[0].up.weight]
    before = [each.detach().clone() for each in rows]
    for task in range(3):
        take_steps(run, 12)
        opened = run.learner.outputs(task)
        assert all(torch.equal(now[opened:], then[opened:]) for now, then in zip(rows, before, strict=True))
        assert all(not torch.equal(now[:opened], then[:opened]) for now, then in zip(rows, before, strict=True))
        run.learner.end_task(task)
        if task < 2:
            run.task += 1
            run._begin_task()
    assert scenario.classes == opened > run.learner.outputs(0)


def test_what_is_told_is_said_without_dropout_and_looking_changes_no_statistics():
    scenario = make_scenario(own_heads=False)
    body = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Dropout(0.5))
    run = run_of("EWC", scenario=scenario, model=MultiHead(body, 8, scenario.classes), batch_norm="freeze")
    active = run.learner.columns.active
    x = run.learner.samples(0).x
    lent = copy.deepcopy(active.lent.state_dict())
    first = active.own.body[1].running_mean.clone()
    take_steps(run, 6)
    assert not torch.equal(active.own.body[1].running_mean, first)  # which learns in training mode
    assert all(torch.equal(value, lent[name]) for name, value in active.lent.state_dict().items())
    told, learned = run.learner.columns.told(x, 0), copy.deepcopy(active.state_dict())
    take_steps(run, 3)
    run.learner.columns.active.train()
    assert torch.equal(run.learner.columns.told(x, 0), told)
    assert all(torch.equal(value, learned[name]) for name, value in active.state_dict().items())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"measure": "SI"}, "SI"),
        ({"watch": ("SOS",)}, "SOS"),
        ({"holds": [Replay(5)]}, "Replay"),
    ],
)
def test_what_looks_at_steps_is_refused(options, named):
    with pytest.raises(ConfigurationError, match=f"compress=2 with .*{named}.*: expected a measure that looks at data"):
        run_of(**options)


def test_the_fast_engine_refuses_a_second_network():
    with pytest.raises(ConfigurationError, match="compress=2, which trains a second network; expected engine='plain'"):
        FastRuns([make_learner("online-EWC", settings=USUAL, watch=())])


class TestSpecs:
    def test_it_is_a_run_with_a_name_of_its_own(self):
        usual = paper_spec("permuted-digits", "online-EWC")
        spec = paper_spec("permuted-digits", "online-EWC", compress=3)
        assert spec.engine == "plain" and Spec.from_dict(spec.to_dict()) == spec
        assert spec.id != usual.id and "compress" not in usual.to_dict()["settings"]
        assert paper_spec("permuted-digits", "online-EWC", compress=0).id == usual.id
        assert method_name(spec) == "compressed online-EWC"

    @pytest.mark.parametrize(
        ("measure", "more", "message"),
        [
            ("online-EWC", {"compress": -1}, "compress=-1: expected a number of epochs"),
            ("online-EWC", {"compress": True}, "compress=True: expected a number of epochs"),
            ("online-EWC", {"compress": 2.5}, r"compress=2\.5: expected a number of epochs"),
            ("fine-tune", {"trains": "jointly"}, "compress=1 with trains='jointly'.*or compress=0"),
            ("fine-tune", {"trains": "anew"}, "compress=1 with trains='anew'"),
            ("EWC", {"consolidate": 20}, "consolidate=20: .*expected trains='sequentially' and consolidate='tasks'"),
            ("online-EWC", {"engine": "fast"}, "compress=1, a second network, which it cannot do with; .*'plain'"),
            ("SI", {}, "compress=1 with SI: expected a measure that looks at data after training"),
            ("EWC", {"watch": ("SOS",)}, "compress=1 with SOS"),
            ("EWC", {"holds": ("distillation",)}, "compress=1 with distillation: .*no holds"),
            ("fine-tune", {"holds": ("variational",)}, "compress=1 with variational"),
            ("EWC", {"probes": ("importances",)}, "compress=1 with importances: .*no probes"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, measure, more, message):
        with pytest.raises(ConfigurationError, match=message):
            paper_spec("permuted-digits", measure, **{"compress": 1, **more})
