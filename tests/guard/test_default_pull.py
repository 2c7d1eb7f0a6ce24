"""Whether a hold of which nobody has said so acts after the step: where it does, as ``implicit=True`` to the last bit,
and everywhere else as ``implicit=False``.
"""

import contextlib
import copy
import warnings

import pytest
import torch
from torch import nn

import holdfast
from tests.guard.helpers import batch, consolidated, loss, net, train, weights

LAYERED = ["rotated", "kronecker", holdfast.Kronecker(bits=16), holdfast.LowRank(rank=6)]


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


def two_rates(model):
    """SGD that moves biases twice as far as weights."""
    parts = [[p for name, p in model.named_parameters() if name.endswith(kind)] for kind in ("weight", "bias")]
    return torch.optim.SGD([{"params": parts[0]}, {"params": parts[1], "lr": 0.2}], lr=0.1)


def run(make, steps=3, **options):
    """Train a held model, and return its weights and the guard."""
    model = net()
    guard = consolidated(model, strength=0.7, **options)
    optimizer = make(model)
    guard.attach(optimizer)
    train(model, optimizer, steps)
    return weights(model), guard


def same(one, other):
    return all(torch.equal(other[name], value) for name, value in one.items())


@pytest.mark.parametrize("form", LAYERED, ids=str)
def test_in_other_coordinates_sgd_is_pulled_after_its_steps(form):
    found, guard = run(sgd, form=form)
    assert guard.implicit is True and ", implicit" in repr(guard) and guard.cost().implicit
    assert same(found, run(sgd, form=form, implicit=True)[0])
    assert not same(found, run(sgd, form=form, implicit=False)[0])


ELSEWHERE = {
    "a diagonal": (sgd, {}),
    "Adam": (adam, {"form": "rotated"}),
    "Adam as a diagonal": (adam, {}),
    "RMSprop": (lambda model: torch.optim.RMSprop(model.parameters(), lr=0.01), {"form": "kronecker"}),
    "two rates": (two_rates, {"form": "rotated"}),
    "a hold that leans": (sgd, {"form": "rotated", "anchor": "mean"}),
    "a gradient term": (sgd, {"form": "kronecker", "anchor": "mean", "gradient_term": True}),
    "exact sums": (sgd, {"form": holdfast.Rotated(sums="exact")}),
    "one matrix of all weights": (sgd, {"form": "dense"}),
    "coordinates to be found anew": (sgd, {"form": "kronecker", "state_dtype": torch.float32}),
}


