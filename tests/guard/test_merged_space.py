"""Adapters held by the weights that they are merged with: against the same network without adapters, in float64."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import anchorhold
from anchorhold import Fisher, Guard, GuardOptions, Kronecker, LowRank, Rotated
from anchorhold.errors import ConfigurationError, StateError
from tests.adapters.by_hand import Adapted, adapt, merged, networks
from tests.helpers import grouped

FORMS = {
    "diagonal": "diagonal",
    "rotated": "rotated",
    "exact sum of rotated": Rotated(sums="exact"),
    "kronecker": "kronecker",
    "exact sum of kronecker": Kronecker(sums="exact"),
    "one side": Kronecker(outputs="identity"),
    "damped": Kronecker(damping=0.1),
    "low rank": LowRank(span="layers", rank=3),
}


def network(name="mlp", rank=2, seed=0):
    torch.manual_seed(seed)
    model, inputs, layers = networks()[name]
    model = model.double()
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    return adapt(model, layers, rank), inputs


def plain(model):
    """Return the network that an adapted one computes, without adapters."""
    found = copy.deepcopy(model)
    for name, module in list(found.named_children()):
        if isinstance(module, Adapted):
            with torch.no_grad():
                module.layer.weight.copy_(merged(module))
            setattr(found, name, module.layer)
    return found


def weights_of(model):
    """Return the merged weights by the names that they have in the plain network."""
    return {f"{name}.weight": merged(m) for name, m in model.named_children() if isinstance(m, Adapted)}


def by_plain_name(name):
    return name.replace(".layer.", ".")


def moved(model, seed=1, size=0.3):
    torch.manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(size * torch.randn_like(p))


def fresh(model):
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, Adapted):
                module.b.zero_()
    return model


def truth(matrices, weights, anchor, strength):
    """Return the penalty by the dense matrix of every Q, differentiable in the weights."""
    total = 0.0
    for name, matrix in matrices.items():
        weight = weights[name]
        basis = torch.eye(weight.numel(), dtype=weight.dtype).view(-1, *weight.shape)
        dense = torch.stack([matrix.apply({name: unit})[name].reshape(-1) for unit in basis])
        d = (weight - anchor[name]).reshape(-1)
        total = total + strength * (d @ dense @ d)
    return total


def compared(model, inputs, form, tasks=1, start=lambda model: model):
    """Return a guard in merged space, and the penalty that a guard of the plain network comes to."""
    guard = Guard(start(model), Fisher(), strength=0.7, form=form, options=GuardOptions(space="merged"))
    names = [f"{n}.weight" for n, m in model.named_children() if isinstance(m, Adapted)]
    other = None
    for task in range(tasks):
        twin = plain(model).requires_grad_(True)
        if other is None:
            other = Guard(twin, Fisher(), strength=0.7, form=form, protect=names)
        else:
            other._core.runtime.model.load_state_dict(twin.state_dict())
        guard.consolidate([inputs])
        other.consolidate([inputs])
        moved(model, seed=task + 1)
    anchor = {name: tensor.clone() for name, tensor in other.anchor.items()}
    return guard, lambda: truth(other.held.matrices, weights_of(model), anchor, 0.7)


def assert_is(guard, model, expected):
    factors = [p for p in model.parameters() if p.requires_grad]
    wanted, found = expected(), guard.penalty()
    assert float(wanted.detach()) > 0
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
    for one, other in zip(torch.autograd.grad(found, factors), torch.autograd.grad(wanted, factors), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-11)


@pytest.mark.daily
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["mlp", "convolution", "sequence"])
def test_the_penalty_is_that_of_the_merged_weights(name, form):
    model, inputs = network(name)
    guard, expected = compared(model, inputs, FORMS[form])
    assert_is(guard, model, expected)


@settings(max_examples=15, deadline=None)
@given(rank=st.integers(1, 5), seed=st.integers(0, 999), form=st.sampled_from(sorted(FORMS)), is_fresh=st.booleans())
def test_of_any_rank_and_from_any_start(rank, seed, form, is_fresh):
    model, inputs = network("mlp", rank, seed)
    guard, expected = compared(model, inputs, FORMS[form], start=fresh if is_fresh else lambda model: model)
    assert_is(guard, model, expected)


@pytest.mark.parametrize("form", ["diagonal", "exact sum of rotated", "exact sum of kronecker", "kronecker", "rotated"])
def test_a_second_task_adds_its_form_and_moves_the_anchor(form):
    model, inputs = network()
    guard, expected = compared(model, inputs, FORMS[form], tasks=2)
    assert guard.tasks == 2
    assert_is(guard, model, expected)


@pytest.mark.parametrize("form", ["diagonal", "rotated", "kronecker"])
def test_other_factors_of_the_same_product_are_held_alike(form):
    model, inputs = network()
    guard = Guard(model, Fisher(), strength=1.0, form=form, options=GuardOptions(space="merged"))
    guard.consolidate([inputs])
    moved(model)
    before = float(guard.penalty().detach())
    with torch.no_grad():
        for module in model.children():
            if isinstance(module, Adapted):
                mixing = torch.randn(2, 2, dtype=torch.float64)
                module.b.copy_(module.b @ mixing)
                module.a.copy_(torch.linalg.solve(mixing, module.a.flatten(1)).view_as(module.a))
    assert float(guard.penalty().detach()) == pytest.approx(before, rel=1e-9)
    assert before > 1e-6


@pytest.mark.parametrize("form", ["diagonal", "rotated", "kronecker"])
def test_a_fresh_adapter_is_held_in_both_factors_once_it_moves(form):
    model, inputs = network()
    guard = Guard(fresh(model), Fisher(), strength=1.0, form=form, options=GuardOptions(space="merged"))
    guard.consolidate([inputs])
    assert all(bool(omega.any()) for omega in guard.importance.values())
    assert all(not p.grad.any() for p in pulled(guard, model))
    moved(model)
    assert all(p.grad.abs().max() > 1e-6 for p in pulled(guard, model))


def pulled(guard, model):
    factors = [p for p in model.parameters() if p.requires_grad]
    for factor, pull in zip(factors, torch.autograd.grad(guard.penalty(), factors), strict=True):
        factor.grad = pull
    return factors


@pytest.mark.parametrize("form", ["diagonal", "rotated", "kronecker"])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.LBFGS])
def test_a_step_gets_the_penaltys_gradient(form, optimizer):
    model, inputs = network()
    guard = Guard(model, Fisher(), strength=0.5, form=form, options=GuardOptions(space="merged"))
    guard.consolidate([inputs])
    moved(model, size=0.1)
    penalty = copy.deepcopy(guard)  # with a model of its own
    other = penalty._core.runtime.model
    factors = [p for p in model.parameters() if p.requires_grad]
    theirs = [p for p in other.parameters() if p.requires_grad]
    labels = torch.arange(len(inputs)) % 3
    mine, its = (optimizer(own, lr=0.1) for own in (factors, theirs))
    guard.attach(mine)

    def closure():
        mine.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        return loss

    def whole():
        its.zero_grad()
        loss = nn.functional.cross_entropy(other(inputs), labels) + penalty.penalty()
        loss.backward()
        return loss

    for _ in range(3):
        mine.step(closure)
        its.step(whole)
    for one, two in zip(factors, theirs, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-7, atol=1e-10)


def test_a_state_is_saved_and_loaded_whole(tmp_path):
    for form in ("diagonal", "rotated", "kronecker"):
        model, inputs = network()
        guard = Guard(model, Fisher(), strength=2.0, form=form, options=GuardOptions(space="merged"))
        guard.consolidate([inputs])
        moved(model)
        guard.consolidate([inputs])
        moved(model, seed=5)
        guard.save(tmp_path / "guard.safetensors")
        other = Guard(model, Fisher(), strength=2.0, form=form, options=GuardOptions(space="merged"))
        other.load(tmp_path / "guard.safetensors")
        assert float(other.penalty().detach()) == float(guard.penalty().detach()) > 0
        told = Guard(model, Fisher(), strength=2.0, form=form, options=GuardOptions(space="weights"))
        with pytest.raises(StateError, match="space"):
            told.load(tmp_path / "guard.safetensors")
        smaller, _ = network(rank=1)
        with pytest.raises(StateError, match=r"another model.*adapter of the same rank"):
            Guard(smaller, Fisher(), form=form, options=GuardOptions(space="merged")).load(
                tmp_path / "guard.safetensors"
            )


def test_a_damaged_anchor_is_refused():
    model, inputs = network()
    guard = Guard(model, Fisher(), options=GuardOptions(space="merged"))
    guard.consolidate([inputs])
    state = guard.state_dict()
    for change in (lambda t: t * torch.nan, lambda t: t[:-1]):
        tensors = {key: change(t) if key == "merged/0.layer.weight#B" else t for key, t in state["tensors"].items()}
        with pytest.raises(StateError, match=r"0\.layer\.weight"):
            guard.load_state_dict(state | {"tensors": tensors})
    lacking = {key: t for key, t in state["tensors"].items() if not key.startswith("merged/0.layer.weight")}
    with pytest.raises(StateError, match="no anchor"):
        guard.load_state_dict(state | {"tensors": lacking, "tensor_count": len(lacking)})


def test_what_is_no_adapter_is_held_as_it_is():
    model, inputs = network()
    model.add_module("5", nn.Linear(3, 3).double())
    guard = Guard(model, Fisher(), strength=1.0, form="rotated", options=GuardOptions(space="merged"))
    guard.consolidate([inputs])
    assert set(guard.importance) == {"0.layer.weight", "2.layer.weight", "4.layer.weight", "5.weight", "5.bias"}
    before = guard.penalty()
    with torch.no_grad():
        model[-1].weight.add_(0.1)
    matrix = guard.held.matrices["5.weight"]
    d = {name: p.detach() - guard.anchor[name] for name, p in model.named_parameters() if name.startswith("5.")}
    torch.testing.assert_close(guard.penalty() - before, matrix.value(d), rtol=1e-9, atol=0)


class Quantised(nn.Module):
    """A layer of whole numbers, of which nobody may ask for a weight."""

    def __init__(self, layer):
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.scale = float(layer.weight.detach().abs().max()) / 127
        self.register_buffer("numbers", (layer.weight / self.scale).round().to(torch.int8))

    @property
    def weight(self):
        raise AssertionError("the base weight was read")

    def forward(self, x):
        return Dequantising.apply(x, self.numbers, self.scale)


class Dequantising(torch.autograd.Function):
    """As quantised layers' products are: a function of their own, of which the weight has no gradient."""

    @staticmethod
    def forward(ctx, x, numbers, scale):
        ctx.numbers, ctx.scale = numbers, scale
        return x @ (ctx.numbers.to(x.dtype) * scale).mT

    @staticmethod
    def backward(ctx, delta):
        return delta @ (ctx.numbers.to(delta.dtype) * ctx.scale), None, None


