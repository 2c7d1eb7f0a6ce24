"""One matrix over the whole network in a guard: held, saved, loaded, grown and deleted as any other importance."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed import checkpoint

import anchorhold
from anchorhold.engine.reductions import in_shapes
from anchorhold.errors import ModelError, ProtectError, StateError
from anchorhold.forms import Dense, LowRank
from tests.forms.whole_network import STRENGTH, brute_force, data, displacement, guarded, move, network
from tests.guard.helpers import loss

FORMS = {"dense": Dense(), "lowrank": LowRank(), "damped": LowRank(rank=8, damping=0.2)}
CLOSE = {"rtol": 1e-10, "atol": 1e-12}


@pytest.fixture(params=FORMS)
def form(request):
    return FORMS[request.param]


def matrix_of(guard):
    """Return Q as a matrix."""
    matrix = guard.held.matrices["network"]
    if isinstance(guard.options.form, Dense):
        return matrix.h
    identity = torch.eye(matrix.block.length, dtype=torch.float64)
    return (matrix.u * matrix.values) @ matrix.u.mT + matrix.mean_damping * identity


def pulls(guard, model):
    """Return 2c·Q·D by parameter."""
    _, d = displacement(guard, model)
    return in_shapes(guard.held.matrices["network"].block, 2 * STRENGTH * matrix_of(guard) @ d)


def task_gradients(model, batch):
    found = torch.autograd.grad(loss(model, batch), list(model.parameters()))
    return dict(zip(dict(model.named_parameters()), found, strict=True))


@pytest.mark.parametrize("closure", [False, True])
def test_a_step_is_held_by_the_whole_matrix(form, closure):
    model = network()
    guard = guarded(model, form)
    guard.options.implicit = False
    move(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    batch = data(1)[0]
    before, task, pull = copy.deepcopy(model.state_dict()), task_gradients(model, batch), pulls(guard, model)

    def evaluate():
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        return value

    if closure:
        expected = loss(model, batch).detach() + guard.penalty().detach()
        torch.testing.assert_close(optimizer.step(evaluate).detach(), expected, **CLOSE)
    else:
        evaluate()
        optimizer.step()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach(), before[name] - 0.1 * (task[name] + pull[name]), **CLOSE)


@pytest.mark.parametrize("closure", [False, True])
def test_weights_of_another_optimizer_pull_too(form, closure):
    """The first layer's pull depends on how far the second is from its anchor, whoever moves that."""
    model = network()
    guard = guarded(model, form)
    move(model)
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (model[0], model[2])]
    guard.attach(*optimizers)
    batch = data(1)[0]
    before, task, pull = copy.deepcopy(model.state_dict()), task_gradients(model, batch), pulls(guard, model)

    def evaluate():
        model.zero_grad()
        value = loss(model, batch)
        value.backward()
        return value

    if closure:
        expected = loss(model, batch).detach() + guard.penalty().detach()
        torch.testing.assert_close(optimizers[0].step(evaluate).detach(), expected, **CLOSE)
    else:
        evaluate()
        optimizers[0].step()
    for name, parameter in model[0].named_parameters(prefix="0"):
        torch.testing.assert_close(parameter.detach(), before[name] - 0.1 * (task[name] + pull[name]), **CLOSE)
    for name, parameter in model[2].named_parameters(prefix="2"):
        assert torch.equal(parameter, before[name])


def test_the_penalty_is_the_quadratic_form_and_its_gradient_is_the_pull(form):
    model = network("branches")
    guard = guarded(model, form)
    move(model)
    _, d = displacement(guard, model)
    value = guard.penalty()
    torch.testing.assert_close(value.detach(), STRENGTH * d @ matrix_of(guard) @ d, **CLOSE)
    gradients = torch.autograd.grad(value, list(model.parameters()))
    for name, found in zip(dict(model.named_parameters()), gradients, strict=True):
        torch.testing.assert_close(found, pulls(guard, model)[name], **CLOSE)


def test_a_watching_measure_sees_the_tasks_gradient_alone(form):
    def path(strength):
        model = network()
        guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=strength, form=form, watch=["SI", "SOS"])
        guard.consolidate(data())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)  # so that both see the same weights
        guard.attach(optimizer)
        move(model)
        loss(model, data(2)[0]).backward()
        optimizer.step()
        return guard.gradients.path.running["SOS"]["second_moment"]

    without, held = path(0.0), path(50.0)
    assert all(torch.equal(without[name], held[name]) for name in without)


def test_its_state_is_saved_loaded_and_resumed(form, tmp_path):
    model = network("branches")
    guard = guarded(model, form, decay=0.5)
    guard.save(tmp_path / "state")
    other = anchorhold.Guard(copy.deepcopy(model), anchorhold.Fisher(), form=form)
    other.load(tmp_path / "state")
    for own, theirs in ((model, guard), (other._core.runtime.model, other)):
        move(own)
        theirs.consolidate(data(3))
        move(own, seed=6)
    assert other.state_dict()["tensors"].keys() == guard.state_dict()["tensors"].keys()
    torch.testing.assert_close(other.penalty(), guard.penalty(), rtol=1e-12, atol=0)
    assert torch.equal(matrix_of(other), matrix_of(guard))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable or uninitialized")
def test_its_state_goes_through_a_distributed_checkpoint(form, tmp_path):
    model = network()
    guard = guarded(model, form)
    checkpoint.save({"guard": guard.state_dict()}, checkpoint_id=tmp_path)
    other = anchorhold.Guard(copy.deepcopy(model), anchorhold.Fisher(), form=form)
    state = {"guard": anchorhold.guard.blank_state_dict(other, checkpoint.FileSystemReader(tmp_path).read_metadata())}
    checkpoint.load(state, checkpoint_id=tmp_path)
    other.load_state_dict(state["guard"])
    assert torch.equal(matrix_of(other), matrix_of(guard))


