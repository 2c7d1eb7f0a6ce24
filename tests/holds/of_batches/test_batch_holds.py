"""Replay, distillation and dark experience: each gradient is that of its value, and nothing else is disturbed."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import anchorhold
from anchorhold import DarkExperience, Distillation, Replay
from anchorhold.errors import BatchError, ConfigurationError, OrderError
from anchorhold.holds import Reservoir, Ring
from anchorhold.tensors.divergence import divergence
from tests import helpers
from tests.helpers import grouped

X = torch.linspace(-1, 1, 120, dtype=torch.float64).reshape(40, 3).sin()
Y = torch.arange(40) % 4
NEW = X.flip(0) * 2


class Heads(nn.Module):
    """A body and a head for each of two tasks."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.25)
        self.heads = nn.ModuleList(nn.Linear(8, 4) for _ in range(2))

    def forward(self, x, head=0):
        return self.heads[head](self.drop(self.norm(self.body(x)).relu()))


network = partial(helpers.network, 3, 6, 4)


def step(model, optimizer, x=NEW, y=Y):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()


def started(hold, measure="EWC", strength=0.0, protect="0.*", **options):
    model = network()
    guard = anchorhold.Guard(
        model, measure, strength=strength, protect=protect, holds=[hold], from_scratch=True, **grouped(**options)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    step(model, optimizer, X)
    guard.consolidate([(X, Y)])
    step(model, optimizer)  # so that the model is no longer what it was
    return model, optimizer, guard


HOLDS = {
    "replay": lambda: Replay(Reservoir(12), share=None, strength=0.7, size=5),
    "replay of batches": lambda: Replay([(X[:9], Y[:9]), (X[9:15], Y[9:15])], share=None, strength=0.7),
    "distillation": lambda: Distillation(Reservoir(12), 0.7, temperature=2.0),
    "distillation of batches": lambda: Distillation([X[:9], (X[9:15],)], 0.7),
    "distillation of outputs": lambda: Distillation(Reservoir(12), 0.7, match="outputs", teacher="outputs"),
    "learning without forgetting": lambda: Distillation("new", 0.7, temperature=2.0),
    "dark experience": lambda: DarkExperience(Ring(3), 0.4, 0.8, size=6),
}


@pytest.mark.daily
@pytest.mark.parametrize("kind", HOLDS)
def test_what_is_added_to_a_step_is_the_gradient_of_the_value(kind):
    model, optimizer, guard = started(HOLDS[kind]())
    optimizer.zero_grad()
    F.cross_entropy(model(NEW), Y).backward()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    own = {name: p.grad.clone() for name, p in model.named_parameters()}
    with pytest.warns(anchorhold.AnchorholdWarning, match="acts twice"):  # it is no part of a loss here, but could be
        added = torch.autograd.grad(guard.penalty(), list(model.parameters()))
    optimizer.step()
    for (name, parameter), pull in zip(model.named_parameters(), added, strict=True):
        assert pull.abs().sum() > 0  # of what is not protected too: the second layer makes the outputs as well
        torch.testing.assert_close(parameter.detach(), before[name] - 0.1 * (own[name] + pull), rtol=0, atol=1e-10)


@pytest.mark.parametrize("closure", [False, True])
def test_a_share_makes_the_step_as_if_so_much_of_the_batch_were_old(closure):
    model, optimizer, guard = started(Replay([(X[:8], Y[:8])], share=0.25))
    twin = copy.deepcopy(model)
    loss = 0.75 * F.cross_entropy(twin(NEW), Y) + 0.25 * F.cross_entropy(twin(X[:8]), Y[:8])
    expected = torch.autograd.grad(loss, list(twin.parameters()))
    if closure:

        def evaluate():
            optimizer.zero_grad()
            value = F.cross_entropy(model(NEW), Y)
            value.backward()
            return value

        torch.testing.assert_close(optimizer.step(evaluate), loss.detach(), rtol=0, atol=1e-10)
    else:
        step(model, optimizer)
    for parameter, old, gradient in zip(model.parameters(), twin.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.detach(), old.detach() - 0.1 * gradient, rtol=0, atol=1e-10)
    assert guard.tasks == 1


def test_a_share_beside_a_quadratic_hold_leaves_that_whole():
    model, optimizer, guard = started(Replay([(X[:8], Y[:8])], share=0.25), strength=3.0, implicit=False)
    twin = copy.deepcopy(model)
    loss = 0.75 * F.cross_entropy(twin(NEW), Y) + 0.25 * F.cross_entropy(twin(X[:8]), Y[:8])
    for name, parameter in twin.named_parameters():
        if name in guard.anchor:
            loss = loss + 3.0 * (guard.importance[name] * (parameter - guard.anchor[name]).square()).sum()
    expected = torch.autograd.grad(loss, list(twin.parameters()))
    step(model, optimizer)
    for parameter, old, gradient in zip(model.parameters(), twin.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.detach(), old.detach() - 0.1 * gradient, rtol=0, atol=1e-10)


def test_a_loss_scale_is_taken_out_of_the_tasks_part_too():
    def moved(scale):
        model = network().float()
        guard = anchorhold.Guard(model, "fine-tune", strength=0.0, holds=[Replay([(X.float(), Y)], share=0.5)])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
        guard.attach(optimizer)
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(scale), torch.tensor(0.0)
        (scale * F.cross_entropy(model(NEW.float()), Y)).backward()
        optimizer.step()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    torch.testing.assert_close(moved(256.0), moved(1.0))


@pytest.mark.parametrize("measure", ["SI", "SOS", "EWC"])
def test_measures_see_no_hold(measure):
    """The same step from the same weights is measured to the last bit as without any hold."""
    found = []
    for holds in ([], [Replay(Reservoir(10), share=0.5, size=4), Distillation("new"), DarkExperience(8, size=4)]):
        torch.manual_seed(1)
        model = Heads().double()
        guard = anchorhold.Guard(model, measure, strength=1.0, protect="body*", holds=holds, from_scratch=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        guard.attach(optimizer)
        step(model, optimizer, X)
        guard.consolidate([(X, Y)])
        states = torch.get_rng_state()
        step(model, optimizer)  # with dropout: random states are those of the task's own passes
        running = guard.gradients.path.running.get(measure, {})
        found.append([guard.importance["body.weight"], model.norm.running_mean, torch.get_rng_state()])
        found[-1] += [tensors["body.weight"] for state, tensors in running.items() if state != "path"]
        assert not torch.equal(states, torch.get_rng_state())
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_random_states_and_statistics_are_left_alone():
    torch.manual_seed(0)
    model = Heads().double()
    hold = Replay([(X, Y)], share=0.5)
    guard = anchorhold.Guard(model, "fine-tune", strength=0.0, holds=[hold])
    guard.consolidate()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    F.cross_entropy(model(NEW), Y).backward()
    states, statistics = torch.get_rng_state(), {n: b.clone() for n, b in model.named_buffers()}
    optimizer.step()
    assert torch.equal(states, torch.get_rng_state()) and model.training
    assert all(torch.equal(buffer, statistics[name]) for name, buffer in model.named_buffers())


def test_the_heads_of_old_tasks_are_replayed_through():
    model = Heads()
    x, y = X.float(), Y
    hold = Replay(Reservoir(16), share=0.5, forward=lambda model, inputs, task: model(inputs, task))
    guard = anchorhold.Guard(model, "fine-tune", strength=0.0, protect="body*", holds=[hold])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    guard.consolidate([(x, y)])
    old = model.heads[0].weight.detach().clone()
    F.cross_entropy(model(x, 1), y).backward()
    assert model.heads[0].weight.grad is None
    optimizer.step()
    assert not torch.equal(model.heads[0].weight, old)


def test_the_way_a_task_was_consolidated_is_the_way_it_is_replayed():
    model = Heads()
    hold = Distillation(8, 1.0)
    guard = anchorhold.Guard(model, "fine-tune", strength=0.0, protect="body*", holds=[hold])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    for task in range(2):
        guard.consolidate([(X.float(), Y)], forward=lambda model, inputs, head=task: model(inputs, head))
    with torch.no_grad():
        model.body.weight.add_(1.0)
    F.cross_entropy(model(NEW.float(), 1), Y).backward()
    seen = {int(hold.buffer.draw(4, number).task) for number in range(20)}
    assert seen == {0, 1}
    with pytest.warns(anchorhold.AnchorholdWarning, match="acts twice"):
        pulled = [
            torch.autograd.grad(guard.penalty(), model.heads[task].weight, allow_unused=True)[0] for task in range(2)
        ]
    assert any(pull is not None for pull in pulled)


def test_learning_without_forgetting_holds_every_old_head():
    model = Heads().eval()
    hold = Distillation("new", 1.0, forward=lambda model, inputs, task: model(inputs, task))
    guard = anchorhold.Guard(model, "fine-tune", strength=0.0, holds=[hold])
    for _ in range(2):
        guard.consolidate()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    before = copy.deepcopy(model)
    with torch.no_grad():
        model.body.weight.add_(0.5)
    model(NEW.float())
    expected = sum(divergence(before(NEW.float(), head), model(NEW.float(), head)) for head in range(2))
    torch.testing.assert_close(guard.penalty(), expected)


def test_one_way_of_calling_for_all_tasks_counts_once():
    model = Heads().eval()
    guard = anchorhold.Guard(
        model, "fine-tune", strength=0.0, holds=[Distillation("new", forward=lambda model, inputs: model(inputs))]
    )
    for _ in range(2):
        guard.consolidate()
    guard.attach(torch.optim.SGD(model.parameters(), lr=0.1))
    before = copy.deepcopy(model)
    with torch.no_grad():
        model.body.weight.add_(0.5)
    model(NEW.float())
    torch.testing.assert_close(guard.penalty(), divergence(before(NEW.float()), model(NEW.float())))


def test_an_old_model_is_what_was_trainable_and_the_rest_is_shared():
    model = network()
    model[0].requires_grad_(False)
    guard = anchorhold.Guard(model, "fine-tune", strength=0.0, holds=[Distillation([X])])
    guard.consolidate()
    assert set(guard.options.holds[0].before) == {"2.weight", "2.bias"}


def test_a_distilled_model_goes_on_exactly_from_a_saved_state(tmp_path):
    model, optimizer, guard = started(Distillation([X[:9], X[9:20]], 0.7))
    guard.save(tmp_path / "guard")
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    for _ in range(3):
        step(model, optimizer)
    again = network()
    again.load_state_dict(weights)
    other = anchorhold.Guard(again, "EWC", strength=0.0, protect="0.*", holds=[Distillation([X[:9], X[9:20]], 0.7)])
    other.load(tmp_path / "guard")
    optimizer = torch.optim.SGD(again.parameters(), lr=0.1)
    optimizer.load_state_dict(state)
    other.attach(optimizer)
    for _ in range(3):
        step(again, optimizer)
    for one, two in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, two)


def test_a_guards_file_carries_no_training_data_and_a_buffers_does(tmp_path):
    model, optimizer, guard = started(Replay(Reservoir(12), share=0.5, size=4))
    guard.save(tmp_path / "guard")
    assert b"leaf" not in (tmp_path / "guard").read_bytes()
    guard.options.holds[0].buffer.save(tmp_path / "buffer")
    weights = copy.deepcopy(model.state_dict())
    step(model, optimizer)
    again = network()
    again.load_state_dict(weights)
    other = anchorhold.Guard(
        again, "EWC", strength=0.0, protect="0.*", holds=[Replay(Reservoir(12), share=0.5, size=4)]
    )
    other.load(tmp_path / "guard")
    optimizer = torch.optim.SGD(again.parameters(), lr=0.1)
    other.attach(optimizer)
    with pytest.raises(OrderError, match="a guard's file carries no training data"):
        step(again, optimizer)
    other.options.holds[0].buffer.load(tmp_path / "buffer")
    step(again, optimizer)
    for one, two in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, two)