@pytest.mark.parametrize("form", ["diagonal", "rotated", "kronecker"])
def test_a_quantised_weight_is_neither_read_nor_differentiated(form):
    torch.manual_seed(0)
    whole, small = [], []
    for inputs, outputs in ((4, 5), (5, 3)):
        same = nn.Linear(inputs, outputs, bias=False).double()
        quantised = Quantised(same)
        same.weight.data = quantised.numbers.double() * quantised.scale
        adapted = Adapted(same, 2)
        whole.append(adapted)
        twin = copy.deepcopy(adapted)
        twin.layer = quantised
        small.append(twin)
    inputs = torch.randn(6, 4, dtype=torch.float64)
    found = []
    for parts in (whole, small):
        model = nn.Sequential(parts[0], nn.Tanh(), parts[1]).double()
        guard = Guard(model, Fisher(), strength=1.0, form=form, options=GuardOptions(space="merged"))
        guard.consolidate([inputs])
        moved(model)
        found.append(float(guard.penalty().detach()))
    assert found[1] == pytest.approx(found[0], rel=1e-9)
    assert found[0] > 1e-6


def test_a_relative_strength_counts_merged_weights():
    model, inputs = network()
    guard = Guard(model, Fisher(), relative_strength=2.0, options=GuardOptions(space="merged"))
    guard.consolidate([inputs])
    weights = sum(omega.numel() for omega in guard.importance.values())
    trace = sum(float(omega.sum()) for omega in guard.importance.values())
    assert weights == 4 * 5 + 5 * 4 + 4 * 3
    assert guard.strength == pytest.approx(2.0 * weights / trace)


