"""Each way to pull against the library's own hold, or the equations solved at once; and the page."""

import copy

import pytest
import torch
from torch import nn

import anchorhold
from studies.fewer_pulls import costs, digits, quadratic, report, ways
from studies.fewer_pulls.ways import Puller, Way


def held(every=1):
    """A network that has moved from where it was consolidated, its guard, and a step of it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x, y = torch.randn(40, 6, dtype=torch.float64), torch.randint(3, (40,))
    options = anchorhold.GuardOptions(implicit=True, pull_every=every)
    guard = anchorhold.Guard(model, "EWC", strength=5.0, form="rotated", monitors=(), options=options)
    guard.consolidate([x])
    return model, guard, x, y


def steps(model, optimizer, x, y, count, after=lambda: None):
    for _ in range(count):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        after()


@pytest.mark.parametrize("way", [Way("every", 3), Way("leading", share=1.0)], ids=str)
def test_the_prototype_is_what_the_library_does(way):
    model, guard, x, y = held(way.every)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    guard.attach(optimizer)
    steps(model, optimizer, x, y, 7)
    guard.detach()

    twin, its, x, y = held()
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    puller = Puller(its, optimizer, way)
    steps(twin, optimizer, x, y, 7, puller.after_step)
    puller.finish()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_in_turn_each_layer_is_pulled_once_in_k_steps():
    model, guard, x, y = held()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    puller = Puller(guard, optimizer, Way("turns", 2))
    pulled = []

    def look():
        puller.after_step()
        pulled.append([layer for layer, waiting in puller.waiting.items() if not waiting])

    steps(model, optimizer, x, y, 4, look)
    assert pulled == [["2.weight"], ["0.weight"]] * 2


def test_leading_directions_hold_their_share_and_keep_the_trace():
    _, guard, *_ = held()
    for matrix in guard.held.matrices.values():
        for share in (0.5, 0.9, 0.99):
            found = ways.leading(matrix, share)
            torch.testing.assert_close(found.trace(), matrix.trace())
            outputs, inputs = ways.ranks_for(matrix, share)
            assert matrix.s[-outputs:].sum() >= share * matrix.s.sum() > matrix.s[len(matrix.s) - outputs + 1 :].sum()
            assert matrix.s[:, -inputs:].sum() >= share * matrix.s.sum()


def test_enough_products_solve_the_equations():
    model, guard, *_ = held()
    matrix = guard.held.matrices["2.weight"]
    d = {name: torch.randn_like(guard.parameters[name]) for name in matrix.block.parameters}
    roots = {name: 1 + torch.rand_like(each) for name, each in d.items()}

    def flat(weights):
        return torch.cat([weights[name].flatten() for name in d])

    def unflat(vector):
        parts = vector.split([each.numel() for each in d.values()])
        return {name: part.view_as(d[name]) for name, part in zip(d, parts, strict=True)}

    q = torch.stack([flat(matrix.apply(unflat(row))) for row in torch.eye(len(flat(d)), dtype=torch.float64)])
    expected = torch.linalg.solve(flat(roots).diag() + 4 * q, -4 * q @ flat(d))
    found, _ = ways.correction(matrix, d, roots, 2.0, 200)
    torch.testing.assert_close(flat(found), expected, rtol=1e-2, atol=1e-3)
    assert model


def test_what_a_step_costs_is_told_for_an_unprotected_one():
    rows = costs.on_a_processor(4, rounds=1)
    assert [row["case"] for row in rows] == ["unprotected", *(f"every, k = {k}" for k in (1, 4, 8, 16))]
    assert rows[0]["ratio"] == 1
    assert all(row["ratio"] > 0 for row in rows)


def test_a_quadratic_ends_where_the_closed_form_says(monkeypatch):
    problem = quadratic.Quadratic()
    own = quadratic.row(problem, Way("every", 8), 10.0)
    assert own["from closed form"] < 1e-9
    assert own["away"] > 1e-3
    exact = quadratic.row(problem, Way("every", 1), 10.0)
    assert exact["away"] < 1e-9
    assert quadratic.row(problem, Way("gradient"), 1e3)["away"] is None


def test_short_runs_and_their_page(monkeypatch):
    monkeypatch.setattr(digits, "STEPS", 4)
    rows = [
        {"kind": "digits", "key": str(trial), **trial.run()}
        for trial in (
            digits.Trial("momentum", Way("every", 2), 0.1, 0),
            digits.Trial("Adam", Way("conjugate", 2, products=1), 0.1, 0),
            digits.Trial("Adam", Way("reused", 2), 0.1, 0),
        )
    ]
    known = {"optimizer": "SGD", "strength": 0.1, "seconds": 1.0}
    rows += [
        {"kind": "card", "key": "", "setting": "permuted-mnist", "way": Way("every", 4)._asdict(), **known, **found}
        for found in ({"old": 90.0, "new": 94.0}, {"old": 92.0, "new": 94.0}, {"diverged": "so"})
    ]
    rows.append(
        {"kind": "costs", "key": "", "setting": "permuted-mnist", "case": "every, k = 4", "ratio": 1.31, "seconds": 1.0}
    )
    rows.append(
        {"kind": "costs", "key": "", "setting": "permuted-mnist", "ranks": 0.99, "layers": {"a": [[4, 5], [2, None]]}}
    )
    page = report.page(rows)
    assert "| every, k = 4 | 1.31 |" in page
    assert "a: 2 of 4 and all of 5" in page
    assert "| every, k = 4 | – |  |  | – |" in page
    assert report.page([*rows, *copy.deepcopy(rows[:3])]) == page
