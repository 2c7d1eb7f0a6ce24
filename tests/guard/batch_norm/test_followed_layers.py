"""Which layer a batch norm follows is seen in a forward pass, and what cannot be folded is frozen and told."""

import warnings

import pytest
import torch
from torch import nn

import anchorhold
from tests.guard.batch_norm.networks import dense, statistics, stirred
from tests.guard.helpers import batch, loss
from tests.helpers import grouped


class Network(nn.Module):
    """Two layers and two batch norms, in an order that only calling it tells."""

    def __init__(self, way):
        super().__init__()
        torch.manual_seed(0)
        self.way = way
        self.second, self.first = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm_of_first, self.norm_of_second = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 3)
        stirred(self)

    def forward(self, x):
        z = self.first(x)
        if self.way == "activation between":
            z = torch.tanh(z)
        elif self.way == "in place":
            z.mul_(2.0)
        elif self.way == "before the layer":
            z = x
        y = self.norm_of_first(z)
        if self.way in ("before the layer", "layer twice"):
            y = self.first(y)
        elif self.way == "norm twice":
            y = self.norm_of_first(y)
        elif self.way == "beside":
            y = y + z
        return self.head(self.norm_of_second(self.second(y)))


def folded_and_told(model, **options):
    guard = anchorhold.Guard(model, anchorhold.Fisher(), batch_norm="fold", **grouped(**options))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        guard.rehearse([batch(9)])
        guard.consolidate([batch(9)])
        guard.consolidate([batch(8)])
    return guard, guard.state_dict().get("folded_norms", {}), [str(one.message) for one in told]


def test_the_order_of_calls_counts_not_that_of_names():
    _, folded, told = folded_and_told(Network("plain").train())
    assert folded == {"norm_of_first": "first", "norm_of_second": "second"} and not told


@pytest.mark.daily
@pytest.mark.parametrize(
    ("way", "why"),
    [
        ("activation between", "it does not follow a linear or convolutional layer directly"),
        ("before the layer", "it does not follow a linear or convolutional layer directly"),
        ("in place", "it and 'first' before it are no linear map"),
        ("layer twice", "it follows 'first', which is called several times"),
        ("norm twice", "it is called several times"),
    ],
)
def test_what_cannot_be_folded_is_told_once_and_frozen(way, why):
    model = Network(way).train()
    guard, folded, told = folded_and_told(model)
    assert folded == {"norm_of_second": "second"}
    (message,) = told
    assert message.startswith(f"The batch norm 'norm_of_first' cannot be folded: {why}.")
    before = statistics(model)
    guard.attach(optimizer := torch.optim.SGD(model.parameters(), lr=0.01))
    for i in range(3):
        optimizer.zero_grad()
        loss(model, batch(i)).backward()
        optimizer.step()
    after = statistics(model)
    for name, value in after.items():
        assert torch.equal(value, before[name]) == name.startswith("norm_of_first")
    assert float(guard.importance["norm_of_first.weight"].min()) > 0


def test_an_output_that_is_used_beside_its_batch_norm_is_refused():
    model = Network("beside")
    guard = anchorhold.Guard(model, anchorhold.Fisher(), batch_norm="fold")
    with pytest.raises(anchorhold.errors.ModelError, match=r"computes something else.*batch_norm='freeze'"):
        guard.consolidate([batch(9)])
    assert not guard.anchor


def test_a_layer_of_ones_own_that_is_no_linear_map_is_not_folded():
    class Standardised(nn.Linear):
        def forward(self, x):
            return nn.functional.linear(x, self.weight / self.weight.norm(), self.bias)

    model = stirred(nn.Sequential(Standardised(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)))
    _, folded, (told,) = folded_and_told(model)
    assert not folded and "it and '0' before it are no linear map" in told


def test_a_weight_that_is_tied_or_not_protected_is_not_folded():
    model = Network("plain")
    model.second.weight = model.first.weight
    _, folded, (told,) = folded_and_told(model)
    assert not folded and "(and 1 more)" in told and "another layer's too" in told
    _, folded, (told,) = folded_and_told(dense(), protect=["1.*", "3.*"])
    assert not folded and "whose weight is not protected" in told


def test_a_batch_norm_that_nobody_calls_is_left_alone():
    model = Network("plain").train()
    model.unused = nn.BatchNorm1d(4).double()
    _, folded, told = folded_and_told(model)
    assert folded.keys() == {"norm_of_first", "norm_of_second"} and not told
    assert model.unused.training


def test_a_network_whose_order_has_changed_is_refused():
    model = Network("plain")
    guard, _, _ = folded_and_told(model)
    model.way = "activation between"
    with pytest.raises(anchorhold.errors.ModelError, match="'norm_of_first' was consolidated together with 'first'"):
        guard.consolidate([batch(9)])
    assert guard.tasks == 2


def test_convolutions_of_all_dimensions():
    class Signals(nn.Module):
        def __init__(self, dimensions):
            super().__init__()
            kinds = {1: (nn.Conv1d, nn.BatchNorm1d), 2: (nn.Conv2d, nn.BatchNorm2d), 3: (nn.Conv3d, nn.BatchNorm3d)}
            conv, norm = kinds[dimensions]
            self.shape = (4, *[1] * (dimensions - 1))
            self.conv, self.norm = conv(1, 4, 1, groups=1, padding_mode="circular"), norm(4)
            self.head = nn.Linear(16, 3)
            stirred(self)

        def forward(self, x):
            return self.head(self.norm(self.conv(x.view(-1, 1, *self.shape))).flatten(1))

    for dimensions in (1, 2, 3):
        _, folded, told = folded_and_told(Signals(dimensions))
        assert folded == {"norm": "conv"} and not told
