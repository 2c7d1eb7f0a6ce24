"""Holds with batches of their own in loops as they are: mixed precision, closures, several optimizers, copies."""

import copy
import pickle
import warnings
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import anchorhold
from anchorhold import AnchorholdWarning, DarkExperience, Distillation, Replay
from anchorhold.errors import BatchError, ConfigurationError, NotFiniteError, OrderError
from anchorhold.holds import Reservoir
from tests import helpers
from tests.guard.sam import SAM
from tests.helpers import grouped
from tests.integrations.tiny import gpt2, text

X = torch.linspace(-1, 1, 120, dtype=torch.float64).reshape(40, 3).sin()
Y = torch.arange(40) % 4
NEW = X.flip(0) * 2
network = partial(helpers.network, 3, 6, 4)


def guarded(model, *holds, measure="fine-tune", strength=0.0, **options):
    """A guard that has consolidated the model as it is, which then moves away."""
    guard = anchorhold.Guard(model, measure, strength=strength, holds=holds, **grouped(**options))
    x = X.to(next(model.parameters()).dtype)
    guard.consolidate([(x, Y)])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.ones_like(parameter))
    return guard


def step(model, *optimizers, x=NEW, y=Y):
    for optimizer in optimizers:
        optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    for optimizer in optimizers:
        optimizer.step()


def flat(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def divergence(old, new, x):
    then, now = old(x).detach().log_softmax(-1), new(x).log_softmax(-1)
    return (then.exp() * (then - now)).sum(-1).mean()


@pytest.mark.parametrize("fused", [False, True])
def test_a_scaled_float16_loop(fused):
    """Against the mixed loss in the same precision, scaled alike; and where a gradient overflows at the first scale."""
    x, new = X.float(), NEW.float()
    model = network(dtype=torch.float32)
    before = copy.deepcopy(model)
    guard = guarded(model, Replay([(x, Y)], share=0.25), Distillation([x], 2.0))
    twin = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    guard.attach(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    with torch.autocast("cpu", torch.float16):
        loss = F.cross_entropy(model(new), Y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    value = 0.75 * F.cross_entropy(twin(new), Y) + 0.25 * F.cross_entropy(twin(x), Y) + 2 * divergence(before, twin, x)
    value.backward()
    expected = torch.cat([(p.detach() - 0.1 * p.grad).flatten() for p in twin.parameters()])
    torch.testing.assert_close(flat(model), expected, rtol=0, atol=3e-4)  # three digits
    assert (flat(model) - flat(twin)).abs().max() > 1e-2


@pytest.mark.parametrize(("factor", "finite"), [(200.0, True), (1e9, False)])
def test_float16_that_overflows_is_scaled_down_or_refused(factor, finite):
    model = network(dtype=torch.float32)
    hold = Replay([(X.float(), Y)], share=None, loss=lambda out, y: factor * F.cross_entropy(out, y))
    guard = anchorhold.Guard(model, "fine-tune", strength=0.0, holds=[hold])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    guard.attach(optimizer)
    before = copy.deepcopy(model)
    with torch.autocast("cpu", torch.float16):
        loss = 0 * F.cross_entropy(model(NEW.float()), Y)
    loss.backward()
    if not finite:
        with pytest.raises(NotFiniteError, match="in float16"):
            optimizer.step()
        assert torch.equal(flat(model), flat(before))
        return
    optimizer.step()
    (factor * F.cross_entropy(before(X.float()), Y)).backward()
    moved = (flat(before) - flat(model)) / 1e-6
    torch.testing.assert_close(moved, torch.cat([p.grad.flatten() for p in before.parameters()]), rtol=0.02, atol=0.3)


def test_the_old_model_under_autocast_is_not_the_new_one():
    """Whose 16-bit weights autocast keeps by parameter, whatever values they have."""
    model = network(dtype=torch.float32)
    guard = guarded(model, Distillation([X.float()]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    before = flat(model)
    with torch.autocast("cpu", torch.bfloat16):
        (0 * model(NEW.float()).sum()).backward()
        optimizer.step()  # inside, as some loops have it
    assert float(guard.options.holds[0].last) > 0.01 and not torch.equal(flat(model), before)


def test_a_line_search_sees_the_mixed_loss():
    """LBFGS with the holds attached is LBFGS of the mixed loss."""
    results = []
    for held in (True, False):
        model = network()
        before = copy.deepcopy(model)
        guard = guarded(model, Replay([(X, Y)], share=0.25), Distillation([X], 2.0))
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=6, line_search_fn="strong_wolfe")
        if held:
            guard.attach(optimizer)
        else:
            guard.detach()

        def closure(model=model, before=before, optimizer=optimizer, held=held):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(NEW), Y)
            if not held:
                loss = 0.75 * loss + 0.25 * F.cross_entropy(model(X), Y) + 2 * divergence(before, model, X)
            loss.backward()
            return loss

        optimizer.step(closure)
        results.append(flat(model))
    torch.testing.assert_close(*results, rtol=1e-8, atol=1e-8)


def test_a_closure_runs_the_model_once_for_each_hold():
    calls = []
    model = network()
    hold = Replay([(X, Y)], share=0.5, forward=lambda model, x: calls.append(0) or model(x))
    guard = anchorhold.Guard(model, "fine-tune", strength=0.0, holds=[hold])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(NEW), Y)
        loss.backward()
        return loss

    optimizer.step(closure)
    assert len(calls) == 1


def test_sam_climbs_by_the_task_and_steps_by_the_mixed_loss():
    model = network()
    guard = guarded(model, Replay([(X, Y)], share=0.5))
    twin = copy.deepcopy(model)
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, rho=0.5)
    guard.attach(optimizer)

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(NEW), Y)
        loss.backward()
        return loss

    closure()
    optimizer.step(closure)
    climb = torch.autograd.grad(F.cross_entropy(twin(NEW), Y), list(twin.parameters()))
    norm = torch.stack([g.norm() for g in climb]).norm()
    top = copy.deepcopy(twin)
    with torch.no_grad():
        for parameter, g in zip(top.parameters(), climb, strict=True):
            parameter.add_(g, alpha=float(0.5 / norm))
    (0.5 * F.cross_entropy(top(NEW), Y) + 0.5 * F.cross_entropy(top(X), Y)).backward()
    expected = flat(twin) - 0.1 * torch.cat([p.grad.flatten() for p in top.parameters()])
    torch.testing.assert_close(flat(model), expected, rtol=0, atol=1e-10)


