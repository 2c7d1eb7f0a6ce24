"""Guards with a form of whole layers: everything that a guard with a diagonal can do."""

import copy
import gc

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import anchorhold
from anchorhold.errors import (
    AnchorholdWarning,
    BatchError,
    ConfigurationError,
    NotFiniteError,
    ProtectError,
    StateError,
)
from anchorhold.forms import Kronecker, Rotated
from tests.helpers import grouped

FORMS = ["rotated", "kronecker", Rotated(sums="exact"), Kronecker(sums="exact"), Kronecker(inputs="diagonal")]


def network(dtype=torch.float64):
    torch.manual_seed(0)
    layers = (nn.Linear(4, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 3))
    return nn.Sequential(*layers).to(dtype)


def data(seed=0, n=20, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(n, 4, generator=generator, dtype=dtype), torch.randint(3, (n,), generator=generator))]


def trained(model, guard, steps=3, seed=1):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    guard.attach(optimizer)
    for step in range(steps):
        ((x, y),) = data(seed + step)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return guard


def two_tasks(form, **more):
    model = network()
    guard = anchorhold.Guard(model, "EWC", strength=2.0, form=form, from_scratch=True, **grouped(**more))
    guard.consolidate(data())
    trained(model, guard)
    guard.consolidate(data(7))
    return model, trained(model, guard, seed=9)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_step_has_the_gradient_of_the_penalty(form):
    model, guard = two_tasks(form, implicit=False)
    ((x, y),) = data(3)
    model.zero_grad()
    (F.cross_entropy(model(x), y) + guard.penalty()).backward()
    expected = [p.detach() - 0.1 * p.grad for p in model.parameters()]
    guard.detach()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    for parameter, wanted in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.detach(), wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_penalty_can_be_differentiated_twice(form):
    _model, guard = two_tasks(form)
    parameters = list(guard.parameters.values())
    gradients = torch.autograd.grad(guard.penalty(), parameters, create_graph=True)
    vectors = [torch.randn_like(p) for p in parameters]
    products = torch.autograd.grad(gradients, parameters, vectors)
    with torch.no_grad():
        for parameter, vector in zip(parameters, vectors, strict=True):
            parameter.add_(vector)
        moved = torch.enable_grad()(lambda: torch.autograd.grad(guard.penalty(), parameters))()
    for before, after, product in zip(gradients, moved, products, strict=True):
        torch.testing.assert_close(after - before, product, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_state_goes_on_to_the_last_bit(form, tmp_path):
    model, guard = two_tasks(form)
    guard.save(tmp_path / "state")
    twin = copy.deepcopy(model)
    other = anchorhold.Guard(twin, "EWC", strength=2.0, form=form)
    other.load(tmp_path / "state")
    for each, own in ((model, guard), (twin, other)):
        own.detach()
        trained(each, own, seed=20)
        own.consolidate(data(30))
        trained(each, own, seed=40)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


@pytest.mark.parametrize("form", ["rotated", "kronecker"])
def test_a_state_of_another_network_or_form_is_refused_and_nothing_changes(form, tmp_path):
    _, guard = two_tasks(form)
    guard.save(tmp_path / "state")
    wider = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 3)).double()
    other = anchorhold.Guard(wider, "EWC", form=form)
    with pytest.raises(StateError, match="another model"):
        other.load(tmp_path / "state")
    assert other.tasks == 0 and not other.held.matrices
    with pytest.raises(StateError, match="form="):
        anchorhold.Guard(network(), "EWC").load(tmp_path / "state")
    state = guard.state_dict()
    key = next(key for key in state["tensors"] if key.startswith("total/") and "#" in key)
    state["tensors"][key] = state["tensors"][key][:-1]
    before = guard.penalty()
    with pytest.raises(StateError, match="is made of"):
        guard.load_state_dict(state)
    assert torch.equal(guard.penalty(), before)


def test_what_is_not_finite_leaves_everything_as_it_was():
    _model, guard = two_tasks("rotated")
    before, matrices = guard.penalty(), guard.held.matrices
    ((x, y),) = data()
    with pytest.raises(NotFiniteError):
        guard.consolidate([(x * float("nan"), y)])
    assert guard.tasks == 2 and torch.equal(guard.penalty(), before)
    assert all(guard.held.matrices[name] is matrix for name, matrix in matrices.items())


def test_batches_that_can_be_read_once_are_refused_before_they_are():
    guard = anchorhold.Guard(network(), "EWC", form="rotated")
    batches = iter(data())
    with pytest.raises(BatchError, match=r"'rotated' goes through the samples 2 times.*DataLoader"):
        guard.consolidate(batches)
    assert len(list(batches)) == 1
    anchorhold.Guard(network(), "EWC", form="kronecker").consolidate(iter(data()))


