"""Whether a hold of which nobody has said so acts after the step: where it does, as ``implicit=True`` to the last bit,
and everywhere else as ``implicit=False``.
"""

import contextlib
import copy
import warnings

import pytest
import torch
from torch import nn

import anchorhold
from tests.guard.helpers import batch, consolidated, loss, net, train, weights

LAYERED = ["rotated", "kronecker", anchorhold.Kronecker(bits=16), anchorhold.LowRank(rank=6)]
EVERY = ["diagonal", *LAYERED]


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


def two_rates(model):
    """SGD that moves biases twice as far as weights."""
    parts = [[p for name, p in model.named_parameters() if name.endswith(kind)] for kind in ("weight", "bias")]
    return torch.optim.SGD([{"params": parts[0]}, {"params": parts[1], "lr": 0.2}], lr=0.1)


def run(make, steps=3, measure=None, strength=0.7, **options):
    """Train a held model, and return its weights and the guard."""
    model = net()
    guard = consolidated(model, measure, strength, **options)
    optimizer = make(model)
    guard.attach(optimizer)
    train(model, optimizer, steps)
    return weights(model), guard


def same(one, other):
    return all(torch.equal(other[name], value) for name, value in one.items())


@pytest.mark.parametrize("form", EVERY, ids=str)
def test_sgd_is_pulled_after_its_steps(form):
    found, guard = run(sgd, form=form)
    assert guard.options.implicit is True and ", pulling after steps" in repr(guard) and guard.cost().implicit
    assert same(found, run(sgd, form=form, implicit=True)[0])
    assert not same(found, run(sgd, form=form, implicit=False)[0])


DIAGONAL = {
    "plain": (lambda model: torch.optim.SGD(model.parameters(), lr=0.1), {}),
    "foreach": (lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True), {}),
    "fused": (lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True), {}),
    "Nesterov": (lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True), {}),
    "two rates": (two_rates, {}),
    "a mean of solutions": (sgd, {"anchor": "mean"}),
    "a gradient term": (sgd, {"anchor": "mean", "gradient_term": True}),
    "strengths by pattern": (sgd, {"strength": {"0.*": 2.0, "*": 0.5}}),
    "half the bytes": (sgd, {"state_dtype": torch.bfloat16}),
    "kept elsewhere": (sgd, {"state_device": "cpu"}),
    "L2": (sgd, {"measure": "L2"}),
    "online EWC": (sgd, {"measure": "online-EWC"}),
    "a hold with batches": (sgd, {"holds": [anchorhold.Replay([batch(7)], share=0.5)]}),
    "frozen batch norms": (sgd, {"batch_norm": "freeze"}),
}


@pytest.mark.parametrize(("make", "options"), DIAGONAL.values(), ids=DIAGONAL)
def test_a_diagonal_is_pulled_after_every_kind_of_sgd(make, options):
    found, guard = run(make, **options)
    assert guard.options.implicit is True and ", pulling after steps" in repr(guard)
    assert same(found, run(make, **options, implicit=True)[0])
    assert not same(found, run(make, **options, implicit=False)[0])


ELSEWHERE = {
    "Adam": (adam, {"form": "rotated"}),
    "Adam as a diagonal": (adam, {}),
    "one of unknown reach": (lambda model: torch.optim.Adadelta(model.parameters(), lr=0.1), {}),
    "a momentum that never settles": (lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=1.0), {}),
    "beside a hold on the same weights": (sgd, {"holds": ["asymmetric"]}),
    "RMSprop": (lambda model: torch.optim.RMSprop(model.parameters(), lr=0.01), {"form": "kronecker"}),
    "two rates": (two_rates, {"form": "rotated"}),
    "a hold with a linear term": (sgd, {"form": "rotated", "anchor": "mean"}),
    "a gradient term": (sgd, {"form": "kronecker", "anchor": "mean", "gradient_term": True}),
    "exact sums": (sgd, {"form": anchorhold.Rotated(sums="exact")}),
    "one matrix of all weights": (sgd, {"form": "dense"}),
    "coordinates to be found anew": (sgd, {"form": "kronecker", "state_dtype": torch.float32}),
}


@pytest.mark.daily
@pytest.mark.parametrize(("make", "options"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_everywhere_else_the_hold_is_in_the_gradient_as_it_was(make, options):
    found, guard = run(make, **options)
    assert guard.options.implicit is False and ", pulling after steps" not in repr(guard)
    assert same(found, run(make, **options, implicit=False)[0])


@pytest.mark.parametrize("form", ["diagonal", "rotated"])
def test_folded_batch_norms_are_held_in_the_gradient(form):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
    guard = anchorhold.Guard(model, "EWC", form=form, batch_norm="fold")
    guard.attach(sgd(model))
    assert guard.options.implicit is False


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (adam, "with Adam\n"),
        (lambda model: torch.optim.AdamW(model.parameters()), "with AdamW\n"),
        (lambda model: torch.optim.Adadelta(model.parameters()), "with Adadelta\n"),
        (lambda model: torch.optim.SGD(model.parameters(), momentum=1.0), "with SGD of momentum=1, whose steps never"),
    ],
)
def test_print_says_why_a_diagonal_is_held_in_the_gradient(make, why):
    model = net()
    guard = consolidated(model)
    assert guard.options.implicit is None and "pulling after steps if they are SGD's" in repr(guard)
    optimizer = make(model)
    guard.attach(optimizer)
    assert guard.options.implicit is False and f", pulling in the gradient {why}" in repr(guard)


