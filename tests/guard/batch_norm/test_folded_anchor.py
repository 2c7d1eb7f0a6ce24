"""Where the hold on folded maps is centred, in any form, against the sum of all tasks' penalties written out."""

import copy

import pytest
import torch
import torch.nn.functional as F

import anchorhold
from anchorhold.forms import Dense, Kronecker, LowRank, Rotated
from tests.guard.batch_norm.networks import dense
from tests.guard.batch_norm.test_folding import CLOSE, NETWORKS, Folded, folded_map, moved, parts
from tests.guard.helpers import batch, loss
from tests.helpers import grouped

FORMS = {"diagonal": "diagonal", "dense": Dense(), "lowrank": LowRank(rank=200), "by layers": Dense(span="layers")}
CENTRES = {
    "last": {},
    "mean": {"anchor": "mean"},
    "sola": {"anchor": "mean", "gradient_term": True},
}


@pytest.fixture(params=NETWORKS)
def network(request):
    make, *names = NETWORKS[request.param]
    return make(), *names


@pytest.fixture(params=FORMS)
def form(request):
    return request.param


@pytest.fixture(params=CENTRES)
def centre(request):
    return request.param


def maps(network):
    """The coordinates of what is held, differentiable in the network's own parameters."""
    model, _, bias, _ = network
    layer, norm, head = parts(model)
    weight, offset = folded_map(layer.weight, layer.bias, norm)
    return [weight, *([] if bias is None else [offset]), head.weight, head.bias]


def row(tensors):
    return torch.cat([tensor.flatten() for tensor in tensors])


known = {}
"""The mean of ggᵀ by weights, statistics and inputs, which are the same for every form and centre."""


def mean_square(network, model, own, x):
    """The mean of ggᵀ, sample by sample."""
    weights = row(t.detach() for t in (*network[0].state_dict().values(), *own, x))
    key = weights.numpy().tobytes()
    if key not in known:
        known[key] = torch.zeros(sum(p.numel() for p in own), sum(p.numel() for p in own), dtype=torch.float64)
        for sample in x:
            log_p = F.log_softmax(model(sample[None]), 1)[0]
            for y in range(len(log_p)):
                g = row(torch.autograd.grad(log_p[y], own, retain_graph=True))
                known[key] += log_p[y].detach().exp() * torch.outer(g, g) / len(x)
    return known[key]


def of_task(network, data, form):
    """H of a task, of the mean of ggᵀ, where its maps are, and the gradient of its loss."""
    model = Folded(network[0])
    own = [p for name, p in model.named_parameters() if name != "bias" or network[2] is not None]
    sizes = [p.numel() for p in own]
    h = mean_square(network, model, own, data[0])
    places = [network[1], *([] if network[2] is None else [network[2]]), f"{network[3]}.weight", f"{network[3]}.bias"]
    layers = [place.rpartition(".")[0] for place in places]
    block = torch.tensor([layers.index(layer) for layer in layers]).repeat_interleave(torch.tensor(sizes))
    if form == "diagonal":
        h = h.diagonal().diag()
    elif form == "by layers":
        h = h * (block.unsqueeze(1) == block)
    return h, row(own).detach(), row(torch.autograd.grad(loss(model, data), own))


def after_tasks(network, form, centre, strength=0.7, decay=0.6):
    """A guard that has consolidated three tasks, the network moved after each, and their penalties written out."""
    model = network[0]
    guard = anchorhold.Guard(
        model,
        anchorhold.Fisher(),
        strength=strength,
        form=FORMS[form],
        decay=decay,
        batch_norm="fold",
        **grouped(**CENTRES[centre]),
    )
    terms = []
    for seed in range(3):
        guard.consolidate([batch(seed)])
        terms.append((decay ** (2 - seed), *of_task(network, batch(seed), form)))
        moved(model, seed)

    def penalty(other=network):
        theta, last = row(maps(other)), terms[-1][2]
        total = 0.0
        for weight, h, solution, g in terms:
            d = theta - (last if centre == "last" else solution)
            total = total + weight * (d @ h @ d + (2 * d @ g if centre == "sola" else 0.0))
        return strength * total

    return guard, penalty


