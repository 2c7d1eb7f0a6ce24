"""The probe "lca", against the definition: Gauss's rule on copies of the network, one sample at a time."""

import numpy as np
import pytest
import torch

from anchorhold_lab.training.plain_run import PlainRun
from tests.lab.analysis.helpers import gradient_of_each, loss_over_all, observed_learner, weights_of
from tests.lab.training.helpers import finish

STEPS = 6
POINTS = 8


def allocated(learner, task, names):
    """−Δ times the mean full gradient along every step, ``[steps, weights]``."""
    models, rows = learner.observers["witness"].models, []
    points, shares = np.polynomial.legendre.leggauss(POINTS)
    for step in range(STEPS):
        model, after = models[task, step], models[task, step + 1]
        start = {name: p.detach().clone() for name, p in model.named_parameters()}
        move = {name: p.detach() - start[name] for name, p in after.named_parameters()}
        mean = 0
        for s, share in zip((points + 1) / 2, shares / 2, strict=True):
            with torch.no_grad():
                for name, p in model.named_parameters():
                    p.copy_(start[name] + s * move[name])
            mean = mean + share * gradient_of_each(model, learner, task, names=names).mean(0)
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(start[name])
        rows.append(-mean * (weights_of(after, names) - weights_of(model, names)))
    return torch.stack(rows)


def left_ends(learner, task, names):
    """−∇L(θ)Δ of every step, ``[steps, weights]``."""
    models = learner.observers["witness"].models
    moves = [weights_of(models[task, i + 1], names) - weights_of(models[task, i], names) for i in range(STEPS)]
    gradients = [gradient_of_each(models[task, i], learner, task, names=names).mean(0) for i in range(STEPS)]
    return -torch.stack(gradients) * torch.stack(moves)


@pytest.mark.parametrize("own_heads", [False, True])
def test_against_the_definition(own_heads):
    """With dropout in the steps, a penalty from the second task on, and heads that are not part of it."""
    options = {"own_heads": own_heads, "strength": 2.0, "activation": torch.nn.Tanh()}
    learner = finish(PlainRun(observed_learner("lca:1e-10", "importances", **options))).learner
    witness, protected = learner.observers["witness"], list(learner.guard.parameters)
    entries = learner.observations["lca"]["tasks"]
    assert len(entries) == 3 and list(learner.observations["lca"]) == ["tasks"]
    for task, entry in enumerate(entries):
        rows = allocated(learner, task, protected)
        assert entry["sum"] == pytest.approx(float(rows.sum()), abs=1e-9)
        head = [f"heads.{task}.{name}" for name in ("weight", "bias")]
        of_head = float(allocated(learner, task, head).sum()) if own_heads else 0.0
        assert entry["head_sum"] == pytest.approx(of_head, abs=1e-9)
        losses = [loss_over_all(witness.models[task, step], learner, task) for step in (0, STEPS)]
        assert [entry["loss_before"], entry["loss_after"]] == pytest.approx(losses)
        assert entry["decrease"] == pytest.approx(losses[0] - losses[1])
        assert entry["error"] == pytest.approx(0, abs=1e-9) and entry["elsewhere"] == pytest.approx(0, abs=1e-12)
        assert sum(entry["sums"].values()) == pytest.approx(entry["decrease"], abs=1e-9)
        for which, share in (("helps", rows > 0), ("hurts", rows < 0), ("zeros", rows == 0)):
            assert entry[which] == pytest.approx(float(share.double().mean()))
        assert (entry["steps"], entry["unsettled"]) == (STEPS, 0)
        assert 0 < entry["most_splits"] <= entry["splits"] and 0 < entry["split_steps"] <= STEPS
        left = left_ends(learner, task, protected)
        assert entry["left_end"] == pytest.approx(float(left.sum()), abs=1e-9)
        expected = float(torch.corrcoef(torch.stack([rows.sum(0), left.sum(0)]))[0, 1])
        assert entry["left_end_correlation"] == pytest.approx(expected, abs=1e-7)
        for name in ("SI", "SIU", "SIB"):
            raw = torch.cat([witness.found[task][name].raw[key].flatten() for key in protected])
            assert entry["raw_sums"][name] == pytest.approx(float(raw.sum()), abs=1e-9)
            expected = float(torch.corrcoef(torch.stack([rows.sum(0), raw]))[0, 1])
            assert entry["correlations"][name] == pytest.approx(expected, abs=1e-7)
        assert entry["raw_sums"] == pytest.approx(learner.observations["importances"]["tasks"][task]["raw_sums"])


def test_what_was_frozen_had_no_part():
    learner = observed_learner("lca", activation=torch.nn.Tanh(), dropout=False)
    learner.model.body[0].bias.requires_grad_(False)
    entry = finish(PlainRun(learner)).learner.observations["lca"]["tasks"][0]
    assert "body.0.bias" not in entry["sums"]
    assert entry["sum"] + entry["head_sum"] == pytest.approx(entry["decrease"], abs=STEPS * 1e-4)