def test_a_task_that_is_refused_leaves_the_buffer_as_it_was():
    model, _, guard = started(Replay(Reservoir(12), share=0.5))
    buffer = guard.options.holds[0].buffer
    kept, seen = list(buffer.samples), dict(buffer.seen)
    with torch.no_grad():
        model[0].weight.fill_(torch.nan)
    with pytest.raises(anchorhold.errors.NotFiniteError):
        guard.consolidate([(X, Y)])
    assert [id(s) for s in buffer.samples] == [id(s) for s in kept] and dict(buffer.seen) == seen


def test_two_holds_may_share_a_buffer():
    buffer = Reservoir(12)
    holds = [Replay(buffer, share=None), Distillation(buffer)]
    model = network()
    guard = anchorhold.Guard(model, "fine-tune", strength=0.0, holds=holds)
    guard.consolidate([(X, Y)])
    assert sum(buffer.seen.values()) == len(X) and len(buffer) == 12


def test_two_of_a_kind_have_names_of_their_own():
    holds = [Replay([(X, Y)], name="first"), Replay([(X, Y)], share=0.25, name="second")]
    assert [hold.name for hold in anchorhold.Guard(network(), "EWC", holds=holds).options.holds] == ["first", "second"]
    with pytest.raises(ConfigurationError, match="each of them once"):
        anchorhold.Guard(network(), "EWC", holds=[Replay([(X, Y)]), Replay([(X, Y)])])