def test_a_bias_that_is_frozen_later_is_refused():
    model, guard = two_tasks("rotated", protect=lambda name, parameter: parameter.requires_grad)
    with pytest.warns(anchorhold.AnchorholdWarning, match=r"in one matrix with '0\.weight'"):
        guard.forget("0.bias")
    model[0].bias.requires_grad_(False)
    guard.consolidate(data(seed=7))
    assert guard.held.matrices["0.weight"].block.parameters == ("0.weight",)
    model[0].bias.requires_grad_(True)
    with pytest.raises(ProtectError, match=r"0\.weight.*forget"):
        guard.consolidate(data())


def test_state_in_16_bits_and_elsewhere():
    model = network(torch.float32)
    guard = anchorhold.Guard(
        model, "EWC", form="rotated", options=anchorhold.GuardOptions(state_dtype=torch.bfloat16, state_device="cpu")
    )
    guard.consolidate(data(dtype=torch.float32))
    assert {t.dtype for matrix in guard.held.matrices.values() for t in matrix.state().values()} == {torch.bfloat16}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    with torch.no_grad():
        model[0].weight.add_(0.1)
    model(data(dtype=torch.float32)[0][0]).sum().backward()
    optimizer.step()
    assert all(p.isfinite().all() for p in model.parameters())


def test_factors_in_16_bits_are_refused_since_they_would_be_indefinite():
    with pytest.raises(ConfigurationError, match=r"state_dtype=torch\.bfloat16.*kronecker"):
        anchorhold.Guard(
            network(), "EWC", form="kronecker", options=anchorhold.GuardOptions(state_dtype=torch.bfloat16)
        )
    vectors = torch.randn(100, 5)
    rounded = (vectors @ vectors.T).bfloat16().double()
    values = torch.linalg.eigvalsh(rounded)
    assert (values < -1e-4 * values[-1]).sum() > 20


def test_the_hold_is_in_full_precision_under_autocast():
    model = network(torch.float32)
    guard = anchorhold.Guard(model, "EWC", form="rotated")
    guard.consolidate(data(dtype=torch.float32))
    with torch.no_grad():
        model[0].weight.add_(0.1)
    plain = guard.penalty()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(guard.penalty(), plain)


def test_consolidate_says_in_which_form_each_parameter_is_kept():
    guard = anchorhold.Guard(network(), "EWC", form="rotated")
    found = guard.consolidate(data())["EWC"]
    assert found.forms["0.weight"] == found.forms["0.bias"] == "rotated"
    assert found.forms["1.weight"] == "diagonal"
    assert "4 rotated, 2 diagonal" in repr(found)


@pytest.mark.parametrize(
    ("side", "layer"), [("inputs", nn.Linear(9, 2)), ("outputs", nn.Linear(2, 9))], ids=["inputs", "outputs"]
)
def test_a_side_that_is_too_large_is_kept_as_it_is_and_told_once(side, layer):
    model = nn.Sequential(layer).double()
    guard = anchorhold.Guard(model, "EWC", form=Rotated(largest_side=8))
    x = torch.randn(5, layer.in_features, dtype=torch.float64)
    with pytest.warns(AnchorholdWarning, match=rf"'0\.weight' has .* {side}.*GB.*largest_side="):
        guard.consolidate([x])
    guard.consolidate([2 * x])
    other = "outputs" if side == "inputs" else "inputs"
    assert guard.held.matrices["0.weight"].description == f"rotated along its {other}"


def test_an_embeddings_rows_are_never_rotated_and_nothing_is_told_of_it():
    model = nn.Sequential(nn.Embedding(20, 3), nn.Flatten(), nn.Linear(6, 2)).double()
    guard = anchorhold.Guard(model, "EWC", form=Rotated(largest_side=8))
    guard.consolidate([torch.randint(20, (6, 2))])
    assert guard.held.matrices["0.weight"].description == "rotated along its outputs"


@pytest.mark.parametrize("form", ["diagonal", "rotated", "kronecker", Kronecker(inputs="diagonal")], ids=str)
def test_what_it_will_take_is_what_it_takes(form):
    guard = anchorhold.Guard(network(), "EWC", form=form)
    cost = guard.cost()
    guard.consolidate(data())
    tensors = [t for matrix in guard.held.matrices.values() for t in matrix.state().values()]
    assert cost.kept == 8 * sum(t.numel() for t in [*tensors, *guard.anchor.values()])
    assert cost.weights == sum(p.numel() for p in guard.parameters.values())
    assert {block.name for block in cost.blocks} == guard.held.matrices.keys()
    assert all(
        block.form == guard.held.matrices[block.name].description or "kron" in block.form for block in cost.blocks
    )
    assert guard.options.form.name in repr(cost) and "0.weight" in repr(cost)