def test_it_is_the_sum_of_all_tasks_penalties_on_the_maps(network, form, centre):
    guard, penalty = after_tasks(network, form, centre)
    model = network[0]
    values = []
    for seed in (5, 6):
        moved(model, seed)
        own, expected = guard.penalty(), penalty()
        values.append((own - expected).detach())
        for found, wanted in zip(
            *(torch.autograd.grad(v, list(model.parameters())) for v in (own, expected)), strict=True
        ):
            torch.testing.assert_close(found, wanted, **CLOSE)
        assert f"the penalty is {own.item():.3g}" in str(guard)
    torch.testing.assert_close(*values, **CLOSE)  # the constant, which is left out


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize("whose", ["all", "layer", "scale", pytest.param("head", marks=pytest.mark.daily)])
def test_a_step_is_pulled_by_it_whoever_moves_the_rest(form, centre, whose, closure):
    network = dense(), *NETWORKS["dense"][1:]
    guard, penalty = after_tasks(network, form, centre)
    model = network[0].eval()
    chosen = {"all": model.parameters(), "layer": model[0].parameters(), "head": model[3].parameters()}
    mine = list(chosen.get(whose, [model[1].weight]))
    others = [p for p in model.parameters() if all(p is not own for own in mine)]
    held = guard.penalty().detach()
    gradients = torch.autograd.grad(loss(model, batch(7)) + penalty(), mine)
    expected = [p.detach() - 0.1 * g for p, g in zip(mine, gradients, strict=True)]
    kept = [p.detach().clone() for p in others]
    optimizers = [torch.optim.SGD(group, lr=0.1) for group in (mine, others) if group]
    guard.attach(*optimizers)

    def evaluate():
        model.zero_grad()
        value = loss(model, batch(7))
        value.backward()
        return value

    if closure:
        task = loss(model, batch(7)).detach()
        value = optimizers[0].step(evaluate).detach()
        if whose == "all" or (centre == "last" and form in ("dense", "lowrank")):  # else all but what others move
            torch.testing.assert_close(value - task, held, **CLOSE)
    else:
        evaluate()
        optimizers[0].step()
    for parameter, wanted in zip(mine, expected, strict=True):
        torch.testing.assert_close(parameter.detach(), wanted, **CLOSE)
    assert all(torch.equal(p, q) for p, q in zip(others, kept, strict=True))


@pytest.mark.filterwarnings("ignore:Frozen until the last task")
def test_a_scale_that_thaws_is_pulled_by_all_that_its_map_is_held_with():
    """It is in no block itself, and its map is in one with layers that another optimizer moves."""
    network = dense(), *NETWORKS["dense"][1:]
    model = network[0].eval()
    model[1].weight.requires_grad_(False)
    guard, penalty = after_tasks(network, "dense", "last")
    scale = model[1].weight.requires_grad_(True)
    assert all("1.weight" not in matrix.block.parameters for matrix in guard.held.matrices.values())
    gradient = torch.autograd.grad(loss(model, batch(7)) + penalty(), scale)[0]
    expected = scale.detach() - 0.1 * gradient
    others = [p for p in model.parameters() if p is not scale]
    guard.attach(optimizer := torch.optim.SGD([scale], lr=0.1), torch.optim.SGD(others, lr=0.1))
    loss(model, batch(7)).backward()
    optimizer.step()
    torch.testing.assert_close(scale.detach(), expected, **CLOSE)


def test_the_mean_is_that_of_the_maps_by_their_importance(network):
    guard, _ = after_tasks(network, "diagonal", "mean", decay=1.0)
    copied = copy.deepcopy(guard)
    model = network[0]
    before = {name: copied.importance[name] * copied.anchor[name] for name in copied.anchor}
    guard.consolidate([batch(3)])
    folded = dict(zip([network[1], *([network[2]] if network[2] else [])], maps(network), strict=False))
    for name, theta in folded.items():
        new = guard.importance[name] - copied.importance[name]
        wanted = (before[name] + new * theta.detach()) / guard.importance[name]
        torch.testing.assert_close(guard.anchor[name], wanted, rtol=1e-9, atol=1e-10)
        assert not torch.allclose(guard.anchor[name], dict(model.named_parameters())[name], rtol=1e-2)