@pytest.mark.parametrize("measure", ["L2", "MAS", "sqrtFisher", "AF"])
def test_other_measures_have_an_importance_of_merged_weights(measure):
    model, inputs = network()
    guard = Guard(model, measure, strength=1.0, options=GuardOptions(space="merged"))
    guard.consolidate(None if measure == "L2" else [inputs])
    before = {name: weight.detach() for name, weight in weights_of(model).items()}
    moved(model)
    expected = sum(
        float((omega * (weights_of(model)[by_plain_name(name)] - before[by_plain_name(name)]).square()).sum().detach())
        for name, omega in guard.importance.items()
    )
    assert value_of(guard) == pytest.approx(expected, rel=1e-9)
    assert expected > 1e-3


def value_of(guard):
    return float(guard.penalty().detach())


@pytest.mark.parametrize("options", [{"state_dtype": torch.bfloat16}, {"state_device": "cpu"}, {"decay": 0.5}])
def test_what_is_kept_may_be_kept_otherwise(options, tmp_path):
    model, inputs = network()
    guard = Guard(model, Fisher(), strength=1.0, **grouped(space="merged", **options))
    guard.consolidate([inputs])
    moved(model)
    guard.consolidate([inputs])
    guard.save(tmp_path / "guard.safetensors")
    other = Guard(model, Fisher(), strength=1.0, **grouped(space="merged", **options))
    other.load(tmp_path / "guard.safetensors")
    moved(model, seed=3)
    assert value_of(other) == value_of(guard) > 0


