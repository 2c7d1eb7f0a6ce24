"""A layer and its batch norm are measured and held as the one linear map that they are, against its definition."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

import anchorhold
from anchorhold.forms import Diagonal
from tests.guard.batch_norm.networks import Images, dense, statistics
from tests.guard.helpers import batch, consolidated, loss, train
from tests.helpers import grouped

CLOSE = {"rtol": 1e-10, "atol": 1e-12}


def folded_map(weight, bias, norm):
    """γW/σ and γ(b − μ)/σ + β, as the paper has them."""
    scale = (norm.weight if norm.affine else 1.0) / (norm.running_var + norm.eps).sqrt()
    shift = norm.bias if norm.affine else 0.0
    bias = 0.0 if bias is None else bias
    rows = scale.view(-1, *[1] * (weight.ndim - 1))
    return rows * weight, scale * (bias - norm.running_mean) + shift


def parts(model):
    return (model.conv, model.norm, model.head) if isinstance(model, Images) else (model[0], model[1], model[3])


class Folded(nn.Module):
    """What such a network computes in eval mode, from W̃ and b̃ alone."""

    def __init__(self, model):
        super().__init__()
        layer, norm, head = parts(model)
        weight, bias = folded_map(layer.weight, layer.bias, norm)
        self.weight, self.bias = nn.Parameter(weight.detach().clone()), nn.Parameter(bias.detach().clone())
        self.head = copy.deepcopy(head)

    def forward(self, x):
        if self.weight.ndim == 4:
            return self.head(F.conv2d(x.view(-1, 1, 2, 2), self.weight, self.bias, padding=1).tanh().flatten(1))
        return self.head(torch.tanh(F.linear(x, self.weight, self.bias)))


NETWORKS = {
    "dense": (dense, "0.weight", "0.bias", "3"),
    "dense without bias": (lambda: dense(bias=False), "0.weight", "1.bias", "3"),
    "dense, no scale": (lambda: dense(affine=False), "0.weight", "0.bias", "3"),
    "dense, neither": (lambda: dense(bias=False, affine=False), "0.weight", None, "3"),
    "conv": (Images, "conv.weight", "norm.bias", "head"),
    "conv with bias": (lambda: Images(bias=True), "conv.weight", "conv.bias", "head"),
}


@pytest.fixture(params=NETWORKS)
def network(request):
    make, *names = NETWORKS[request.param]
    return make(), *names


def places(network):
    """The parameters of the folded network, by those in whose place they are held."""
    _, weight, bias, head = network
    found = {weight: "weight", f"{head}.weight": "head.weight", f"{head}.bias": "head.bias"}
    return found if bias is None else found | {bias: "bias"}


def fisher(model, inputs):
    """The exact Fisher information of every parameter, sample by sample and class by class."""
    sums = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for x in inputs:
        log_p = F.log_softmax(model(x[None]), 1)[0]
        for y in range(len(log_p)):
            gradients = torch.autograd.grad(log_p[y], list(model.parameters()), retain_graph=True)
            for total, gradient in zip(sums.values(), gradients, strict=True):
                total.add_(log_p[y].detach().exp() * gradient.square())
    return {name: total / len(inputs) for name, total in sums.items()}


def moved(model, seed=5):
    """Move weights and statistics, as training would."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
        for name, buffer in model.named_buffers():
            if "running" in name:
                buffer.add_(0.2 * torch.rand(buffer.shape, generator=generator, dtype=buffer.dtype))
    return model


def penalty_by_definition(guard, network, start, strength):
    """c Σ Ω̃ (θ̃ − θ̃*)², differentiable in the network's own parameters."""
    model, weight, bias, head = network
    own = dict(model.named_parameters())
    layer, norm, _ = parts(model)
    now = {f"{head}.{name}": own[f"{head}.{name}"] for name in ("weight", "bias")}
    now[weight], b = folded_map(layer.weight, layer.bias, norm)
    if bias is not None:
        now[bias] = b
    omega = fisher(start, batch(9)[0])
    anchor = dict(start.named_parameters())
    at = places(network)
    return strength * sum((omega[at[n]] * (now[n] - anchor[at[n]].detach()).square()).sum() for n in now)


