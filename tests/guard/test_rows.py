"""Small parameters that are walked side by side: what their rows must not do to memory, precision and neighbours."""

import gc
import io
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import anchorhold
from anchorhold.errors import ConfigurationError, OrderError
from anchorhold.guard import PathRecord
from anchorhold.guard.stepping import bundles
from tests.helpers import grouped


class Pieces(nn.Module):
    """Parameters of some sizes, each used by itself."""

    def __init__(self, *sizes, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(0)
        self.parts = nn.ParameterList([nn.Parameter(torch.randn(size, dtype=dtype)) for size in sizes])


def started(model, measure, strength=1.0, **settings):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = anchorhold.Guard(model, measure, strength=strength, **grouped(**settings))
    guard.attach(optimizer)
    return optimizer, guard


def backward(model, without=()):
    sum(part.square().sum() for i, part in enumerate(model.parts) if i not in without).backward()


@pytest.mark.parametrize("measure", ["SI", "SOS", "L2"])
def test_gradients_can_be_freed_after_the_step(measure):
    model = Pieces(bundles.SMALL + 1, 5, 6)
    optimizer, guard = started(model, measure)
    for _ in range(2):
        optimizer.zero_grad()
        backward(model)
        optimizer.step()
        if not guard.tasks:
            guard.consolidate()
    refs = [weakref.ref(part.grad.untyped_storage()) for part in model.parts]
    kept = [weakref.ref(part.grad) for part in model.parts]
    optimizer.zero_grad()
    gc.collect()
    assert not any(ref() is not None for ref in (*refs, *kept))


def test_parameters_that_leave_a_row_do_not_keep_it():
    model = Pieces(*[300] * 40)
    optimizer, guard = started(model, "SI")
    backward(model)
    optimizer.step()
    guard.consolidate()
    for step in range(40):
        optimizer.zero_grad()
        backward(model, without=[step])
        optimizer.step()
    tensors = guard.state_dict()["tensors"].values()
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    assert sum(storages.values()) <= 1.1 * sum(tensor.nbytes for tensor in tensors)
    file = io.BytesIO()
    torch.save(guard.state_dict(), file)
    assert len(file.getvalue()) < 2 * sum(tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize("small", [bundles.SMALL, 0], ids=["rows", "alone"])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_step_that_raised_leaves_no_buffers_behind(small, set_to_none, monkeypatch):
    monkeypatch.setattr(bundles, "SMALL", small)

    def trained(*, fails):
        model = Pieces(5, 7)
        optimizer, guard = started(model, "SI", 1.0)
        backward(model)
        optimizer.step()
        guard.consolidate()
        with torch.no_grad():
            for part in model.parts:
                part.add_(0.1)
        for step in range(3):
            optimizer.zero_grad(set_to_none=set_to_none)
            backward(model)
            if fails and step == 1:
                hook = optimizer.register_step_pre_hook(raising)
                with pytest.raises(KeyError):
                    optimizer.step()
                hook.remove()
                optimizer.zero_grad(set_to_none=set_to_none)
                backward(model)
            optimizer.step()
        return guard.gradients.path.running["SI"]["path"], [part.grad.clone() for part in model.parts]

    def raising(*_):
        raise KeyError

    (path, grads), (expected, own) = trained(fails=True), trained(fails=False)
    assert all(torch.equal(path[name], expected[name]) for name in expected)
    assert all(torch.equal(a, b) for a, b in zip(grads, own, strict=True))


@pytest.mark.parametrize("first", [3, bundles.SMALL + 1])
@pytest.mark.parametrize("measure", ["SOS", "magnitude"])
def test_a_gradient_with_the_penalty_in_it_is_refused_by_a_second_optimizer(first, measure):
    model = Pieces(first, 4, 5)
    one = torch.optim.SGD(list(model.parts)[:2], lr=0.1)
    two = torch.optim.SGD(list(model.parts)[1:], lr=0.1)
    guard = anchorhold.Guard(model, measure, options=anchorhold.GuardOptions(implicit=False))
    guard.attach(one, two)
    backward(model)
    one.step()
    two.step()  # there is no penalty yet
    guard.consolidate()
    one.zero_grad()
    two.zero_grad()
    backward(model)
    one.step()
    with pytest.raises(OrderError, match=r"'parts\.1' is still that of the last step"):
        two.step()


@pytest.mark.parametrize("measure", ["SI", "SOS", "L2"])
def test_a_part_of_the_model_may_change_its_precision(measure):
    def moved(small):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(bundles, "SMALL", small)
            model = Pieces(4, 5)
            optimizer, guard = started(model, measure)
            for step in range(6):
                if step == 3:
                    guard.consolidate()
                if step == 4:
                    model.parts[1].data = model.parts[1].data.double()
                optimizer.zero_grad()
                backward(model)
                optimizer.step()
            return guard.state_dict()["tensors"], list(model.parts)

    (rows, weights), (alone, expected) = moved(bundles.SMALL), moved(0)
    assert all(torch.equal(a, b) for a, b in zip(weights, expected, strict=True))
    assert all(torch.equal(rows[key], alone[key]) and rows[key].dtype == alone[key].dtype for key in alone)


def test_what_is_kept_more_precisely_stays_so():
    model = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3).double()])
    guard = anchorhold.Guard(model, "L2")
    guard.consolidate()
    anchor = guard.anchor["1.weight"].clone()
    model[0].double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    for layer in model:
        layer(torch.ones(1, 3, dtype=torch.float64)).sum().backward()
    optimizer.step()
    assert guard.anchor["1.weight"].dtype == torch.float64 and torch.equal(guard.anchor["1.weight"], anchor)