def test_optimizers_that_take_turns_get_the_same_old_batch():
    model = network()
    drawn = []
    hold = Replay(Reservoir(20), share=0.5, size=4, loss=lambda out, y: drawn.append(y) or F.cross_entropy(out, y))
    guard = guarded(model, hold)
    optimizers = [torch.optim.SGD(model[i].parameters(), lr=0.1) for i in (0, 2)]
    guard.attach(*optimizers)
    for _ in range(3):
        step(model, *optimizers)
    assert len(drawn) == 6
    assert all(torch.equal(one, two) for one, two in zip(drawn[::2], drawn[1::2], strict=True))
    assert not torch.equal(drawn[0], drawn[2])


def test_a_head_outside_the_model_is_replayed_through_and_not_distilled():
    for hold in (Replay([(X, Y)], 0.5), Distillation([X])):
        body, head = nn.Linear(3, 6).double(), nn.Linear(6, 4).double()
        hold.forward = anchorhold.holds.of_batches.batch_hold.Way.of(lambda body, x, head=head: head(body(x)))
        guard = anchorhold.Guard(body, "fine-tune", strength=0.0, holds=[hold])
        guard.consolidate()
        optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
        guard.attach(optimizer)
        before = flat(head)
        (0 * body(NEW).sum()).backward()
        if isinstance(hold, Distillation):
            with pytest.raises(ConfigurationError, match=r"depend on SGD\[2\].*no old value"):
                optimizer.step()
        else:
            optimizer.step()
            assert not torch.equal(flat(head), before)


