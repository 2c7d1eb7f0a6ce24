"""Sides in blocks and of low rank against the dense matrix, in float64, and 16 bits within the bound of rounding."""

import contextlib
import itertools

import pytest
import torch

import anchorhold
from anchorhold.engine.reductions import joined, layers
from anchorhold.errors import ConfigurationError
from anchorhold.forms import Kronecker, Rotated
from tests.forms.layer_networks import block_gradients, dense_of, guarded, network_and_inputs, parts

LARGEST, RANK = 3, 2
SIDES = [("blocks", "blocks"), ("lowrank", "lowrank"), ("blocks", "lowrank"), ("lowrank", "dense"), ("dense", "blocks")]
NETWORKS = ["mlp", "along a sequence", "inputs first", "convolutions", "recurrent"]


def matrices_of(guard):
    return [matrix for matrix in guard.held.matrices.values() if matrix.block.is_matrix]


def in_equal_blocks(factor):
    """The factor without what is beside its blocks: as few as can be, of one size but for the last."""
    size = len(factor)
    side = -(-size // -(-size // LARGEST))
    group = torch.arange(size) // side
    return factor * (group[:, None] == group)


def coordinates(factor, side):
    """Return all eigenvectors of a side's factor, and which of them share their numbers."""
    factor = in_equal_blocks(factor) if side == "blocks" else factor
    values, vectors = torch.linalg.eigh(factor)
    shared = torch.eye(len(factor), dtype=torch.float64)
    rest = len(factor) - RANK
    if side == "lowrank" and rest > 0:
        shared[:rest, :rest] = 1 / rest
    return values, vectors, shared


def rotated_truth(model, x, block, factors, sides):
    """Return U (S ∘ UᵀDU) Uᵀ over the entries of [W b], S being the mean over what shares it."""
    (_, u_g, m_g), (_, u_a, m_a) = (coordinates(f, side) for f, side in zip(factors, sides, strict=True))
    s = sum(weight * (u_g.T @ gradient @ u_a).square() for weight, gradient in block_gradients(model, x, block))
    u = torch.kron(u_g, u_a)
    return u @ torch.diag((m_g @ s @ m_a.T).flatten()) @ u.T


def kronecker_truth(factors, sides):
    found = []
    for factor, side in zip(factors, sides, strict=True):
        values, vectors, shared = coordinates(factor, side)
        found.append(vectors @ torch.diag(shared @ values) @ vectors.T)
    return torch.kron(*found)


@pytest.mark.daily
@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("sides", SIDES, ids="-".join)
@pytest.mark.parametrize("form", [Rotated, Kronecker])
def test_what_is_kept_of_a_side_is_what_its_name_says(form, sides, kind):
    model, x = network_and_inputs(kind)
    factors = {m.block.name: (m.g, m.a) for m in matrices_of(guarded(model, x, Kronecker(damping=0.0)))}
    settings = {"damping": 0.0, "largest_block": LARGEST, "rank": RANK, "outputs": sides[0], "inputs": sides[1]}
    for matrix in matrices_of(guarded(model, x, form(**settings))):
        own = factors[matrix.block.name]
        if matrix.block.size[0] * matrix.block.size[1] > 120:
            continue  # a dense matrix of that many entries takes seconds
        rotated = form is Rotated
        expected = rotated_truth(model, x, matrix.block, own, sides) if rotated else kronecker_truth(own, sides)
        torch.testing.assert_close(dense_of(matrix), expected, rtol=1e-10, atol=1e-12 * float(expected.abs().max()))


@pytest.mark.parametrize("sides", SIDES, ids="-".join)
@pytest.mark.parametrize("form", [Rotated, Kronecker])
def test_all_it_does_is_what_the_dense_matrix_does_and_sums_keep_the_trace(form, sides):
    model, x = network_and_inputs("mlp")
    settings = {"largest_block": LARGEST, "rank": RANK, "outputs": sides[0], "inputs": sides[1]}
    guard = guarded(model, x, form(**settings))
    traces = {}
    for task in range(2):
        for matrix in matrices_of(guard):
            q, (outputs, inputs) = dense_of(matrix), matrix.block.size
            flat, eye = torch.randn(len(q), dtype=torch.float64), torch.eye(len(q), dtype=torch.float64)
            d = parts(matrix.block, flat)
            close = {"rtol": 1e-9, "atol": 1e-12}
            torch.testing.assert_close(q, q.T, **close)
            assert float(torch.linalg.eigvalsh(q)[0]) >= -1e-14
            torch.testing.assert_close(matrix.value(d), flat @ q @ flat, **close)
            shrunk = joined(matrix.block, matrix.shrink(d, 30.0)).flatten()
            torch.testing.assert_close(shrunk, torch.linalg.solve(eye + 30.0 * q, flat), **close)
            pulled = joined(matrix.block, matrix.pull(d, 30.0)).flatten()
            torch.testing.assert_close(pulled, flat - shrunk, **close)
            solved = joined(matrix.block, matrix.solve(d, 0.1)).flatten()
            torch.testing.assert_close(solved, torch.linalg.solve(q + 0.1 * eye, flat), **close)
            torch.testing.assert_close(joined(matrix.block, matrix.diagonal()).flatten(), q.diagonal(), **close)
            torch.testing.assert_close(matrix.trace(), q.trace(), **close)
            torch.testing.assert_close(matrix.largest_eigenvalue(), torch.linalg.eigvalsh(q)[-1], **close)
            b, a = torch.randn(outputs, 2, dtype=torch.float64), torch.randn(2, inputs, dtype=torch.float64)
            product = (q @ (b @ a).flatten()).view(outputs, inputs)
            for found, expected in zip(matrix.apply_to_product(b, a), (product @ a.T, b.T @ product), strict=True):
                torch.testing.assert_close(found, expected, **close)
            if task:
                torch.testing.assert_close(matrix.trace(), traces[matrix.block.name], **close)
            own = guarded(model, x + 0.3, form(**settings)).held.matrices[matrix.block.name].trace()
            traces[matrix.block.name] = matrix.trace() + own
        if not task:
            guard.consolidate([x + 0.3])


def test_earlier_tasks_are_re_expressed_by_their_exact_diagonal():
    model, x = network_and_inputs("mlp")
    form = Rotated(outputs="lowrank", inputs="blocks", largest_block=LARGEST, rank=RANK)
    guard = guarded(model, x, form)
    before = guard.held.matrices["0.weight"]
    guard.consolidate([x + 0.3])
    after = guard.held.matrices["0.weight"]
    outputs, inputs = after.block.size
    u_g = after.basis.outputs
    rest = torch.eye(outputs, dtype=torch.float64) - u_g @ u_g.T
    u_a = torch.block_diag(*after.basis.inputs)[:inputs, :inputs]
    q = dense_of(before).view(outputs, inputs, outputs, inputs)
    along = torch.einsum("op,pjqk,qr,ji,ki->ori", torch.eye(outputs).double(), q, torch.eye(outputs).double(), u_a, u_a)
    expected = torch.cat(
        [
            torch.einsum("or,opi,pr->ri", u_g, along, u_g),
            (torch.einsum("op,poi->i", rest, along) / (outputs - RANK)).unsqueeze(0),
        ]
    )
    torch.testing.assert_close(before.diagonal_in_basis(after.basis), expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("form", ["rotated16", "kronecker16", Kronecker(bits=16, outputs="lowrank", rank=2)], ids=str)
def test_16_bits_are_off_by_their_rounding_and_push_nothing_away(form):
    model, x = network_and_inputs("mlp")
    exact = form if not isinstance(form, str) else {"rotated16": Rotated(), "kronecker16": Kronecker()}[form]
    if not isinstance(form, str):
        exact = Kronecker(outputs="lowrank", rank=2)
    whole, rounded = guarded(model, x, exact), guarded(model, x, form)
    for name, matrix in rounded.held.matrices.items():
        assert {tensor.dtype for tensor in matrix.state().values()} == {torch.bfloat16}
        q, expected = dense_of(matrix.map(torch.Tensor.double)), dense_of(whole.held.matrices[name])
        assert float((q - expected).norm() / expected.norm()) < 0.02
        exactly = matrix.map(torch.Tensor.double)
        exactly.precision = "float32"  # without the rounding of products, which knows no sign
        assert float(torch.linalg.eigvalsh(dense_of(exactly))[0]) >= -1e-12 * float(expected.trace())
    assert {tensor.dtype for tensor in rounded.anchor.values()} == {torch.float64}


FORMS = [
    *(kind(outputs=g, inputs=a, largest_block=3, rank=2) for kind in (Rotated, Kronecker) for g, a in SIDES),
    *(kind(outputs="blocks", inputs="lowrank", largest_block=3, rank=2, bits=16) for kind in (Rotated, Kronecker)),
    Kronecker(bits=16, precision="bfloat16"),
]


@pytest.mark.parametrize("form", FORMS, ids=[f"{type(f).__name__}-{f.outputs}-{f.inputs}-{f.bits}" for f in FORMS])
def test_it_is_saved_and_loaded_as_it_was_and_its_cost_is_known_before(form, tmp_path):
    model, x = network_and_inputs("mlp")
    guard = anchorhold.Guard(model, "EWC", strength=1.0, form=form)
    cost = guard.cost()
    guard.consolidate([x])
    kept = [tensor for matrix in guard.held.matrices.values() for tensor in matrix.state().values()]
    assert cost.kept == sum(tensor.nbytes for tensor in [*kept, *guard.anchor.values()])
    guard.save(tmp_path / "guard.safetensors")
    again = anchorhold.Guard(model, "EWC", strength=1.0, form=form)
    again.load(tmp_path / "guard.safetensors")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    assert float(again.penalty().detach()) == float(guard.penalty().detach()) > 0
    for one, other in itertools.pairwise((guard, again)):
        for name, matrix in one.held.matrices.items():
            assert all(torch.equal(t, other.held.matrices[name].state()[key]) for key, t in matrix.state().items())


class Queries(torch.nn.Module):
    """Three layers with one input, as in attention, and one with another."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(4, size) for size in (5, 5, 3))
        self.head = torch.nn.Linear(3, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.v(x)) * (self.q(x) * self.k(x)).sum(-1, keepdim=True))


@pytest.mark.parametrize("kind", [Rotated, Kronecker])
def test_layers_that_see_the_same_inputs_keep_what_is_known_of_them_once(kind, tmp_path):
    torch.manual_seed(0)
    model, x = Queries().double(), torch.randn(8, 4, dtype=torch.float64)
    apart, shared = guarded(model, x, kind()), guarded(model, x, kind(share_inputs=True))
    key = "UA" if kind is Rotated else "A"
    for name, matrix in shared.held.matrices.items():
        expected = dense_of(apart.held.matrices[name])
        torch.testing.assert_close(dense_of(matrix), expected, rtol=1e-9, atol=1e-12 * float(expected.abs().max()))

    def bases(guard):
        return [guard.held.matrices[f"{name}.weight"].state()[key] for name in ("q", "k", "v", "head")]

    shared.save(tmp_path / "guard.safetensors")
    again = anchorhold.Guard(model, "EWC", form=kind(share_inputs=True))
    again.load(tmp_path / "guard.safetensors")
    for guard in (shared, again):
        q, k, v, head = bases(guard)
        assert q is k is v is not head
        distinct = {id(t): t for m in guard.held.matrices.values() for t in m.state().values()}.values()
        assert guard.cost().kept == sum(t.nbytes for t in [*distinct, *guard.anchor.values()])
    assert apart.cost().kept - shared.cost().kept == 2 * 8 * 25
    before, own = shared.held.matrices["k.weight"], guarded(model, x + 0.3, kind()).held.matrices["k.weight"].trace()
    wanted = before.trace() + own
    shared.consolidate([x + 0.3])
    torch.testing.assert_close(shared.held.matrices["k.weight"].trace(), wanted, rtol=1e-9, atol=0)
    assert (len({id(basis) for basis in bases(shared)}) == 2) == (kind is Rotated)


def test_a_step_is_held_from_16_bits_as_from_32():
    model, x = network_and_inputs("mlp")
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    ends = {}
    for form in ("rotated", "rotated16"):
        model.load_state_dict(start)
        guard = guarded(model, x, form, strength=5.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        guard.attach(optimizer)
        for _ in range(20):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
        ends[form] = torch.cat([(p.detach() - start[name]).flatten() for name, p in model.named_parameters()])
    assert float((ends["rotated"] - ends["rotated16"]).norm() / ends["rotated"].norm()) < 0.01
    assert float(ends["rotated"].norm()) > 0.01


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigurationError, match=r"precision='bfloat16' with bits=32.*bits=16"):
        Kronecker(precision="bfloat16")
    with pytest.raises(ConfigurationError, match="bits=8: expected 16 or 32"):
        Rotated(bits=8)
    with pytest.raises(ConfigurationError, match="rank"):
        Rotated(outputs="lowrank", rank=0)
    model, _ = network_and_inputs("mlp")
    with pytest.raises(ConfigurationError, match=r"Kronecker\(bits=16\)"):
        anchorhold.Guard(model, "EWC", form="kronecker", options=anchorhold.GuardOptions(state_dtype=torch.bfloat16))


@pytest.mark.parametrize("form", ["rotated", "rotated16", "kronecker", "kronecker16"])
def test_only_what_is_kept_in_16_bits_is_measured_in_tf32(form, monkeypatch):
    asked = []

    def noted(precision, device):
        asked.append(precision)
        return contextlib.nullcontext()

    monkeypatch.setattr(layers, "products_in", noted)
    for network in ("mlp", "recurrent"):  # by products, and by gradients
        asked.clear()
        guarded(*network_and_inputs(network), form)
        assert set(asked) == ({"tf32"} if form.endswith("16") else set())