@torch.no_grad()
def carried_over(before, norm):
    """Write γ and β for other statistics, so that γ/σ and β − γμ/σ stay."""
    if norm.affine:
        old, new = ((n.running_var + n.eps).sqrt() for n in (before, norm))
        ratio, rest = norm.weight / old, norm.bias - norm.weight * before.running_mean / old
        norm.weight.copy_(ratio * new)
        norm.bias.copy_(rest + ratio * norm.running_mean)


def test_the_folded_network_computes_the_same(network):
    model = network[0].eval()
    torch.testing.assert_close(Folded(model)(batch(0)[0]), model(batch(0)[0]), **CLOSE)


def test_importance_and_anchor_are_those_of_the_folded_map(network):
    model = network[0]
    with torch.no_grad():
        if parts(model)[1].affine:
            parts(model)[1].weight[1] = 0.0  # where the gradient of W says nothing of that of W̃
    start, before = Folded(model), copy.deepcopy(model.state_dict())
    guard = anchorhold.Guard(model, anchorhold.Fisher(), batch_norm="fold")
    guard.consolidate([batch(9)])
    expected = fisher(start, batch(9)[0])
    at = places(network)
    for name, omega in guard.importance.items():
        if name in at:
            torch.testing.assert_close(omega, expected[at[name]], **CLOSE)
            torch.testing.assert_close(guard.anchor[name], start.get_parameter(at[name]).detach(), **CLOSE)
        else:
            assert not bool(omega.any()), name
    assert float(guard.importance[network[1]][1].sum()) > 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_penalty_and_its_gradient_are_those_of_autograd(network):
    model = network[0]
    start = Folded(model)
    guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=3.0, batch_norm="fold")
    guard.consolidate([batch(9)])
    assert guard.penalty().item() == pytest.approx(0.0, abs=1e-20)
    moved(model)
    expected = penalty_by_definition(guard, network, start, 3.0)
    torch.testing.assert_close(guard.penalty(), expected, **CLOSE)
    parameters = list(model.parameters())
    for found, wanted in zip(
        torch.autograd.grad(guard.penalty(), parameters, allow_unused=True),
        torch.autograd.grad(expected, parameters, allow_unused=True),
        strict=True,
    ):
        torch.testing.assert_close(found, wanted, **CLOSE)


@pytest.mark.parametrize("closure", [False, True])
def test_a_step_is_pulled_by_that_gradient(network, closure):
    model = network[0]
    start = Folded(model)
    guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=3.0, batch_norm="fold")
    guard.consolidate([batch(9)])
    moved(model).train()
    twin = copy.deepcopy(model)
    task = loss(twin, batch(1))
    gradients = torch.autograd.grad(task, list(twin.parameters()))
    if not closure:  # the pass has moved the statistics, and scale and shift are written for the new ones
        carried_over(parts(model)[1], parts(twin)[1])
    pull = penalty_by_definition(guard, (twin, *network[1:]), start, 3.0)
    pulls = torch.autograd.grad(pull, list(twin.parameters()))
    expected = [p.detach() - 0.1 * (g + more) for p, g, more in zip(twin.parameters(), gradients, pulls, strict=True)]
    guard.attach(optimizer := torch.optim.SGD(model.parameters(), lr=0.1))

    def evaluate():
        optimizer.zero_grad()
        value = loss(model, batch(1))
        value.backward()
        return value

    if closure:
        torch.testing.assert_close(optimizer.step(evaluate), (task + pull).detach(), **CLOSE)
    else:
        evaluate()
        optimizer.step()
    for parameter, wanted in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.detach(), wanted, **CLOSE)
    torch.testing.assert_close(statistics(model), statistics(twin))  # which went on moving