def test_autocast_is_that_of_training():
    model = nn.Linear(3, 4)
    seen = []

    class Watching(Replay):
        def loss(self, held, drawn):
            seen.append(torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"))
            return super().loss(held, drawn)

    hold = Watching([(X.float(), Y)], share=0.5, name="watching")
    guard = anchorhold.Guard(model, "fine-tune", strength=0.0, holds=[hold])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    for on in (True, False):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=on):
            loss = F.cross_entropy(model(NEW.float()), Y)
        loss.backward()
        optimizer.step()
    assert seen == [torch.bfloat16, False]


def test_a_copy_of_the_model_takes_no_hook_along(tmp_path):
    model, optimizer, guard = started(Distillation("new"))
    twin = copy.deepcopy(model)
    torch.save(model, tmp_path / "model")
    torch.load(tmp_path / "model", weights_only=False)(X)
    model(NEW)
    seen = guard._attachment.watcher.calls.last
    twin(X)
    assert guard._attachment.watcher.calls.last is seen
    guard.detach()
    assert not model._forward_pre_hooks
    del optimizer


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers_are_replayed_through(reentrant):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network()

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(self.inner, x.requires_grad_(), use_reentrant=reentrant)

    results = []
    for model in (Checkpointed(), network()):
        guard = anchorhold.Guard(model, "fine-tune", strength=0.0, holds=[Replay([(X.clone(), Y)], share=0.5)])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        guard.attach(optimizer)
        for _ in range(2):
            step(model, optimizer, NEW.clone())
        results.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*results, rtol=0, atol=1e-12)


