import math

import pytest
import torch
from torch import nn

from anchorhold_lab.networks import cnn, initialise, mlp


def test_the_network_of_permuted_mnist():
    network = mlp()
    shapes = {name: tuple(p.shape) for name, p in network.named_parameters()}
    assert shapes == {
        "body.0.weight": (2000, 784),
        "body.0.bias": (2000,),
        "body.2.weight": (2000, 2000),
        "body.2.bias": (2000,),
        "heads.0.weight": (10, 2000),
        "heads.0.bias": (10,),
    }
    assert network(torch.rand(3, 784)).shape == (3, 10)
    assert all(bool((p == 0.1).all()) for name, p in network.named_parameters() if name.endswith("bias"))


def test_the_network_of_split_cifar():
    network = cnn(heads=2)
    shapes = [tuple(p.shape) for name, p in network.body.named_parameters() if name.endswith("weight")]
    assert shapes == [(32, 3, 3, 3), (32, 32, 3, 3), (64, 32, 3, 3), (64, 64, 3, 3), (512, 4096)]
    assert [layer.p for layer in network.body if isinstance(layer, nn.Dropout)] == [0.25, 0.25, 0.5]
    x = torch.rand(3, 3, 32, 32)
    network.eval()
    assert network(x, 1).shape == (3, 10)
    assert not torch.equal(network(x, 0), network(x, 1))
    assert all(bool((p == 0).all()) for name, p in network.named_parameters() if name.endswith("bias"))


@pytest.mark.parametrize(("layer", "fans"), [(nn.Linear(300, 200), 300 + 200), (nn.Conv2d(20, 40, 3), 9 * 20 + 9 * 40)])
def test_glorot_uniform_counts_the_kernel(layer, fans):
    initialise(layer)
    bound = math.sqrt(6 / fans)
    weight = layer.weight.detach()
    assert float(weight.abs().max()) <= bound
    assert float(weight.std()) == pytest.approx(bound / math.sqrt(3), rel=0.02)


def test_a_generator_decides_the_weights():
    network = mlp(6, (5,), 3)
    draws = []
    for seed in (0, 0, 1):
        network.initialise(torch.Generator().manual_seed(seed))
        draws.append(network.body[0].weight.detach().clone())
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_without_a_bias_weights_begin_as_torch_draws_them():
    """U(−1/√fan_in, 1/√fan_in) for weights and biases alike."""
    network = mlp(400, (300,), 10, bias=None)
    network.initialise(torch.Generator().manual_seed(0))
    for layer, fan_in in ((network.body[0], 400), (network.heads[0], 300)):
        for values in (layer.weight, layer.bias):
            assert 0.7 * fan_in**-0.5 < float(values.detach().abs().max()) <= fan_in**-0.5
    assert float(network.body[0].weight.detach().std()) == pytest.approx((3 * 400) ** -0.5, rel=0.02)
    again = mlp(400, (300,), 10, bias=None)
    again.initialise(torch.Generator().manual_seed(0))
    for name, value in network.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