@pytest.mark.parametrize("between", ["nothing", "passes", "weights"])
def test_what_is_held_stays_while_statistics_move_unless_weights_are_given(between):
    model = dense().train()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=2.0, batch_norm="fold")
    guard.consolidate([batch(9)])
    guard.attach(optimizer := torch.optim.SGD(model.parameters(), lr=0.0))
    for i in range(3):
        before = folded_map(model[0].weight, model[0].bias, model[1])
        if between == "passes":
            model(batch(50 + i)[0])
        elif between == "weights":
            model.load_state_dict(model.state_dict())
        moving = statistics(model)
        optimizer.zero_grad()
        loss(model, batch(i)).backward()
        assert not torch.equal(moving["1.running_var"], model[1].running_var)
        scale = model[1].weight.detach().clone()
        optimizer.step()
        after = folded_map(model[0].weight, model[0].bias, model[1])
        if between == "weights":
            assert torch.equal(model[1].weight, scale)
        else:
            torch.testing.assert_close(after, before, **CLOSE)


@pytest.mark.parametrize("options", [{"strength": 0.0}, {"hold": False}, {"frozen": True}])
def test_scales_are_left_alone_where_nothing_is_held_or_they_are_not_trained(options):
    model = dense().train()
    guard = anchorhold.Guard(
        model, anchorhold.Fisher(), strength=options.get("strength", 1.0), batch_norm="fold", protect="*"
    )
    guard.consolidate([batch(9)])
    model[1].requires_grad_(not options.get("frozen"))
    guard.attach(optimizer := torch.optim.SGD(model.parameters(), lr=0.0), hold=options.get("hold", True))
    before = model[1].weight.detach().clone()
    train(model, optimizer)
    assert torch.equal(model[1].weight, before)


def test_the_gradient_is_brought_back_at_the_optimizers_loss_scale():
    def stepped(scale):
        model = dense()
        guard = consolidated(model, batch_norm="fold", strength=2.0)
        guard.attach(optimizer := torch.optim.SGD(model.parameters(), lr=0.1, fused=True))
        if scale:
            optimizer.grad_scale, optimizer.found_inf = torch.tensor(scale), torch.tensor(0.0)
        loss(model, batch(1)).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.grad *= scale or 1.0
        optimizer.step()
        return [p.detach() for p in model.parameters()]

    for scaled, plain in zip(stepped(64.0), stepped(None), strict=True):
        torch.testing.assert_close(scaled, plain, **CLOSE)


def test_what_the_statistics_do_is_held_against():
    """New data with another mean moves μ; with weights held as they are the old outputs go, folded they stay."""

    def change(**options):
        model = dense().train()
        x, y = batch(9, n=64)
        before = model.eval()(x).detach()
        guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=3000.0, **grouped(**options))
        guard.consolidate([(x, y)])
        guard.attach(optimizer := torch.optim.Adam(model.parameters(), lr=1e-3))
        model.train()
        for i in range(400):
            new, labels = batch(i, n=64)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(new + 2.0), labels).backward()
            optimizer.step()
        return float((model.eval()(x) - before).detach().square().mean().sqrt())

    with pytest.warns(anchorhold.AnchorholdWarning, match="Batch norms in training mode"):
        loose = change()
    assert change(batch_norm="fold") < 0.5 * loose
    assert change(batch_norm="freeze") < 0.5 * loose


class BlockByBlock(Diagonal):
    """The diagonal on the way that forms take which are not element by element."""

    elementwise = False


def test_other_forms_hold_the_map_too(network):
    def stepped(form):
        model = copy.deepcopy(network[0])
        guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=3.0, batch_norm="fold", form=form)
        guard.consolidate([batch(9)])
        moved(model).train()
        value = guard.penalty().detach()
        guard.attach(optimizer := torch.optim.SGD(model.parameters(), lr=0.1))
        train(model, optimizer)
        return value, [parameter.detach() for parameter in model.parameters()]

    torch.testing.assert_close(stepped(BlockByBlock()), stepped(Diagonal()), **CLOSE)


