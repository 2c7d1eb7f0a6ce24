"""What stands in for old data: the parts of the benchmark, at a small size."""

import pytest
import torch
from torch import nn

from studies.without_data import study as without_data
from studies.without_data.study import distillation, inverted, rows_of, table


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 10))


def test_distillation_is_nothing_while_the_model_is_the_old_one_and_grows_with_the_strength():
    old, inputs = network(), torch.rand(20, 784)
    model = network()
    generator = torch.Generator().manual_seed(0)
    same = distillation(model, old, inputs, slice(5), 1.0)(generator)
    same.backward()
    assert abs(same.item()) < 1e-6
    assert max(float(parameter.grad.abs().max()) for parameter in model.parameters()) < 1e-6
    with torch.no_grad():
        model[2].bias[0] += 1
    losses = [distillation(model, old, inputs, slice(5), c)(generator.manual_seed(0)).item() for c in (1.0, 3.0)]
    assert losses[0] > 0 and losses[1] == pytest.approx(3 * losses[0])
    with torch.no_grad():
        model[2].bias.copy_(old[2].bias)
        model[2].bias[7] += 1
    assert abs(distillation(model, old, inputs, slice(5), 1.0)(generator).item()) < 1e-6  # an output of the other head


def test_inverted_inputs_are_taken_for_their_class_and_leave_no_gradients(monkeypatch):
    monkeypatch.setattr(without_data, "KEPT", 50)
    model = network()
    weights = [parameter.clone() for parameter in model.parameters()]
    x = inverted(model, slice(5), torch.Generator().manual_seed(0))
    sure = model(x)[:, :5].softmax(-1)[torch.arange(50), torch.arange(50) % 5]
    assert float(sure.detach().mean()) > 0.7  # an untrained network is less sure than a trained one
    assert 0 <= float(x.min()) <= float(x.max()) <= 1
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(now, before) for now, before in zip(model.parameters(), weights, strict=True))


def test_strengths_are_chosen_on_validation_data():
    def one(strength, validation, test, seed):
        return {
            "way": "distillation",
            "inputs": "noise",
            "strength": strength,
            "seed": seed,
            "validation": [validation, validation],
            "test": [test, test + 2],
        }

    runs = [one(c, v, t, s) for s in (0, 1) for c, v, t in ((0.1, 50, 99), (1.0, 90, 80 + s), (10.0, 60, 99))]
    (row,) = rows_of(runs)
    assert (row["strength"], row["old"], row["new"], row["average"], row["edge"]) == (1.0, 80.5, 82.5, 81.5, False)
    assert row["error"] == pytest.approx(0.5)
    page = table({setting.name: [row] for setting in without_data.SETTINGS}, {"command": "this"})
    assert page.count("| distillation | noise | 1 | 80.5 | 82.5 | 81.5 ± 0.5 |  |") == 2