def test_labels_of_tokens_and_of_pixels():
    outputs = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[1, 2, -100, 3, 4], [0, -100, -100, 6, 5]])
    expected = F.cross_entropy(outputs.reshape(-1, 7), labels.reshape(-1), ignore_index=-100)
    torch.testing.assert_close(anchorhold.holds.of_batches.replay.class_loss(outputs, labels), expected)
    torch.testing.assert_close(anchorhold.holds.of_batches.replay.class_loss(outputs.mT, labels), expected)
    assert anchorhold.holds.of_batches.replay.class_loss(outputs, torch.full((2, 5), -100)) == 0


@pytest.mark.daily
@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Replay([], 0.5), BatchError, "list is empty"),
        (lambda: Replay(iter([(X, Y)]), 0.5), BatchError, "only once"),
        (lambda: Replay([(X, Y)], 1.5), ConfigurationError, "share=1.5: expected a number from 0 to 1"),
        (lambda: Replay([(X, Y)], share=-0.1), ConfigurationError, "share=-0.1"),
        (lambda: Replay(0, 0.5), ConfigurationError, "source=0: expected how many old samples to keep"),
        (lambda: anchorhold.holds.AveragedGradient(-1, size=8), ConfigurationError, "source=-1: expected"),
        (lambda: Replay([(X, Y)], size=0), ConfigurationError, "size=0"),
        (lambda: Replay([(X, Y)], forward=3), ConfigurationError, "forward=3"),
        (lambda: Replay((X, Y)), BatchError, "single batch"),
        (lambda: Distillation("old"), ConfigurationError, "source='old'"),
        (lambda: Distillation([X], match="logits"), ConfigurationError, "match='logits'"),
        (lambda: Distillation([X], temperature=0), ConfigurationError, "temperature=0"),
        (lambda: Distillation([X], teacher="outputs"), ConfigurationError, "with the samples of a buffer"),
        (lambda: DarkExperience([(X, Y)]), ConfigurationError, "expected a buffer"),
        (lambda: DarkExperience(5, alpha=-1), ConfigurationError, "alpha=-1"),
        (lambda: Ring(0), ConfigurationError, "each=0"),
        (lambda: Replay([(X, Y)], loss="mse"), ConfigurationError, "loss='mse'"),
        (lambda: Replay(10, name=3), ConfigurationError, "name=3"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_shares_that_leave_nothing_are_refused():
    holds = [Replay([(X, Y)], 0.75), Distillation([X], share=0.5)]
    with pytest.raises(ConfigurationError, match="more than the whole step"):
        anchorhold.Guard(network(), "EWC", holds=holds)


@pytest.mark.daily
@pytest.mark.parametrize(
    ("hold", "error", "message"),
    [
        (lambda: Replay([X], 0.5), BatchError, "Batches without labels"),
        (lambda: Replay([(X, Y + 5)], 0.5), BatchError, "A label 8 for outputs of 4 classes"),
        (lambda: Replay([(X, Y)], 0.5, loss=nn.CrossEntropyLoss(reduction="none")), ConfigurationError, "one number"),
        (lambda: Replay([(X, Y)], 0.5, loss=lambda outputs, y: 1.0), ConfigurationError, "one number"),
        (lambda: Replay([(X, Y.double())], 0.5), BatchError, "no labels of classes"),
        (lambda: Replay([(X, Y.reshape(-1, 2).repeat(2, 1))], 0.5), BatchError, "Labels of shape"),
        (lambda: Replay([(X, Y)], 0.5, forward=lambda m, x: m(x).detach()), ConfigurationError, "does not depend"),
        (lambda: Distillation([X], forward=lambda m, x: m(x)[:, :1]), BatchError, "one number each"),
    ],
)
def test_what_cannot_be_right_is_refused_at_the_first_step(hold, error, message):
    model = network()
    guard = anchorhold.Guard(model, "fine-tune", strength=0.0, holds=[hold()])
    guard.consolidate()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(error, match=message):
        step(model, optimizer)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_data_that_a_buffer_needs_are_asked_for():
    guard = anchorhold.Guard(network(), "fine-tune", strength=0.0, holds=[Replay(10)])
    with pytest.raises(BatchError, match="looks at each task's data"):
        guard.consolidate()
    guard.consolidate(iter([(X, Y)]))  # read once, by the buffer alone
    guard = anchorhold.Guard(network(), "EWC", strength=0.0, holds=[Replay(10)])
    with pytest.raises(BatchError, match="only once"):
        guard.consolidate(iter([(X, Y)]))
    assert guard.tasks == 0


def test_a_model_that_was_not_called_has_no_new_inputs():
    model = network()
    guard = anchorhold.Guard(model, "fine-tune", strength=0.0, holds=[Distillation("new")])
    guard.consolidate()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    F.cross_entropy(model[2](model[1](model[0](NEW))), Y).backward()
    with pytest.raises(OrderError, match="was not called"):
        optimizer.step()


def test_what_is_forgotten_is_no_longer_the_old_models():
    model = network()
    guard = anchorhold.Guard(model, "EWC", strength=0.0, holds=[Distillation([X])])
    guard.consolidate([(X, Y)])
    guard.forget("2.weight", "2.bias")
    model[2] = nn.Linear(6, 5).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    step(model, optimizer)
    assert guard.options.holds[0].before["2.weight"].shape == (5, 6)


def test_a_guard_whose_own_hold_has_nothing_yet_says_so_beside_others():
    model = network()
    guard = anchorhold.Guard(model, "EWC", strength=10.0, holds=[Replay([(X, Y)])])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    with pytest.warns(anchorhold.AnchorholdWarning, match="holds nothing yet by EWC"):
        step(model, optimizer)


def test_a_setting_that_a_hold_does_not_have_names_those_that_it_has():
    with pytest.raises(ConfigurationError, match=r"has no setting 'shar'; it has source, share, strength"):
        anchorhold.holds.hold("replay", shar=0.5)
    assert anchorhold.holds.hold("replay", source=10, share=0.25).share == 0.25