def test_an_argument_with_a_value_of_its_own_is_no_task():
    ways = {
        lambda model, x: x: False,
        lambda model, x, head=5: head: False,
        lambda model, x, head: head: True,
        lambda model, x, task=5: task: True,
    }
    for function, asks in ways.items():
        assert anchorhold.holds.of_batches.batch_hold.Way.of(function).asks_for_task == asks
    guard = anchorhold.Guard(network(), "fine-tune", strength=0.0, holds=[Replay([(X, Y)], 0.5)])
    guard.consolidate(forward=lambda model, x, scale=7.0: scale * model(x))
    expected = 0.5 * F.cross_entropy(7 * guard._core.runtime.model(X), Y)
    torch.testing.assert_close(guard.penalty(), expected)


def test_layers_that_thaw_are_part_of_the_old_model():
    """Kept as they were before their first step: otherwise the old model would go along with the new."""
    model = network()
    model[0].requires_grad_(False)
    guard = anchorhold.Guard(model, "fine-tune", strength=0.0, holds=[Distillation([X], 3.0)])
    guard.consolidate()
    before = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    guard.attach(optimizer)
    step(model, optimizer)
    model[0].requires_grad_(True)
    for _ in range(2):
        step(model, optimizer)
    torch.testing.assert_close(guard.penalty(), 3.0 * divergence(before, model, X))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(7, 5)
        self.out = nn.Linear(5, 7)
        self.out.weight = self.words.weight

    def forward(self, ids, scale=None):
        return self.out(self.words(ids).tanh()) * (1 if scale is None else scale)


def test_tied_weights_and_inputs_by_name():
    torch.manual_seed(0)
    model = Tied().double()
    old = {"ids": torch.arange(6).reshape(2, 3), "labels": torch.arange(6).reshape(2, 3)}
    guard = anchorhold.Guard(model, "fine-tune", strength=0.0, holds=[Replay([old], 0.5), Distillation("new")])
    guard.consolidate()
    before, optimizer = copy.deepcopy(model), torch.optim.SGD(model.parameters(), lr=0.5)
    guard.attach(optimizer)
    with torch.no_grad():
        model.words.weight.mul_(1.5)
    twin = copy.deepcopy(model)
    x, y = torch.tensor([[6, 5, 4]]), torch.tensor([[1, 2, 3]])
    scale = torch.full((1, 3, 1), 2.0, dtype=torch.float64)
    F.cross_entropy(model(x, scale=scale).flatten(0, 1), y.flatten()).backward()
    optimizer.step()
    loss = 0.5 * F.cross_entropy(twin(x, scale=scale).flatten(0, 1), y.flatten())
    loss = loss + 0.5 * F.cross_entropy(twin(old["ids"]).flatten(0, 1), old["labels"].flatten())
    (loss + divergence(lambda x: before(x, scale), lambda x: twin(x, scale), x)).backward()
    torch.testing.assert_close(flat(model), flat(twin) - 0.5 * torch.cat([p.grad.flatten() for p in twin.parameters()]))


def test_a_language_models_loss_is_its_own_with_texts_of_any_length():
    model = gpt2(layers=1, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0).double()
    batches = [text(rows=3, length=5, seed=1), text(rows=2, length=8, seed=2), text(rows=4, length=6, seed=3)]
    guard = anchorhold.Guard(
        model, "fine-tune", strength=0.0, holds=[Replay(batches, share=None), Replay(30, name="kept")]
    )
    guard.consolidate(batches)
    for number in range(3):
        hold = guard.options.holds[0]
        held = guard._core.held({})._replace(steps=number)
        expected = model(**batches[hold.source.draw(1, number).place]).loss
        torch.testing.assert_close(hold.value(held), expected, check_dtype=False, rtol=1e-6, atol=0)  # float32
        kept = guard.options.holds[1].buffer.draw(32, number).batch
        expected = 0.5 * model(**kept).loss
        torch.testing.assert_close(guard.options.holds[1].value(held), expected, check_dtype=False, rtol=1e-6, atol=0)
    assert {tuple(guard.options.holds[1].buffer.draw(32, n).batch["input_ids"].shape) for n in range(20)} == {
        (3, 5), (2, 8), (4, 6)
    }  # fmt: skip