def test_a_diagonal_of_16_bit_weights_is_held_in_the_gradient():
    """A pull by itself would be lost to rounding; what is kept of the weights in fewer bits is another matter."""
    model = net(dtype=torch.bfloat16)
    guard = anchorhold.Guard(model, "L2")
    optimizer = sgd(model)
    guard.attach(optimizer)
    assert (
        guard.options.implicit is False
        and ", pulling in the gradient with weights of bfloat16, to which small pulls" in repr(guard)
    )
    guard.options.implicit = True
    assert guard.options.implicit is True


def test_nothing_is_said_of_a_pull_where_there_is_no_importance():
    model = net()
    guard = anchorhold.Guard(model, "fine-tune", from_scratch=True)
    optimizer = sgd(model)
    assert "implicit" not in repr(guard)
    guard.attach(optimizer)
    assert "implicit" not in repr(guard) and "explicit" not in repr(guard)


def test_by_default_no_strength_makes_a_diagonal_diverge():
    model = net()
    guard = consolidated(model, strength=1e30)
    optimizer = sgd(model)
    guard.attach(optimizer)
    with pytest.warns(anchorhold.AnchorholdWarning, match="is far too much for this task") as told:
        train(model, optimizer, 40)
    assert len(told) == 1
    held = {name: omega > 1e-12 for name, omega in guard.importance.items()}
    for name, parameter in weights(model).items():
        assert torch.equal(parameter[held[name]], guard.anchor[name][held[name]])


@pytest.mark.parametrize("form", ["diagonal", "rotated"])
def test_a_strength_that_destroys_the_explicit_run_does_not_by_default(form):
    ends = []
    for implicit in (None, False):
        torch.manual_seed(1)
        model = net()
        guard = consolidated(model, strength=1e4, form=form, implicit=implicit)
        optimizer = sgd(model)
        guard.attach(optimizer)
        with warnings.catch_warnings():
            warnings.simplefilter("error" if implicit is None else "ignore")
            warnings.filterwarnings("ignore", "strength=10000 is far too much for this task")
            with contextlib.suppress(anchorhold.errors.NotFiniteError):
                train(model, optimizer, 40)
        ends.append(max(float((p - guard.anchor[name]).abs().max()) for name, p in weights(model).items()))
    assert ends[0] < 1 and not ends[1] < 1e6


# When it is decided


@pytest.mark.parametrize("form", ["diagonal", "rotated"])
def test_it_is_decided_by_attach_for_all_optimizers_together(form):
    model = net()
    guard = consolidated(model, form=form)
    assert (
        guard.options.implicit is None
        and "pulling after steps if they are SGD's" in repr(guard)
        and not guard.cost().implicit
    )
    watched = torch.optim.LBFGS(model.parameters())
    guard.attach(watched, hold=False)
    assert guard.options.implicit is None
    body, head = torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.SGD(model[2].parameters(), lr=0.2)
    guard.attach(body, head)
    assert guard.options.implicit is True
    other = torch.optim.Adam(model[2].parameters())
    guard.attach(other)
    why = "with Adam\n" if form == "diagonal" else "with Adam, which moves each weight"
    assert guard.options.implicit is False and f", pulling in the gradient {why}" in repr(guard)
    guard.attach(other, hold=False)
    assert guard.options.implicit is True
    guard.detach()
    guard.attach(of_all := adam(model))
    assert guard.options.implicit is False and of_all is not None


def test_a_layer_whose_parts_are_trained_apart_is_held_in_the_gradient():
    model = net()
    guard = anchorhold.Guard(model, "EWC", form="rotated", from_scratch=True)  # no block is known yet
    kept = [torch.optim.SGD([p], lr=0.1) for p in model.parameters()]
    guard.attach(*kept)
    assert guard.options.implicit is False


def said_in_two_steps(network, optimizer, *, closure):
    """Take two steps on one batch, and return what was told meanwhile."""

    def evaluate():
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
    return [str(each.message) for each in told]


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
        said = said_in_two_steps(network, optimizer, closure=closure)
        assert sum("cannot any more" in each for each in said) == (network is model)
        ends.append(weights(network))
    assert same(*ends)
    guard.attach(sgd(model))
    assert guard.options.implicit is False and "implicit_is_open" not in guard.state_dict()