def test_what_exact_sums_take_grows_with_the_tasks_and_is_counted():
    guard = anchorhold.Guard(network(), "EWC", form=Rotated(sums="exact"))
    for seed in range(2):
        guard.consolidate(data(seed))
    tensors = [t for matrix in guard.held.matrices.values() for t in matrix.state().values()]
    assert guard.cost().kept == sum(t.nbytes for t in [*tensors, *guard.anchor.values()])


@pytest.mark.parametrize("measure", ["SOS", "SI", anchorhold.RWalk(fisher="batch")], ids=str)
def test_running_states_are_counted(measure):
    model = network()
    guard = anchorhold.Guard(model, measure, from_scratch=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    for x, _ in data():
        model(x).square().sum().backward()
        optimizer.step()
    states = [
        t for tensors in guard.gradients.path.running[next(iter(guard.measures))].values() for t in tensors.values()
    ]
    assert guard.cost().measuring == sum(t.nbytes for t in [*states, *guard.gradients.path.start.values()])


@pytest.mark.parametrize("form", ["kronecker", "kronecker16"])
@pytest.mark.parametrize("implicit", [False, True])
def test_nothing_of_a_layers_size_is_kept_beside_kronecker_factors(form, implicit):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(37, 53), nn.ReLU(), nn.Linear(53, 4))
    guard = anchorhold.Guard(
        model, anchorhold.Fisher(), strength=0.5, form=form, options=anchorhold.GuardOptions(implicit=implicit)
    )
    batch = torch.randn(16, 37), torch.randint(0, 4, (16,))
    guard.consolidate([batch])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01) if implicit else torch.optim.Adam(model.parameters())
    guard.attach(optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()
    gc.collect()
    joined = 53, 38  # weights and biases, as the factors have them
    assert not [t for t in gc.get_objects() if isinstance(t, torch.Tensor) and tuple(t.shape) == joined]


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors:UserWarning")
@pytest.mark.parametrize("form", ["kronecker", "kronecker16", "rotated", "rotated16"])
@pytest.mark.parametrize("implicit", [False, True])
def test_layers_without_outputs_or_inputs_are_no_matrices(form, implicit, tmp_path):
    model = nn.ModuleDict({"some": nn.Linear(4, 3), "no outputs": nn.Linear(4, 0), "no inputs": nn.Linear(0, 2)})
    parts = {"some": slice(4), "no outputs": slice(4), "no inputs": slice(0)}
    forward = lambda model, x: torch.cat([model[name](x[:, part]) for name, part in parts.items()], 1)  # noqa: E731
    guard = anchorhold.Guard(
        model, anchorhold.Fisher(), strength=0.5, form=form, options=anchorhold.GuardOptions(implicit=implicit)
    )
    told = guard.cost().kept
    guard.consolidate([(torch.randn(8, 4), torch.arange(8) % 3)], forward=forward)
    assert guard.held.matrices.keys() == {"some.weight", *(n for n in guard.parameters if n[:2] == "no")}
    assert guard.cost().kept == told
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    forward(model, torch.randn(8, 4)).square().sum().backward()
    optimizer.step()
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    guard.save(tmp_path / "guard.safetensors")
    again = anchorhold.Guard(
        model, anchorhold.Fisher(), strength=0.5, form=form, options=anchorhold.GuardOptions(implicit=implicit)
    )
    again.load(tmp_path / "guard.safetensors")
    assert torch.equal(again.penalty(), guard.penalty())
    assert float(again.penalty().detach()) > 0


def test_stability_is_judged_by_the_largest_eigenvalue():
    model = network()
    guard = anchorhold.Guard(
        model, "EWC", strength=1.0, form="rotated", options=anchorhold.GuardOptions(implicit=False)
    )
    guard.consolidate(data())
    most = max(float(matrix.largest_eigenvalue()) for matrix in guard.held.matrices.values())
    diagonal = max(float(omega.max()) for omega in guard.importance.values())
    assert most > 1.01 * diagonal  # else this would not tell one from the other
    guard.strength = 2 / (2 * 0.1 * most) * 1.005
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard.attach(optimizer)
    ((x, y),) = data()
    F.cross_entropy(model(x), y).backward()
    with pytest.warns(AnchorholdWarning, match="too much for SGD"):
        optimizer.step()
