"""Holds that run the network, within a run: through its heads, in its precision, and exactly on after a stop."""

import copy
import dataclasses

import pytest
import torch

from anchorhold.holds import hold
from anchorhold_lab.experiments.store.nested_files import Flattened, read_nested
from anchorhold_lab.training.plain_run import PlainRun
from anchorhold_lab.training.protocol import Settings
from tests.lab.training.helpers import finish, make_learner

SETTINGS = Settings(epochs=2, batch_size=8, learning_rate=0.01, samples=20)

HOLDS = {
    "replay": {"source": 20, "share": 0.5, "size": 4},
    "distillation": {"strength": 0.5},
    "DER++": {"source": 20, "size": 4},
}


def make_run(*names, given=(), **options):
    holds = [*(hold(name, **HOLDS[name]) for name in names), *given]
    return PlainRun(make_learner("fine-tune", watch=(), holds=holds, settings=SETTINGS, **options))


def steps(run, count):
    """Take so many steps, whatever epochs and tasks they are in."""
    left, take = [count], run._take_step

    class Enough(Exception):
        pass

    def counted(*args):
        if not left[0]:
            raise Enough
        left[0] -= 1
        return take(*args)

    run._take_step = counted
    with pytest.raises(Enough):
        finish(run)
    run._take_step = take
    return run


@pytest.mark.parametrize("name", ["replay", "DER++"])
def test_sgd_with_momentum_meets_old_heads_one_after_another(name):
    """Each step's old samples are of one task: torch's own fused steps fail at a head that comes later than others."""
    settings = dataclasses.replace(SETTINGS, optimizer="sgd")
    run = PlainRun(make_learner("fine-tune", watch=(), holds=[hold(name, **HOLDS[name])], settings=settings))
    met = []
    draw = run.learner.guard.options.holds[0].buffer.draw
    run.learner.guard.options.holds[0].buffer.draw = lambda *given: met.append(draw(*given)) or met[-1]
    finish(run)
    assert len(run.outcomes[0].matrix) == 3 and {drawn.task for drawn in met if drawn} == {0, 1}


@pytest.mark.parametrize("own_heads", [True, False])
@pytest.mark.parametrize("name", HOLDS)
@pytest.mark.parametrize("stop_after", [3, 6, 8, 15])
def test_a_run_that_stopped_anywhere_goes_on_exactly(name, own_heads, stop_after, tmp_path):
    """Six steps a task, three an epoch; through a checkpoint's file, as an executor has it."""
    whole = finish(make_run(name, own_heads=own_heads))
    Flattened.of(steps(make_run(name, own_heads=own_heads), stop_after).state()).write(tmp_path / "state")
    resumed = make_run(name, own_heads=own_heads)
    resumed.load_state(read_nested(tmp_path / "state"))
    finish(resumed)
    assert resumed.outcomes == whole.outcomes
    assert Flattened.of(resumed.state()).digest == Flattened.of(whole.state()).digest


@pytest.mark.parametrize("name", HOLDS)
def test_it_changes_what_is_learned_and_the_first_task_not(name):
    held, free = make_run(name), make_run()
    for run in (held, free):
        list(run.learn_task())
    assert held.outcomes == free.outcomes
    for run in (held, free):
        list(run.learn_task())
    ours, theirs = (run.learner.model.body[0].weight for run in (held, free))
    assert not torch.equal(ours, theirs)


def test_a_state_without_buffers_has_no_word_of_them():
    assert "buffers" not in make_run("distillation").state()
    assert set(make_run("replay").state()["buffers"]) == {"replay"}


@pytest.mark.parametrize("name", HOLDS)
@pytest.mark.parametrize("own_heads", [True, False])
def test_old_samples_go_through_the_heads_of_their_tasks(name, own_heads):
    """Two steps of the third task."""
    run = make_run(name, own_heads=own_heads, dropout=False)
    list(run.learn_task())
    list(run.learn_task())
    called = []
    forward = run.learner.model.forward

    def seen(x, head=0):
        called.append((len(x), head))
        return forward(x, head)

    run.learner.model.forward = seen
    steps(run, 2)
    own = 2 if own_heads else 0
    others = {head for _, head in called} - {own}
    if not own_heads:
        # Once in training, and for distillation once with the old weights and once with the new.
        assert not others and len(called) == 2 * {"replay": 2, "distillation": 3, "DER++": 3}[name]
    elif name == "distillation":
        assert others == {0, 1} and len(called) == 2 * (1 + 2 * 2)
    else:
        assert others and others <= {0, 1}


@pytest.mark.parametrize("name", HOLDS)
def test_the_networks_pass_has_the_runs_precision(name):
    run = make_run(name, precision="bf16", dropout=False)
    types = set()
    run.learner.model.body[0].register_forward_hook(lambda _module, _args, out: types.add(out.dtype))
    list(run.learn_task())
    assert types == {torch.bfloat16}  # those of the measured accuracies and of the buffer's outputs too
    steps(run, 2)
    assert types == {torch.bfloat16}
    if name == "DER++":
        (sample, *_) = run.learner.guard.options.holds[0].buffer.samples
        assert sample.outputs.dtype == torch.bfloat16


def test_a_way_of_calling_that_was_given_is_kept():
    def own(model, inputs, task):
        return model(inputs, task)

    given = hold("replay", forward=own, **HOLDS["replay"])
    run = make_run(given=[given])
    assert run.learner.guard.options.holds[0].forward.function is own


def test_a_replayed_step_is_the_mean_of_old_and_new():
    """What the optimizer gets is (1 − ρ)g + ρg_old, the latter through the old task's head."""
    run = make_run("replay", dropout=False)
    list(run.learn_task())
    learner = run.learner
    buffer, old = learner.guard.options.holds[0].buffer, copy.deepcopy(learner.model)
    drawn = buffer.draw(4, 0)
    x, y = learner.samples(1).x, learner.samples(1).y
    chosen = learner.order(1, 0)[0]
    new_loss = torch.nn.functional.cross_entropy(old(x[chosen], 1), y[chosen])
    old_loss = torch.nn.functional.cross_entropy(old(drawn.batch[0], drawn.task), drawn.batch[1])
    (expected,) = torch.autograd.grad(0.5 * new_loss + 0.5 * old_loss, old.body[0].weight)
    seen = []
    run.optimizer.register_step_pre_hook(lambda *_: seen.append(learner.model.body[0].weight.grad.clone()))
    steps(run, 1)
    torch.testing.assert_close(seen[0], expected, rtol=1e-5, atol=1e-7)