def test_strengths_by_pattern_are_of_the_weights():
    model, inputs = network()
    guard = Guard(model, Fisher(), strength={"0.*": 3.0, "*": 1.0}, options=GuardOptions(space="merged"))
    guard.consolidate([inputs])
    moved(model)
    both = float(guard.penalty().detach())
    guard.strength = 1.0
    alone = float(guard.penalty().detach())
    guard.strength = {"0.*": 1.0, "*": 1e-11}
    first = float(guard.penalty().detach())
    assert both == pytest.approx(alone + 2 * first, rel=1e-6)


def test_a_tolerance_is_met_by_going_back():
    model, inputs = network()
    guard = Guard(fresh(model), Fisher(), tolerance=1e-3, form="kronecker", options=GuardOptions(space="merged"))
    guard.keep([inputs + 0.1, inputs + 0.2])
    guard.consolidate([inputs])
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.05)
    guard.attach(optimizer)
    labels = torch.arange(len(inputs)) % 3
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    moved(model, size=0.5)
    assert guard.retention().kl > 1e-3
    guard.consolidate([inputs])
    assert guard.retention().kl <= 1e-3
    assert guard.control.pulled_back.outcome == "pulled back"


def test_averaging_goes_back_to_the_anchor():
    model, inputs = network()
    guard = Guard(model, Fisher(), options=GuardOptions(space="merged"))
    guard.consolidate([inputs])
    moved(model)
    assert float(guard.penalty().detach()) > 0
    guard.average(0.0)
    assert float(guard.penalty().detach()) == pytest.approx(0.0, abs=1e-20)