def test_the_penalty_is_summed_in_the_order_of_the_parameters(tmp_path):
    model = Pieces(*range(1, 30))
    guard = anchorhold.Guard(model, "magnitude")
    guard.consolidate()
    guard.save(tmp_path / "state")  # which sorts by name
    with torch.no_grad():
        for part in model.parts:
            part.mul_(1.3)
    before = guard.penalty()
    guard.load(tmp_path / "state")
    assert torch.equal(guard.penalty(), before)


@pytest.mark.parametrize("size", [4, bundles.SMALL + 1])
def test_parameters_that_share_a_gradient_are_measured_without_each_others_penalty(size):
    model = Pieces(size, size)
    optimizer, guard = started(model, anchorhold.SOS(beta2=0.0), 3.0)
    for task in range(2):
        shared = torch.full((size,), 0.5)
        for part in model.parts:
            part.grad = shared
        optimizer.step()
        if task == 0:
            guard.consolidate()
    for v in guard.gradients.path.running["SOS"]["second_moment"].values():
        torch.testing.assert_close(v, torch.full((size,), 0.25))


@pytest.mark.parametrize(
    ("running", "message"),
    [
        ({"SI": {"parts.0": torch.zeros(2)}}, r"a state 'parts\.0' of SI; its states are \['path'\]"),
        ({"SOS": {}}, r"a measure 'SOS'; along the path here are \['SI'\]"),
        ({"SI": {"path": {"parts.0": torch.zeros(3)}}}, r"of shape \(3,\); protected here is one of shape \(2,\)"),
        ({"SI": {"path": {"other": torch.zeros(3)}}}, "protected here is none of that name"),
    ],
)
def test_a_path_of_other_measures_states_or_shapes_is_refused(running, message):
    guard = anchorhold.Guard(Pieces(2), "SI")
    with pytest.raises(ConfigurationError, match=message):
        guard.gradients.path = PathRecord(running, {}, 3)
    assert guard.gradients.path.steps == 0


def test_a_model_with_many_sizes_is_that_of_parameters_by_themselves(monkeypatch):
    """Rows and single parameters beside each other, of odd sizes, frozen and thawed on the way."""

    def trained(small):
        monkeypatch.setattr(bundles, "SMALL", small)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(7, 33), nn.Tanh(), nn.LayerNorm(33), nn.Linear(33, 5), nn.Linear(5, 3))
        optimizer, guard = started(model, "SI", 2.0, watch=["SOS", "posterior"])
        for step in range(12):
            model[3].requires_grad_(step not in (2, 3, 8))
            optimizer.zero_grad()
            F.cross_entropy(
                model(torch.randn(9, 7, generator=torch.Generator().manual_seed(step))), torch.arange(9) % 3
            ).backward()
            optimizer.step()
            if step == 5:
                guard.consolidate()
        return {**guard.state_dict()["tensors"], **{f"θ {n}": p.detach() for n, p in model.named_parameters()}}

    rows, some, alone = trained(bundles.SMALL), trained(40), trained(0)
    assert all(torch.equal(rows[key], alone[key]) and torch.equal(some[key], alone[key]) for key in alone)
