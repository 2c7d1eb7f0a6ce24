"""The brute force behind what dead units cost: its parts against definitions of their own."""

import torch
from torch.nn.functional import log_softmax

from studies.dead_units.study import Case, damped, dead_units, drawn, forward, mean_of, rate_of, root_fisher, weights_of

HIDDEN = 6


def small():
    torch.manual_seed(1)
    weights = [w.double() for w in drawn(HIDDEN, 0)]
    weights[1][2], weights[3][4] = -100.0, -100.0
    return weights, torch.rand(7, 784, dtype=torch.float64)


def test_what_is_dead_has_no_fisher_and_is_found():
    weights, x = small()
    units = dead_units(weights, x)
    assert units[0][2] and units[1][4] and not all(units[0]) and not all(units[1])
    own = root_fisher(weights, x)
    for mask, found in zip(weights_of(units, weights), own, strict=True):
        assert not found[mask].any()
    assert torch.equal(forward(weights, x, units)[2], forward(weights, x)[2])  # switching off what is off
    leaves, squares = [w.clone().requires_grad_() for w in weights], [torch.zeros_like(w) for w in weights]
    for sample in x:
        logs = log_softmax(forward(leaves, sample[None])[2][0], 0)
        for log in logs:
            for total, g in zip(squares, torch.autograd.grad(log, leaves, retain_graph=True), strict=True):
                total.add_(log.exp().detach() * g.square() / len(x))
    for found, total in zip(own, squares, strict=True):
        torch.testing.assert_close(found, total.sqrt(), rtol=1e-9, atol=1e-12)


def test_damping_reaches_the_weights_that_it_is_for():
    weights, x = small()
    units, omega = dead_units(weights, x), root_fisher(weights, x)
    masks, added = weights_of(units, weights), 0.1 * mean_of(omega)
    for chosen in ("all", "dead", "others"):
        for now, before, mask in zip(damped(omega, Case("tied", 1, 0.1, chosen), units), omega, masks, strict=True):
            where = {"all": torch.ones_like(mask), "dead": mask, "others": ~mask}[chosen]
            torch.testing.assert_close(now - before, added * where, rtol=1e-9, atol=1e-12)


def test_averages_count_steps_as_they_are_called():
    assert [rate_of("tied", step) for step in (0, 10)] == [1.0, 0.5]
    assert [rate_of("skip", step) for step in (49, 50)] == [0.0, 0.001]
    assert (rate_of("β₂ = 0.999", 0), rate_of("β₂ = 0.97", 0)) == (0.001, 0.03)