def test_what_is_forgotten_is_not_held():
    model, inputs = network()
    guard = Guard(model, Fisher(), options=GuardOptions(space="merged"))
    guard.consolidate([inputs])
    with pytest.warns(anchorhold.AnchorholdWarning, match=r"in one matrix with '0\.b', so that nothing holds"):
        guard.forget("0.a", "2.layer.weight")
    assert list(guard.importance) == ["4.layer.weight"]
    moved(model)
    factors = [model[0].a, model[2].b, model[4].a]
    pulls = torch.autograd.grad(guard.penalty(), factors, allow_unused=True)
    assert [pull is not None for pull in pulls] == [False, False, True]


def test_a_guard_says_what_it_holds():
    model, inputs = network()
    guard = Guard(model, Fisher(), options=GuardOptions(space="merged"), form="kronecker")
    moved(model, seed=2)
    before = weights_of(model)
    guard.consolidate([inputs])
    assert "no weight has moved since" in str(guard)
    moved(model)
    ways = {name: float((weight - before[name]).detach().norm()) for name, weight in weights_of(model).items()}
    (far, name), way = max((way, name) for name, way in ways.items()), sum(way**2 for way in ways.values()) ** 0.5
    most = name.replace(".weight", ".layer.weight")
    assert f"moved since by {way:.3g} in merged weights, most in {most} ({far:.3g})" in str(guard)
    assert "adapters by their merged weights" in str(guard)
    assert "not held" not in str(guard)
    assert f"the penalty is {float(guard.penalty().detach()):.3g}" in str(guard)
    assert "0.layer.weight" in str(guard.cost())


def test_too_much_for_sgd_is_told_of():
    model, inputs = network()
    guard = Guard(model, Fisher(), strength=1e6, options=GuardOptions(space="merged"))
    guard.consolidate([inputs])
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    guard.attach(optimizer)
    model(inputs).sum().backward()
    with pytest.warns(anchorhold.AnchorholdWarning, match="too much for SGD"):
        optimizer.step()