def test_a_state_of_another_form_or_network_is_refused(form):
    state = guarded(network(), form).state_dict()
    with pytest.raises(StateError, match="form="):
        anchorhold.Guard(network(), anchorhold.Fisher()).load_state_dict(state)
    wider = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    with pytest.raises(StateError, match="another model"):
        anchorhold.Guard(wider, anchorhold.Fisher(), form=form).load_state_dict(state)
    narrow = anchorhold.Guard(network(), anchorhold.Fisher(), form=form, protect="0.*")
    with pytest.raises(StateError, match="another `protect`"):
        narrow.load_state_dict(state)
    assert not narrow.held.matrices and not narrow.anchor


def with_a_new_head():
    """A network that consolidates two layers, and then is given a third."""

    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.old = nn.Linear(4, 5), nn.Linear(5, 3)
            self.new = None

        def forward(self, x):
            x = self.body(x).tanh()
            return self.old(x) if self.new is None else self.new(x)

    torch.manual_seed(0)
    return Heads().double()


@pytest.mark.parametrize("form", [Dense(), LowRank()], ids=["dense", "lowrank"])
def test_parameters_that_come_later_have_nothing_of_earlier_tasks(form):
    model = with_a_new_head()
    first = brute_force(model)
    guard = guarded(model, form, decay=0.5)
    model.new = nn.Linear(5, 3).double()
    guard.refresh()
    again = anchorhold.Guard(model, anchorhold.Fisher(), form=form, decay=0.5)
    again.load_state_dict(guard.state_dict())  # as it is before the next consolidation, with a parameter in no block
    move(model)
    torch.testing.assert_close(again.penalty(), guard.penalty(), **CLOSE)
    names = guard.held.matrices["network"].block.parameters
    second = brute_force(model)
    for each in (guard, again):
        each.consolidate(data())
        block = each.held.matrices["network"].block
        numbers = torch.arange(block.length).split([torch.Size(shape).numel() for shape in block.shapes])
        of_old = torch.cat([n for n, name in zip(numbers, block.parameters, strict=True) if name in names])
        expected = second.clone()
        expected[of_old.unsqueeze(1), of_old] += 0.5 * first
        torch.testing.assert_close(matrix_of(each), expected, **CLOSE)


def test_parameters_that_are_frozen_later_stay_in_the_matrix(form):
    model = network()
    guard = guarded(model, form)
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    guard.consolidate(data(seed=1))
    assert guard.held.matrices["network"].block.length == 43
    again = anchorhold.Guard(model, anchorhold.Fisher(), form=form)
    again.load_state_dict(guard.state_dict())
    assert torch.equal(matrix_of(again), matrix_of(guard))


def test_a_layer_that_is_gone_is_refused_and_nothing_is_lost(form):
    model = with_a_new_head()
    guard = guarded(model, form)
    before = matrix_of(guard).clone()
    model.new, model.old = nn.Linear(5, 3).double(), None
    with pytest.raises(ProtectError, match=r"'old\.bias' was consolidated in one matrix .* forget\('old\.bias'\)"):
        guard.consolidate(data())
    assert guard.tasks == 1 and torch.equal(matrix_of(guard), before)
    with pytest.warns(anchorhold.AnchorholdWarning, match=r"'body\.bias' and 1 other parameter, so that nothing holds"):
        guard.forget("old.weight", "old.bias")
    assert not guard.held.matrices and "holds nothing" not in repr(guard) and "not held: 4" in repr(guard)
    guard.consolidate(data())
    assert guard.held.matrices["network"].block.parameters == ("body.bias", "body.weight", "new.bias", "new.weight")


def test_a_parameter_may_be_called_network(tmp_path):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = nn.Parameter(torch.randn(3, 4, dtype=torch.float64))

        def forward(self, x):
            return F.linear(x, self.network)

    model = Named()
    guard = guarded(model, "dense")
    assert guard.held.matrices.keys() == {"the network"}
    guard.save(tmp_path / "state")
    other = anchorhold.Guard(copy.deepcopy(model), anchorhold.Fisher(), form="dense")
    other.load(tmp_path / "state")
    assert torch.equal(other.held.matrices["the network"].h, guard.held.matrices["the network"].h)


def test_it_is_printed_and_rehearsed(form):
    model = network()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), form=form)
    guard.rehearse(data())
    assert not guard.held.matrices and f"in the form {form.name!r}" in repr(guard)
    guard.consolidate(data())
    move(model)
    assert "holds 4 parameters (43 weights)" in repr(guard) and "moved since" in repr(guard)


def test_a_lazy_layer_is_looked_at_once_it_has_a_shape():
    model = nn.Sequential(nn.LazyLinear(5), nn.Tanh(), nn.Linear(5, 3)).double()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), form=Dense(largest=42))
    model(data()[0][0])
    with pytest.raises(anchorhold.errors.ConfigurationError, match="43 × 43"):
        guard.consolidate(data())


def test_weights_on_two_devices_are_refused():
    model = network()
    model[2].to("meta")
    with pytest.raises(ModelError, match=r"lie on cpu, meta; expected one device"):
        anchorhold.Guard(model, anchorhold.Fisher(), form="dense")
    anchorhold.Guard(model, anchorhold.Fisher(), form=Dense(span="layers"))