def test_a_compiled_model():
    """Both ways of compiling it; the old model and the new one have a graph each."""
    results = []
    for compiled in (lambda model: model, lambda model: torch.compile(model, backend="aot_eager")):
        torch._dynamo.reset()
        model = compiled(network())
        guard = anchorhold.Guard(
            model, "fine-tune", strength=0.0, holds=[Replay([(X, Y)], 0.5), Distillation("new", 2.0)]
        )
        guard.consolidate()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        guard.attach(optimizer)
        for _ in range(3):
            step(model, optimizer)
        assert float(guard.options.holds[1].last) > 1e-3
        results.append(flat(model))
    torch.testing.assert_close(*results, rtol=0, atol=1e-10)


def test_a_model_in_another_precision_takes_its_old_self_along():
    model = network()
    before = copy.deepcopy(model)
    guard = guarded(model, Distillation([X.float()]))
    model.float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    expected = divergence(before.float(), model, X.float()).detach()
    step(model, optimizer, x=NEW.float())
    torch.testing.assert_close(guard.options.holds[0].last, expected)


def with_head(model, inputs, task):
    return model(inputs) * (task + 1)


def test_a_guard_is_copied_and_pickled_with_its_holds():
    loader = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True)
    model = network()
    made = [
        Replay(Reservoir(10), 0.25, size=4, forward=with_head),
        Replay(loader, 0.25, name="loader"),
        Distillation("new"),
    ]
    guard = guarded(model, *made)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    step(model, optimizer)  # so that the loader is in the middle of its pass
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="A copy of an attached Guard")
        copies = [copy.deepcopy((model, guard)), pickle.loads(pickle.dumps((model, guard)))]
    guard.detach()
    assert not model._forward_pre_hooks
    before = flat(model)
    step(model, optimizer)
    assert not torch.equal(flat(model), before)  # without any hold, and without an error
    for twin, other in copies:
        again = torch.optim.SGD(twin.parameters(), lr=0.1)
        other.attach(again)
        step(twin, again)
        assert all(hold.last is not None for hold in other.options.holds)
        assert torch.isfinite(flat(twin)).all() and len(other.options.holds[0].buffer) == 10


