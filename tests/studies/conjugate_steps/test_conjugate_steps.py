"""The pull after Adam's step by conjugate gradients, against the equations solved at once."""

import torch
from torch import nn

import anchorhold
from studies.conjugate_steps import study as conjugate_steps


def test_enough_products_solve_the_equations():
    torch.manual_seed(0)
    model = nn.Linear(4, 3).double()
    guard = anchorhold.Guard(model, "EWC", strength=2.0, form="rotated", from_scratch=True)
    x = torch.randn(50, 4, dtype=torch.float64)
    guard.consolidate([x])
    (matrix,) = guard.held.matrices.values()
    d = {name: torch.randn_like(weight) for name, weight in model.named_parameters()}
    inverse = {name: 1 + torch.rand_like(each) for name, each in d.items()}

    def flat(weights):
        return torch.cat([weights[name].flatten() for name in d])

    def unflat(vector):
        return {name: part.view_as(d[name]) for name, part in zip(d, vector.split([12, 3]), strict=True)}

    q = torch.stack([flat(matrix.apply(unflat(row))) for row in torch.eye(15, dtype=torch.float64)])
    expected = torch.linalg.solve(flat(inverse).diag() + 4 * q, flat(inverse) * flat(d)) - flat(d)
    found, left = conjugate_steps.correction(matrix, d, inverse, 2.0, 100)
    assert left < 1e-3
    torch.testing.assert_close(flat(found), expected, rtol=1e-2, atol=1e-3)
    assert conjugate_steps.correction(matrix, d, inverse, 2.0, 1)[1] > left


def test_a_short_run_and_its_page(monkeypatch):
    monkeypatch.setattr(conjugate_steps, "STEPS", 5)
    rows = [
        {"products": products, "strength": 0.1, "seed": 0, **conjugate_steps.run(products, 0.1, 0)}
        for products in (0, 2)
    ]
    lines = conjugate_steps.page(rows, {}).splitlines()[-2:]
    assert lines[0].startswith(f"| none: in the gradient | {rows[0]['test']:.1f} | 0.1 | – |")
    assert lines[1].startswith(f"| 2 | {rows[1]['test']:.1f} | 0.1 | {rows[1]['unsolved']:.2g} |")