@pytest.mark.parametrize("form", ["rotated", "kronecker"])
def test_forms_of_whole_layers_are_those_of_the_folded_network(form):
    """The hold of a network whose layers are the folded ones, wherever both have gone."""

    def folded(model):
        layers = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), copy.deepcopy(model[3])).double()
        with torch.no_grad():
            for parameter, value in zip(
                layers[0].parameters(), folded_map(*model[0].parameters(), model[1]), strict=True
            ):
                parameter.copy_(value)
        return layers

    model = dense()
    reference = folded(model)
    guards = [
        anchorhold.Guard(model, anchorhold.Fisher(), strength=3.0, batch_norm="fold", form=form),
        anchorhold.Guard(reference, anchorhold.Fisher(), strength=3.0, form=form),
    ]
    for guard in guards:
        guard.consolidate([batch(9, n=32)])
    moved(model).train()
    reference.load_state_dict(folded(model).state_dict())
    value, expected = (guard.penalty() for guard in guards)
    assert expected.item() > 0
    torch.testing.assert_close(value, expected, **CLOSE)

    # The pull on the parameters is that on the folded weights, brought back by autograd.
    inner = torch.autograd.grad(expected, list(reference.parameters()))
    maps = (*folded_map(*model[0].parameters(), model[1]), *model[3].parameters())
    pulls = torch.autograd.grad(maps, list(model.parameters()), inner)
    model.eval()
    gradients = torch.autograd.grad(loss(model, batch(1)), list(model.parameters()))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    guards[0].attach(optimizer := torch.optim.SGD(model.parameters(), lr=0.1))
    loss(model, batch(1)).backward()
    optimizer.step()
    for old, new, g, pull in zip(before, model.parameters(), gradients, pulls, strict=True):
        torch.testing.assert_close(new.detach(), old - 0.1 * (g + pull), **CLOSE)


def test_tasks_add_up_in_the_coordinates_of_the_map(network):
    model = network[0]
    guard = anchorhold.Guard(model, anchorhold.Fisher(), batch_norm="fold", decay=0.5)
    guard.consolidate([batch(9)])
    first = fisher(Folded(model), batch(9)[0])
    moved(model)
    guard.consolidate([batch(8)])
    second = fisher(start := Folded(model), batch(8)[0])
    for name, place in places(network).items():
        torch.testing.assert_close(guard.importance[name], 0.5 * first[place] + second[place], **CLOSE)
        torch.testing.assert_close(guard.anchor[name], start.get_parameter(place).detach(), **CLOSE)


@pytest.mark.parametrize("measure", ["MAS", "AF", "sqrtFisher", "L2", "magnitude"])
def test_any_measure_but_those_of_the_path_measures_the_map(measure):
    model = dense()
    start = Folded(model)
    guard = anchorhold.Guard(model, measure, batch_norm="fold")
    guard.consolidate([batch(9)])
    other = anchorhold.Guard(start, measure)
    other.consolidate([batch(9)])
    for name, place in places((model, "0.weight", "0.bias", "3")).items():
        torch.testing.assert_close(guard.importance[name], other.importance[place], **CLOSE)


def test_a_state_goes_on_where_it_was(tmp_path):
    model = dense()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=2.0, batch_norm="fold")
    guard.consolidate([batch(9)])
    moved(model)
    guard.save(tmp_path / "guard.safetensors")
    twin = copy.deepcopy(model)
    again = anchorhold.Guard(twin, anchorhold.Fisher(), strength=2.0, batch_norm="fold")
    again.load(tmp_path / "guard.safetensors")
    assert guard.state_dict()["folded_norms"] == again.state_dict()["folded_norms"] == {"1": "0"}
    assert torch.equal(again.penalty(), guard.penalty()) and guard.penalty().item() > 0
    for one, own in ((model, guard), (twin, again)):
        own.attach(optimizer := torch.optim.Adam(one.parameters()))
        train(one.train(), optimizer)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    with pytest.raises(anchorhold.errors.StateError, match="batch_norm=fold; this Guard has batch_norm=freeze"):
        anchorhold.Guard(dense(), anchorhold.Fisher(), batch_norm="freeze").load(tmp_path / "guard.safetensors")


def test_a_copied_guard_folds_the_copied_model():
    model = dense()
    guard = consolidated(model, batch_norm="fold")
    twin, own = copy.deepcopy((model, guard))
    moved(twin)
    assert own.penalty().item() != guard.penalty().item()