def test_a_loader_that_shuffles_leaves_random_states_alone():
    loader = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True)
    states = []
    for holds in ([], [Replay(loader, 0.5)]):
        torch.manual_seed(3)
        model = network()
        guard = anchorhold.Guard(model, "fine-tune", strength=0.0, holds=holds)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        guard.attach(optimizer)
        for _ in range(7):
            step(model, optimizer)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_checkpointed_batch_norms_keep_their_statistics():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 4)).double()

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False, preserve_rng_state=False)

    torch.manual_seed(0)
    model = Checkpointed()
    guard = anchorhold.Guard(model, "fine-tune", strength=0.0, holds=[Replay([(X, Y)], 0.5)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    F.cross_entropy(model(NEW), Y).backward()
    kept, state = model.inner[1].running_mean.clone(), torch.get_rng_state()
    optimizer.step()
    assert torch.equal(model.inner[1].running_mean, kept) and torch.equal(torch.get_rng_state(), state)


def test_new_inputs_go_through_each_way_of_calling_once():
    """One function for all tasks is one head, however many tasks there are."""
    model = network()
    before = copy.deepcopy(model)

    def twice(model, x):
        return 2 * model(x)

    guard = anchorhold.Guard(model, "fine-tune", strength=0.0, holds=[Distillation("new")])
    for _ in range(3):
        guard.consolidate(forward=twice)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    with torch.no_grad():
        model[0].weight.add_(0.5)
    model(NEW)
    expected = divergence(lambda x: 2 * before(x), lambda x: 2 * model(x), NEW)
    torch.testing.assert_close(guard.penalty(), expected)


def test_a_function_that_no_state_carries_is_asked_for():
    def make():
        return anchorhold.Guard(network(), "fine-tune", strength=0.0, holds=[Replay([(X, Y)], 0.5), Distillation([X])])

    guard = make()
    guard.consolidate(forward=lambda model, x: 2 * model(x))
    state = guard.state_dict()
    again = make()
    again.load_state_dict(state)
    with pytest.raises(OrderError, match=r"Task 1 was consolidated with forward=.*no state carries"):
        again.penalty()
    again.options.holds[0].forward = again.options.holds[1].forward = anchorhold.holds.of_batches.batch_hold.Way.of(
        with_head
    )
    again.load_state_dict(state)
    assert again.penalty() > 0


def test_what_a_buffer_would_refuse_is_refused_by_a_rehearsal():
    guard = anchorhold.Guard(network(), "fine-tune", strength=0.0, holds=[Replay(10), Distillation("new")])
    with pytest.raises(BatchError, match="str among its inputs"):
        guard.rehearse([{"x": X, "text": "hello"}])
    with pytest.raises(BatchError, match="without labels for Replay"):
        guard.rehearse([X])
    guard.rehearse([(X, Y)])
    assert len(guard.options.holds[0].buffer) == 0 and guard.tasks == 0 and not guard.options.holds[1].before


def test_print_says_what_each_hold_keeps():
    model = network()
    made = [
        Replay(20, 0.25, size=5), DarkExperience(12, 0.1, 0.5), Distillation("new", 2.0),
        Replay([(X, Y)], share=None, strength=3, name="given"),
    ]  # fmt: skip
    guard = anchorhold.Guard(model, "fine-tune", strength=0.0, holds=made, from_scratch=True)
    assert "out of Reservoir(empty), from the first consolidation on" in str(guard)
    guard.consolidate([(X, Y)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    step(model, optimizer)
    shown = str(guard)
    for line in (
        "replay: a share of 0.25 of each step, 5 samples a step out of Reservoir(20 of task 1); its loss was 1.",
        "DER++: α 0.1 and β 0.5, 32 samples a step out of Reservoir(12 of task 1); its loss was ",
        "distillation: strength 2, the inputs of each step; its loss was 0 at the last step",
        "given: strength 3, a batch a step out of 1 in a list",
    ):
        assert f"beside it holds {line}" in shown
    assert "importance" not in shown  # of which there is none, and that is as it should be


@pytest.mark.parametrize("measure", ["fine-tune", "EWC"])
def test_holds_that_keep_are_no_reason_to_warn(measure):
    with warnings.catch_warnings():
        warnings.simplefilter("error", AnchorholdWarning)
        model = network()
        guard = anchorhold.Guard(model, measure, strength=0.0, holds=[Replay([(X, Y)], 0.5)])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        guard.attach(optimizer)
        step(model, optimizer)
        guard.consolidate([(X, Y)])
        step(model, optimizer)


@pytest.mark.parametrize("hold", [lambda: Distillation("new"), lambda: Replay(10)])
def test_holds_that_keep_nothing_yet_are(hold):
    model = network()
    guard = anchorhold.Guard(model, "fine-tune", strength=0.0, holds=[hold()])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    with pytest.warns(AnchorholdWarning, match=r"holds nothing yet: .* keeps what a model was or had seen"):
        step(model, optimizer)
    guard.consolidate([(X, Y)])
    with warnings.catch_warnings():
        warnings.simplefilter("error", AnchorholdWarning)
        step(model, optimizer)


def test_a_share_in_a_loss_of_ones_own():
    """Nobody but the loop can take the share from the task's loss there: (1 − ρ)·loss + penalty is the held step."""
    model = network()
    guard = guarded(model, Replay([(X, Y)], share=0.25), measure="EWC", strength=2.0, implicit=False)
    other = copy.deepcopy(guard)
    twin = other._core.runtime.model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    step(model, optimizer)
    by_hand = torch.optim.SGD(twin.parameters(), lr=0.1)
    other.attach(by_hand, hold=False)
    ((1 - 0.25) * F.cross_entropy(twin(NEW), Y) + other.penalty()).backward()
    by_hand.step()
    torch.testing.assert_close(flat(twin), flat(model), rtol=1e-10, atol=1e-12)
