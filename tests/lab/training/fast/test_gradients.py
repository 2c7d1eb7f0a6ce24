"""Networks as formulas: the same gradients as calling the module, convolutions and dropout included."""

import pytest
import torch
from torch import nn

from anchorhold_lab.networks import Dropout, MultiHead
from anchorhold_lab.training.fast.dropout_masks import Masks
from anchorhold_lab.training.fast.flat_layout import ALIGNMENT, FlatLayout
from anchorhold_lab.training.fast.sample_tables import Batches
from anchorhold_lab.training.fast.step_gradients import (
    Formula,
    FunctionalGradients,
    ModuleGradients,
    is_a_formula,
    is_all_linear,
    trained_parameters,
)
from tests.lab.training.helpers import make_learner, make_scenario


def convolutional():
    body = nn.Sequential(
        *(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), Dropout(0.25)),
        *(nn.Flatten(), nn.Linear(36, 7), nn.ReLU(), Dropout(0.5)),
    )
    return MultiHead(body, 7, 3, heads=2)


@pytest.mark.parametrize("dropping", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
def test_a_convolutional_network_as_a_formula(dropping, channels_last):
    scenario = make_scenario(2, dtype=torch.float64, shape=(2, 6, 6))
    learner = make_learner(scenario=scenario, model=convolutional().double())
    layout = FlatLayout({name: p.shape for name, p in trained_parameters(learner.model, 0).items()})
    row = torch.zeros(1, layout.width, dtype=torch.float64)
    for name, view in layout.views(row).items():
        view.copy_(trained_parameters(learner.model, 0)[name].detach())
    batches = Batches(1, 28, torch.Size((2, 6, 6)), torch.float64, torch.device("cpu"), channels_last=channels_last)
    batches.fill([scenario.tasks[0].train])
    orders, step = torch.randint(0, 28, (1, 3, 8)), torch.tensor([1])
    x, y = batches.fetch(orders, step)
    assert torch.equal(x[0], scenario.tasks[0].train.x[orders[0, 1]])
    assert torch.equal(y[0], scenario.tasks[0].train.y[orders[0, 1]])
    assert x[0].is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    plain = Batches(1, 28, torch.Size((2, 6, 6)), torch.float64, torch.device("cpu"), channels_last=False)
    plain.fill([scenario.tasks[0].train])
    before = learner.dropout.get_state()
    losses = torch.zeros(2, 1, 3, dtype=torch.float64)
    expected = ModuleGradients(learner, plain)(orders, step, losses[0], dropping=dropping)
    learner.dropout.set_state(before)
    # Masks are drawn in the order in which activations lie in memory; the module above saw them contiguous.
    masks = Masks(learner.model, x[0].contiguous(), [learner.dropout])
    formula = Formula(learner, runs=1)
    source = FunctionalGradients(formula, layout.views(row), batches, masks)
    found = source(orders, step, losses[1], dropping=dropping)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(losses[0], losses[1])
    assert losses[0].nonzero().tolist() == [[0, 1]]


class OwnDropout(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, 0.5, self.training)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = Dropout(0.5)

    def forward(self, x):
        return self.drop(self.drop(x))


@pytest.mark.filterwarnings("ignore:The network draws random numbers")
def test_which_networks_are_formulas():
    def learner(*layers):
        scenario = make_scenario()
        return make_learner(scenario=scenario, model=MultiHead(nn.Sequential(*layers), 4, 3, scenario.heads))

    linear = learner(nn.Linear(6, 4), nn.ReLU(), nn.Dropout(0.5))
    assert is_a_formula(linear) and is_all_linear(linear.model)
    assert not is_all_linear(convolutional())
    images = make_scenario(shape=(2, 6, 6), tasks=2)
    assert is_a_formula(make_learner(scenario=images, model=convolutional()))
    assert not is_a_formula(learner(nn.Linear(6, 4), nn.BatchNorm1d(4)))
    assert not is_a_formula(learner(nn.Linear(6, 4), nn.AlphaDropout(0.5)))
    assert not is_a_formula(learner(nn.Linear(6, 4), OwnDropout()))
    assert not is_a_formula(learner(nn.Linear(6, 4), Twice()))
    frozen = nn.Linear(6, 4)
    frozen.bias.requires_grad_(False)
    assert not is_a_formula(learner(frozen))
    tied = learner(nn.Linear(6, 4), nn.Linear(4, 4), nn.Linear(4, 4)).model
    tied.body[2].weight = tied.body[1].weight
    assert not is_a_formula(make_learner(scenario=make_scenario(), model=tied))


def test_a_layout_gives_every_parameter_an_aligned_place():
    shapes = {"a": torch.Size((3, 5)), "b": torch.Size((2,)), "c": torch.Size((4, 2, 2))}
    layout = FlatLayout(shapes)
    rows = torch.arange(2.0 * layout.width).view(2, -1)
    views = layout.views(rows)
    assert {name: view.shape[1:] for name, view in views.items()} == shapes
    assert all(place.start % ALIGNMENT == 0 for place in layout.places.values())
    assert layout.width % ALIGNMENT == 0
    joined = layout.joined(views)
    for name, view in views.items():
        assert torch.equal(layout.views(joined)[name], view)
        view.zero_()
    assert torch.equal(joined != 0, (rows == 0) & (torch.arange(2.0 * layout.width).view(2, -1) != 0))