@pytest.mark.parametrize("form", [Rotated(sums="exact"), Kronecker(sums="exact")], ids=lambda form: form.name)
@pytest.mark.parametrize("slopes", [False, True])
def test_in_forms_of_layers_it_is_what_guards_of_one_task_each_add_up_to(form, slopes):
    network = dense(), *NETWORKS["dense"][1:]
    model = network[0]
    options = {"form": form, "batch_norm": "fold", "anchor": "mean", "gradient_term": slopes}
    guard, alone = anchorhold.Guard(model, anchorhold.Fisher(), strength=0.7, **grouped(**options)), []
    for seed in range(3):
        alone.append(anchorhold.Guard(model, anchorhold.Fisher(), strength=0.7, **grouped(**options)))
        for each in (guard, alone[-1]):
            each.consolidate([batch(seed)])
        moved(model, seed)
    parameters = list(model.parameters())
    expected = torch.autograd.grad(sum(each.penalty() for each in alone), parameters)
    for found, wanted in zip(torch.autograd.grad(guard.penalty(), parameters), expected, strict=True):
        torch.testing.assert_close(found, wanted, **CLOSE)


def test_scales_and_shifts_have_no_part_in_a_matrix_over_all_parameters(form):
    guard, _ = after_tasks((dense(), *NETWORKS["dense"][1:]), form, "sola")
    for name in ("1.weight", "1.bias"):
        assert float(guard.importance[name].abs().max()) < 1e-15
        assert float(guard.held.linear_term[name].abs().max()) < 1e-15


def test_a_state_goes_on_to_the_last_bit(tmp_path, form, centre):
    network = dense(), *NETWORKS["dense"][1:]
    guard, _ = after_tasks(network, form, centre)
    guard.save(tmp_path / "guard.safetensors")
    twin = copy.deepcopy(network[0])
    again = anchorhold.Guard(
        twin,
        anchorhold.Fisher(),
        strength=0.7,
        form=FORMS[form],
        decay=0.6,
        batch_norm="fold",
        **grouped(**CENTRES[centre]),
    )
    again.load(tmp_path / "guard.safetensors")
    for model, own in ((network[0], guard), (twin, again)):
        own.attach(optimizer := torch.optim.SGD(model.train().parameters(), lr=0.01))
        for seed in range(2):
            optimizer.zero_grad()
            loss(model, batch(seed)).backward()
            optimizer.step()
        own.consolidate([batch(4)])
    assert all(torch.equal(p, q) for p, q in zip(network[0].parameters(), twin.parameters(), strict=True))
    kept, resumed = (own.state_dict()["tensors"] for own in (guard, again))
    assert kept.keys() == resumed.keys() and all(torch.equal(kept[key], resumed[key]) for key in kept)


def test_what_cannot_be_consolidated_leaves_model_and_guard_as_they_were():
    network = dense(), *NETWORKS["dense"][1:]
    guard, _ = after_tasks(network, "dense", "sola")
    model = network[0]
    parameters, values = list(model.parameters()), copy.deepcopy(model.state_dict())
    before = copy.deepcopy(guard.state_dict())
    with pytest.raises(anchorhold.errors.BatchError, match="true label"):
        guard.consolidate([batch(4), batch(5)[0]])
    assert all(p is q for p, q in zip(model.parameters(), parameters, strict=True))
    assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())
    after = guard.state_dict()
    assert {k: v for k, v in after.items() if k != "tensors"} == {k: v for k, v in before.items() if k != "tensors"}
    assert all(torch.equal(tensor, before["tensors"][key]) for key, tensor in after["tensors"].items())
