"""How pulls of matrix forms come into gradients: block by block where nobody looks at them first, to the same bits."""

import copy
import gc

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import anchorhold
from anchorhold.forms import RotatedMatrix
from anchorhold.guard.stepping import pulls
from tests.helpers import grouped

WIDTH, LAYERS = 7, 6
BATCHES = [(torch.randn(8, WIDTH), torch.randint(0, WIDTH, (8,))) for _ in range(5)]


def _guarded(form="rotated", **options):
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    model = nn.Sequential(*(each for layer in layers for each in (layer, nn.Tanh())))
    guard = anchorhold.Guard(model, anchorhold.Fisher(), strength=3.0, form=form, **grouped(implicit=False, **options))
    guard.consolidate(BATCHES)
    return model, guard


def _train(model, optimizer, closure=False, batches=BATCHES):
    for x, y in batches:

        def evaluate(x=x, y=y):
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            return loss

        if not closure:
            evaluate()
        optimizer.step(*([evaluate] if closure else []))


@pytest.fixture
def unseen(monkeypatch):
    """Parameters as on an accelerator, whose pulls nobody looks at before they are added."""
    return lambda: monkeypatch.setattr(pulls, "is_looked_at", lambda tensor: False)


CASES = {
    "rotated": {},
    "kronecker": {"form": "kronecker"},
    "rotated16": {"form": "rotated16"},
    "with a measure that waits": {"watch": ["SI"]},
    "beside another hold": {"holds": [anchorhold.Replay(BATCHES, share=0.1)]},
}


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize("case", [case for case in CASES if "waits" not in case])  # where gradients are copied
def test_one_block_at_a_time(case, closure, unseen, monkeypatch):
    unseen()
    model, guard = _guarded(**copy.deepcopy(CASES[case]))
    optimizer = torch.optim.AdamW(model.parameters())
    guard.attach(optimizer)
    _train(model, optimizer, closure, BATCHES[:1])
    alive = []
    kind = type(next(iter(guard.held.matrices.values())))
    apply = kind.apply

    def counted(self, d):
        gc.collect()
        kept = [
            each for each in gc.get_objects() if issubclass(type(each), torch.Tensor) and each.shape == (WIDTH, WIDTH)
        ]
        alive.append(len(kept))
        return apply(self, d)

    monkeypatch.setattr(kind, "apply", counted)
    _train(model, optimizer, closure, BATCHES[1:2])
    assert len(alive) >= LAYERS  # more of forms that find a closure's value by it too
    assert max(alive[:LAYERS]) == alive[0]


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_to_the_same_bits(case, closure, unseen):
    found = []
    for late in (False, True):
        if late:
            unseen()
        model, guard = _guarded(**copy.deepcopy(CASES[case]))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        guard.attach(optimizer)
        _train(model, optimizer, closure)
        found.append([p.detach() for p in model.parameters()])
    assert all(map(torch.equal, *found))


def _failing(monkeypatch, at):
    apply, calls = RotatedMatrix.apply, []

    def fail(self, d):
        calls.append(self)
        if len(calls) == at:
            raise MemoryError("no room")
        return apply(self, d)

    monkeypatch.setattr(RotatedMatrix, "apply", fail)


def test_a_pull_that_cannot_be_made_leaves_no_step_to_be_taken(unseen, monkeypatch):
    unseen()
    model, guard = _guarded()
    optimizer = torch.optim.AdamW(model.parameters())
    guard.attach(optimizer)
    _train(model, optimizer)
    before = [p.detach().clone() for p in model.parameters()]
    _failing(monkeypatch, at=3)
    with pytest.raises(MemoryError, match="no room"):
        _train(model, optimizer, batches=BATCHES[:1])
    with pytest.raises(anchorhold.errors.OrderError, match=r"Call optimizer\.zero_grad"):
        optimizer.step()
    assert all(map(torch.equal, before, model.parameters()))
    _train(model, optimizer)


def test_gradients_that_were_copied_are_put_back(unseen, monkeypatch):
    unseen()
    model, guard = _guarded(watch=["SI"])
    optimizer = torch.optim.AdamW(model.parameters())
    guard.attach(optimizer)
    _train(model, optimizer)
    optimizer.zero_grad()
    cross_entropy(model(BATCHES[0][0]), BATCHES[0][1]).backward()
    own = [p.grad.clone() for p in model.parameters()]
    _failing(monkeypatch, at=3)
    with pytest.raises(MemoryError, match="no room"):
        optimizer.step()
    assert all(torch.equal(p.grad, grad) for p, grad in zip(model.parameters(), own, strict=True))
    optimizer.step()


@pytest.mark.parametrize("form", ["rotated", "kronecker16"])
def test_a_penalty_that_is_no_number_says_whose_fault_it_is(form):
    model, guard = _guarded(form)
    optimizer = torch.optim.AdamW(model.parameters())
    guard.attach(optimizer)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with torch.no_grad():
        model[2].weight += 1e12
    guard.strength = 1e38
    with pytest.raises(anchorhold.errors.NotFiniteError, match=r"gradient of the penalty for '2.weight'.*The strength"):
        optimizer.step()
    guard.strength = 1.0
    with torch.no_grad():
        model[2].weight[0, 0] = torch.nan
    with pytest.raises(
        anchorhold.errors.NotFiniteError, match=r"The weights '2.weight' themselves are not finite.*No batch"
    ):
        optimizer.step()