@pytest.mark.parametrize(("make", "options"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_everywhere_else_the_hold_is_in_the_gradient_as_it_was(make, options):
    found, guard = run(make, **options)
    assert guard.implicit is False and ", implicit" not in repr(guard)
    assert same(found, run(make, **options, implicit=False)[0])


def test_folded_batch_norms_are_held_in_the_gradient():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
    guard = holdfast.Consolidator(model, "EWC", form="rotated", batch_norm="fold")
    guard.attach(sgd(model))
    assert guard.implicit is False


def test_a_strength_that_destroys_the_explicit_run_does_not_by_default():
    ends = []
    for implicit in (None, False):
        torch.manual_seed(1)
        model = net()
        guard = consolidated(model, strength=1e4, form="rotated", implicit=implicit)
        optimizer = sgd(model)
        guard.attach(optimizer)
        with warnings.catch_warnings():
            warnings.simplefilter("error" if implicit is None else "ignore")
            with contextlib.suppress(holdfast.NotFiniteError):
                train(model, optimizer, 40)
        ends.append(max(float((p - guard.anchor[name]).abs().max()) for name, p in weights(model).items()))
    assert ends[0] < 1 and not ends[1] < 1e6


# When it is decided


def test_it_is_decided_by_attach_for_all_optimisers_together():
    model = net()
    guard = consolidated(model, form="rotated")
    assert guard.implicit is None and "implicit if it holds SGD" in repr(guard) and not guard.cost().implicit
    watched = torch.optim.LBFGS(model.parameters())
    guard.attach(watched, hold=False)
    assert guard.implicit is None
    body, head = torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.SGD(model[2].parameters(), lr=0.2)
    guard.attach(body, head)
    assert guard.implicit is True
    other = torch.optim.Adam(model[2].parameters())
    guard.attach(other)
    assert guard.implicit is False and ", explicit with Adam, which moves each weight" in repr(guard)
    guard.attach(other, hold=False)
    assert guard.implicit is True
    guard.detach()
    guard.attach(of_all := adam(model))
    assert guard.implicit is False and of_all is not None


def test_a_layer_whose_parts_are_trained_apart_is_held_in_the_gradient():
    model = net()
    guard = holdfast.Consolidator(model, "EWC", form="rotated", from_scratch=True)  # no block is known yet
    kept = [torch.optim.SGD([p], lr=0.1) for p in model.parameters()]
    guard.attach(*kept)
    assert guard.implicit is False


@pytest.mark.parametrize("closure", [False, True])
def test_rates_that_come_apart_are_told_of_and_then_it_is_in_the_gradient_for_good(closure):
    model, twin = net(), net()
    guard = consolidated(model, strength=0.7, form="rotated")
    torch.manual_seed(0)
    net()
    other = consolidated(twin, strength=0.7, form="rotated", implicit=False)
    twin.load_state_dict(model.state_dict())
    ends = []
    for network, its in ((model, guard), (twin, other)):
        optimizer = two_rates(network)
        if network is model:
            optimizer.param_groups[1]["lr"] = 0.1
        its.attach(optimizer)
        optimizer.param_groups[1]["lr"] = 0.2

        def evaluate(network=network, optimizer=optimizer):
            optimizer.zero_grad()
            value = loss(network, batch(1))
            value.backward()
            return value

        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for _ in range(2):
                if closure:
                    optimizer.step(evaluate)
                else:
                    evaluate()
                    optimizer.step()
        said = [str(each.message) for each in told if "cannot any more" in str(each.message)]
        assert len(said) == (network is model)
        ends.append(weights(network))
    assert same(*ends)
    guard.attach(sgd(model))
    assert guard.implicit is False and "implicit_is_open" not in guard.state_dict()


def test_adapters_that_come_to_be_held_merged_are_held_in_the_gradient():
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(net(), peft.LoraConfig(target_modules=["0"], r=2, init_lora_weights=False))
    guard = holdfast.Consolidator(model, "EWC", form="kronecker")
    assert guard.space == "merged" and guard.implicit is False
    guard.attach(torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1))
    assert guard.implicit is False
    with pytest.raises(holdfast.ConfigurationError, match="merged weights, which take no steps of their own"):
        guard.implicit = True


def test_it_may_be_said_later():
    model = net()
    guard = consolidated(model, form="rotated")
    optimizer = adam(model)
    guard.attach(optimizer)
    with pytest.raises(holdfast.OptimizerError, match="with Adam, which moves each weight"):
        guard.implicit = True
    assert guard.implicit is False
    guard.attach(optimizer, hold=False)
    optimizer = sgd(model)
    guard.attach(optimizer)
    assert guard.implicit is True
    guard.implicit = False
    guard.attach(optimizer)
    assert guard.implicit is False
    guard.implicit = None
    assert guard.implicit is True


# States


@pytest.mark.parametrize("make", [sgd, adam])
@pytest.mark.parametrize("first", ["load", "attach"])
def test_a_task_that_is_resumed_in_its_middle_goes_on_exactly(make, first, tmp_path):
    model = net()
    guard = consolidated(model, strength=0.7, form="rotated", watch=["SI"])
    optimizer = make(model)
    guard.attach(optimizer)
    train(model, optimizer)
    guard.save(tmp_path / "guard")
    twin = copy.deepcopy(model)
    other = holdfast.Consolidator(twin, holdfast.Fisher(), form="rotated", watch=["SI"])
    its = make(twin)
    its.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for step in (first, "load" if first == "attach" else "attach"):
        other.load(tmp_path / "guard") if step == "load" else other.attach(its)
        assert step == "attach" or other.implicit is (make is sgd)
    train(model, optimizer, seed=5)
    train(twin, its, seed=5)
    assert same(weights(model), weights(twin)) and other.implicit is guard.implicit


@pytest.mark.parametrize("first", ["load", "attach"])
def test_a_state_of_an_earlier_version_goes_on_in_the_gradient(first):
    model = net()
    guard = consolidated(model, strength=0.7, form="rotated", implicit=False)
    state = copy.deepcopy(guard.state_dict())
    assert not {"implicit", "implicit_is_open"} & state.keys()  # as they were written before
    twin = copy.deepcopy(model)
    other = holdfast.Consolidator(twin, holdfast.Fisher(), form="rotated")
    optimizer, its = sgd(model), sgd(twin)
    guard.attach(optimizer)
    for step in (first, "load" if first == "attach" else "attach"):
        other.load_state_dict(state) if step == "load" else other.attach(its)
    train(model, optimizer)
    train(twin, its)
    assert other.implicit is False and same(weights(model), weights(twin))
    other.consolidate([batch(3)])
    other.attach(its)
    assert other.implicit is False and not {"implicit", "implicit_is_open"} & other.state_dict().keys()
    other.implicit = None  # until somebody says otherwise
    assert other.implicit is True


def test_what_was_told_is_not_overruled_by_a_state():
    told, told_not, default = (consolidated(net(), form="rotated", implicit=each) for each in (True, False, None))
    state = default.state_dict()
    assert state["implicit_is_open"] is True and "implicit" not in state
    for guard in (told, told_not):
        guard.load_state_dict(state)
        assert guard.implicit is (guard is told)
    default.load_state_dict(told.state_dict())
    assert default.implicit is True
    with pytest.raises(holdfast.StateError, match=r"this Consolidator has implicit=True\. .* set guard.implicit"):
        told.load_state_dict(told_not.state_dict())
    with pytest.raises(holdfast.StateError, match="implicit_is_open are 'yes'; expected true or false"):
        default.load_state_dict({**state, "implicit_is_open": "yes"})
    assert default.implicit is True


def test_states_of_diagonals_are_as_they_were():
    assert not {"implicit", "implicit_is_open"} & consolidated(net()).state_dict().keys()