@pytest.mark.parametrize("closure", [False, True])
def test_a_momentum_that_comes_to_never_settle_is_told_of_and_then_it_is_in_the_gradient(closure):
    model, twin = net(), net()
    guard = consolidated(model, strength=0.7)
    other = consolidated(twin, strength=0.7, implicit=False)
    twin.load_state_dict(model.state_dict())
    ends = []
    for network, its in ((model, guard), (twin, other)):
        optimizer = sgd(network)
        its.attach(optimizer)
        optimizer.param_groups[0]["momentum"] = 1.0
        said = said_in_two_steps(network, optimizer, closure=closure)
        assert sum("cannot any more with SGD of momentum=1" in each for each in said) == (network is model)
        ends.append(weights(network))
    assert same(*ends) and guard.options.implicit is False


def test_adapters_that_come_to_be_held_merged_are_held_in_the_gradient():
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(net(), peft.LoraConfig(target_modules=["0"], r=2, init_lora_weights=False))
    guard = anchorhold.Guard(model, "EWC", form="kronecker")
    assert guard.options.space == "merged" and guard.options.implicit is False
    guard.attach(torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1))
    assert guard.options.implicit is False
    with pytest.raises(anchorhold.errors.ConfigurationError, match="merged weights, which take no steps of their own"):
        guard.options.implicit = True


def test_it_may_be_said_later():
    model = net()
    guard = consolidated(model, form="rotated")
    optimizer = adam(model)
    guard.attach(optimizer)
    with pytest.raises(anchorhold.errors.OptimizerError, match="with Adam, which moves each weight"):
        guard.options.implicit = True
    assert guard.options.implicit is False
    guard.attach(optimizer, hold=False)
    optimizer = sgd(model)
    guard.attach(optimizer)
    assert guard.options.implicit is True
    guard.options.implicit = False
    guard.attach(optimizer)
    assert guard.options.implicit is False
    guard.options.implicit = None
    assert guard.options.implicit is True


# States


@pytest.mark.parametrize("form", ["diagonal", "rotated"])
@pytest.mark.parametrize("make", [sgd, adam])
@pytest.mark.parametrize("first", ["load", "attach"])
def test_a_task_that_is_resumed_in_its_middle_goes_on_exactly(form, make, first, tmp_path):
    model = net()
    guard = consolidated(model, strength=0.7, form=form, watch=["SI"])
    optimizer = make(model)
    guard.attach(optimizer)
    train(model, optimizer)
    guard.save(tmp_path / "guard")
    twin = copy.deepcopy(model)
    other = anchorhold.Guard(twin, anchorhold.Fisher(), form=form, watch=["SI"])
    its = make(twin)
    its.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for step in (first, "load" if first == "attach" else "attach"):
        other.load(tmp_path / "guard") if step == "load" else other.attach(its)
        assert step == "attach" or other.options.implicit is (make is sgd)
    train(model, optimizer, seed=5)
    train(twin, its, seed=5)
    assert same(weights(model), weights(twin)) and other.options.implicit is guard.options.implicit


@pytest.mark.parametrize("form", ["diagonal", "rotated"])
@pytest.mark.parametrize("first", ["load", "attach"])
def test_a_state_of_an_earlier_version_goes_on_in_the_gradient(form, first):
    model = net()
    guard = consolidated(model, strength=0.7, form=form, implicit=False)
    state = copy.deepcopy(guard.state_dict())
    assert not {"implicit", "implicit_is_open"} & state.keys()  # as they were written before
    twin = copy.deepcopy(model)
    other = anchorhold.Guard(twin, anchorhold.Fisher(), form=form)
    optimizer, its = sgd(model), sgd(twin)
    guard.attach(optimizer)
    for step in (first, "load" if first == "attach" else "attach"):
        other.load_state_dict(state) if step == "load" else other.attach(its)
    train(model, optimizer)
    train(twin, its)
    assert other.options.implicit is False and same(weights(model), weights(twin))
    other.consolidate([batch(3)])
    other.attach(its)
    assert other.options.implicit is False and not {"implicit", "implicit_is_open"} & other.state_dict().keys()
    other.options.implicit = None  # until somebody says otherwise
    assert other.options.implicit is True


@pytest.mark.parametrize("form", ["diagonal", "rotated"])
def test_what_was_told_is_not_overruled_by_a_state(form):
    told, told_not, default = (consolidated(net(), form=form, implicit=each) for each in (True, False, None))
    state = default.state_dict()
    assert state["implicit_is_open"] is True and "implicit" not in state
    for guard in (told, told_not):
        guard.load_state_dict(state)
        assert guard.options.implicit is (guard is told)
    default.load_state_dict(told.state_dict())
    assert default.options.implicit is True
    with pytest.raises(
        anchorhold.errors.StateError, match=r"this Guard has implicit=True\. .* set guard.options.implicit"
    ):
        told.load_state_dict(told_not.state_dict())
    with pytest.raises(anchorhold.errors.StateError, match="implicit_is_open are 'yes'; expected true or false"):
        default.load_state_dict({**state, "implicit_is_open": "yes"})
    assert default.options.implicit is True


def test_states_of_holds_in_the_gradient_are_as_they_were():
    assert not {"implicit", "implicit_is_open"} & consolidated(net(), implicit=False).state_dict().keys()