@pytest.mark.daily
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"measure": "SI"}, "Measures that have an importance of those in the form 'diagonal': .*EWC.*MAS"),
        ({"measure": "SOS", "form": "kronecker"}, "in the form 'kronecker': EWC, EWC-sampled, EWC-empirical.$"),
        ({"watch": ["SOS"]}, "SOS"),
        ({"anchor": "mean"}, "anchor='mean'"),
        ({"implicit": True}, "implicit"),
        ({"form": "dense"}, "Forms that go layer by layer"),
        ({"holds": [anchorhold.holds.Asymmetric()]}, "goes by the importance of each protected weight"),
        ({"protect": "*.b"}, r"matching '0.b' alone of the adapter of '0.layer.weight'"),
        ({"space": "factors"}, "expected 'weights'"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(options, said):
    model, _ = network()
    given = {"measure": Fisher(), "space": "merged"} | options
    with pytest.raises(ConfigurationError, match=said):
        Guard(model, **grouped(**given))


def test_a_model_without_adapters_is_refused():
    with pytest.raises(ConfigurationError, match="no protected adapter"):
        Guard(nn.Linear(2, 2), Fisher(), options=GuardOptions(space="merged"))


def test_a_weight_that_is_trained_beside_its_adapter_is_refused():
    model, _ = network()
    model[0].layer.weight.requires_grad_(True)
    with pytest.raises(ConfigurationError, match="frozen weight beside each adapter"):
        Guard(model, Fisher(), options=GuardOptions(space="merged"))


def test_measuring_leaves_the_model_as_it_was():
    model, inputs = network()
    before = [name for name, _ in model.named_modules()], {k: v.clone() for k, v in model.state_dict().items()}
    guard = Guard(model, Fisher(), options=GuardOptions(space="merged"), form="rotated")
    guard.rehearse([inputs])
    guard.consolidate([inputs])
    with pytest.raises(anchorhold.AnchorholdError):
        guard.consolidate([torch.full_like(inputs, torch.nan)])
    assert [name for name, _ in model.named_modules()] == before[0]
    assert all(torch.equal(v, before[1][k]) for k, v in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())
    assert guard.tasks == 1


def test_second_derivatives_are_refused_and_not_wrong():
    model, inputs = network()
    guard = Guard(model, Fisher(), strength=2.0, options=GuardOptions(space="merged"))
    guard.consolidate([inputs])
    moved(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    with pytest.raises(ConfigurationError, match="has no second derivatives"):
        torch.autograd.grad(guard.penalty(), trained, create_graph=True)
    assert all(each.isfinite().all() for each in torch.autograd.grad(guard.penalty(), trained))


def test_another_adapter_is_as_steep_as_it_is():
    model, inputs = network()
    guard = Guard(model, Fisher(), strength=1.0, options=GuardOptions(space="merged"))
    guard.consolidate([inputs])
    before = guard._core.largest_importance
    layer = next(m for m in model.children() if isinstance(m, Adapted))
    with torch.no_grad():
        layer.a.mul_(100.0)
    layer.a = nn.Parameter(layer.a.detach().clone())  # in the place of the one that was there
    guard.refresh()
    name = next(n for n, p in model.named_parameters() if p is layer.a)
    assert guard._core.largest_importance[name] > 1000 * before[name]


@pytest.mark.daily
@pytest.mark.parametrize(
    "form", ["diagonal", "rotated", "kronecker", anchorhold.forms.Kronecker16(), anchorhold.forms.Rotated16()]
)
@pytest.mark.parametrize("is_fresh", [False, True])
def test_what_a_guard_takes_is_counted_by_the_products_that_it_makes(form, is_fresh):
    torch.manual_seed(0)
    model = nn.Sequential(Adapted(nn.Linear(24, 16, bias=False), 2))
    model = fresh(model) if is_fresh else model
    guard = Guard(model, Fisher(), form=form, options=GuardOptions(space="merged"))
    before = guard.cost()
    guard.consolidate([torch.randn(9, 24)])
    moved(model)
    with FlopCounterMode(display=False) as counted:
        torch.autograd.grad(guard.penalty(), list(guard.parameters.values()))
    products, weights = counted.get_total_flops() // 2, 16 * 24
    beside = 0 if "kronecker" in guard.options.form.name else weights  # by each element of S, which is no product
    assert before.multiplications == guard.cost().multiplications == products + beside
    assert before.kept == guard.cost().kept == sum(t.nbytes for t in guard.state_dict()["tensors"].values())


def test_a_change_that_is_a_whole_matrix_is_counted_as_one():
    model = nn.Sequential(Whole(nn.Linear(6, 5)))
    guard = Guard(model, Fisher(), form="kronecker", options=GuardOptions(space="merged"))
    before = guard.cost()
    guard.consolidate([torch.randn(9, 6)])
    assert before.kept == guard.cost().kept == sum(t.nbytes for t in guard.state_dict()["tensors"].values())
    assert before.multiplications == guard.cost().multiplications == 5 * 6 * (5 + 6)


class Whole(nn.Module):
    """A layer with a scale for each of its outputs, which change the weight as a whole."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.scales = layer.requires_grad_(False), nn.Parameter(torch.zeros(len(layer.weight), 1))

    def forward(self, x):
        return self.layer(x) + x @ (self.scales * self.layer.weight).mT


@anchorhold.adapters.register_adapter("scales")
class Scales(anchorhold.adapters.Adapter):
    """Those layers."""

    @classmethod
    def describes(cls, module):
        return isinstance(module, Whole)

    @property
    def layer(self):
        return self.module.layer

    def change(self):
        return self.module.scales * self.module.layer.weight


def test_what_moved_beside_adapters_is_told_apart_from_merged_weights():
    model, inputs = network()
    model.add_module("5", nn.Linear(3, 3).double())
    guard = Guard(model, Fisher(), form="kronecker", options=GuardOptions(space="merged"))
    guard.consolidate([inputs])
    with torch.no_grad():
        model[-1].weight.add_(1.0)
    assert "moved since by 3 in merged weights and others, most in 5.weight (3)" in str(guard)