def test_batches_are_drawn_once_and_the_first_one_counts():
    drawn = []

    class Loader:
        def __iter__(self):
            drawn.append("pass")
            yield from (batch(9), batch(8))

    def importance(batches):
        guard = anchorhold.Guard(dense(), anchorhold.Fisher(), batch_norm="fold")
        found = guard.consolidate(batches)["EWC"]
        assert found.samples == 16
        return guard.importance["0.weight"]

    expected = importance([batch(9), batch(8)])
    assert torch.equal(importance(Loader()), expected) and drawn == ["pass"]
    assert torch.equal(importance(iter([batch(9), batch(8)])), expected)


def test_a_model_that_fails_while_it_is_measured_is_as_it_was():
    model = dense()
    before = copy.deepcopy(model.state_dict())
    guard = anchorhold.Guard(model, anchorhold.Fisher(), batch_norm="fold")
    with pytest.raises(anchorhold.AnchorholdError):
        guard.consolidate([batch(9), (torch.full((2, 4), torch.nan, dtype=torch.float64), torch.zeros(2).long())])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not guard.anchor and guard.penalty().item() == 0.0


@pytest.mark.parametrize("form", ["diagonal", "rotated"])
def test_sgd_is_warned_by_what_the_pull_is_in_its_own_weights(form):
    """W̃ = γW/σ: where γ/σ is large, the same Ω̃ bends the loss of W more."""
    model = dense()
    with torch.no_grad():
        model[1].weight.fill_(100.0)
    guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=1.0, batch_norm="fold", form=form)
    guard.consolidate([batch(9)])
    curvature = 2 * (guard.importance["0.weight"] * 1e4 / (model[1].running_var + 1e-5).view(-1, 1)).max()
    lr = float(2 / curvature)  # the bound is that of the largest of all parameters
    guard.attach(optimizer := torch.optim.SGD(model.parameters(), lr=2 * lr))
    loss(model, batch(0)).backward()
    with pytest.warns(anchorhold.AnchorholdWarning, match="too much for SGD"):
        optimizer.step()


def test_measures_of_the_path_are_refused():
    with pytest.raises(anchorhold.errors.ConfigurationError, match="batch_norm='fold' with SI"):
        anchorhold.Guard(dense(), anchorhold.SI(), batch_norm="fold")
    with pytest.raises(anchorhold.errors.ConfigurationError, match="batch_norm='fold' with SOS"):
        anchorhold.Guard(dense(), anchorhold.Fisher(), batch_norm="fold", watch=["SOS"])


def test_holds_that_look_at_the_anchor_are_refused():
    class Own(anchorhold.holds.Hold):
        name = "own"

    with pytest.raises(anchorhold.errors.ConfigurationError, match="beside the hold 'own'"):
        anchorhold.Guard(dense(), anchorhold.Fisher(), batch_norm="fold", holds=[Own()])


def test_it_needs_batches():
    with pytest.raises(anchorhold.errors.BatchError, match="batch_norm='fold' has to see the model called"):
        anchorhold.Guard(dense(), anchorhold.L2(), batch_norm="fold").consolidate()


def test_a_guard_prints_it():
    model = dense()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), batch_norm="fold")
    guard.consolidate([batch(9)])
    assert "folded into the layers before them: the batch norm '1'" in repr(guard)
    assert "no weight has moved since" in repr(guard)
    with torch.no_grad():
        model[1].running_mean += 0.5
    assert "most in 0.bias" in repr(guard)


def test_functional_calls_of_the_model_work_while_it_is_folded():
    model = dense()
    guard = anchorhold.Guard(model, anchorhold.Fisher(), batch_norm="fold")
    guard.consolidate([batch(9)], forward=lambda m, x: functional_call(m, {}, (x,)))
    other = anchorhold.Guard(dense(), anchorhold.Fisher(), batch_norm="fold")
    other.consolidate([batch(9)])
    torch.testing.assert_close(guard.importance, other.importance, **CLOSE)
