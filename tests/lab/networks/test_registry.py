"""Networks by name, those of others too."""

import pytest
import torch
from torch import nn

from anchorhold.errors import ConfigurationError
from anchorhold_lab.experiments import Spec, execute
from anchorhold_lab.networks import NETWORKS, MultiHead, register_network
from anchorhold_lab.scenarios import Samples, scenario_of
from tests.lab.experiments.helpers import small_spec


def scenario(*shape, classes=3):
    samples = Samples(torch.rand(6, *shape), torch.arange(6) % classes)
    return scenario_of([(samples, samples)] * 2)


def narrow(scenario, hidden):
    body = nn.Sequential(nn.Linear(scenario.input_shape[0], hidden[0]), nn.Tanh())
    return MultiHead(body, hidden[0], scenario.classes, scenario.heads)


def fixed(scenario):
    return narrow(scenario, (4,))


def test_those_that_are_built_in():
    assert list(NETWORKS) == ["mlp", "mlp-batch-norm", "mlp-torch-init", "cnn"]
    rows, images = scenario(5), scenario(3, 32, 32)
    assert NETWORKS["MLP"].network(rows, (7,))(torch.rand(2, 5), 1).shape == (2, 3)
    assert NETWORKS["mlp"].network(images, (7, 6))(torch.rand(2, 3, 32, 32)).shape == (2, 3)
    normed = NETWORKS["mlp-batch-norm"].network(images, (7, 6))
    assert normed(torch.rand(2, 3, 32, 32)).shape == (2, 3)
    assert [type(layer).__name__ for layer in normed.body][1:4] == ["Linear", "BatchNorm1d", "ReLU"]
    assert NETWORKS["mlp-batch-norm"].network(rows, (7,))(torch.rand(2, 5), 1).shape == (2, 3)
    assert NETWORKS["cnn"].network(scenario(1, 32, 32), None)(torch.rand(2, 1, 32, 32), 1).shape == (2, 3)


@pytest.mark.parametrize("shape", [(64,), (3, 8, 8), (32, 32)])
def test_the_cnn_says_which_images_it_takes(shape):
    with pytest.raises(ConfigurationError, match=r"expected images of 32 by 32 pixels, such as \(3, 32, 32\)"):
        NETWORKS["cnn"].network(scenario(*shape), None)


def test_a_network_of_ones_own_is_given_the_scenario_and_the_widths():
    seen = []

    @register_network("noting")
    def noting(scenario, hidden):
        seen.append((scenario.input_shape, scenario.classes, scenario.heads, hidden))
        return narrow(scenario, hidden)

    NETWORKS["noting"].network(scenario(5), (4, 3))
    assert seen == [((5,), 3, 2, (4, 3))]
    assert noting is NETWORKS["noting"].make  # the decorator gives the function back


def test_it_is_chosen_by_a_spec_and_is_part_of_its_id(tmp_path):
    register_network("narrow")(narrow)
    spec = small_spec(network="Narrow", hidden=None)
    assert spec.network == "narrow" and spec.hidden == (1000,)  # the scenario's usual widths
    assert spec.id != small_spec(hidden=None).id
    assert Spec.from_dict(spec.to_dict()) == spec
    assert isinstance(spec.make_network(scenario(5)).body[1], nn.Tanh)
    spec = small_spec(network="narrow")
    (result,) = execute(spec, tmp_path).finished
    assert result.spec == spec


def test_naming_the_usual_network_is_the_same_run():
    assert small_spec(network="mlp") == small_spec() and small_spec(network="mlp").id == small_spec().id
    assert "network" not in small_spec(network="MLP").to_dict()
    assert Spec("split-cifar", network="cnn") == Spec("split-cifar")


def test_widths_are_asked_of_those_that_take_them():
    register_network("fixed")(fixed)
    assert small_spec(network="fixed", hidden=None).hidden is None
    expected = r"hidden=\(32,\): expected none: permuted-digits is learned by the network 'fixed', which has no hidden"
    with pytest.raises(ConfigurationError, match=expected):
        small_spec(network="fixed")
    with pytest.raises(ConfigurationError, match="permuted-digits is learned by the paper's CNN, which has no hidden"):
        small_spec(network="cnn")
    with pytest.raises(ConfigurationError, match="hidden=None: expected one or more positive widths"):
        Spec("split-cifar", network="mlp")
    assert Spec("split-cifar", network="mlp", hidden=(5,)).hidden == (5,)


def test_an_unknown_network_lists_the_near_ones():
    with pytest.raises(
        ConfigurationError,
        match=r"No network is called 'mpl'. Did you mean 'mlp'\? There are mlp, mlp-batch-norm, mlp-torch-init, cnn",
    ):
        small_spec(network="mpl")


@pytest.mark.parametrize(
    "wrong", [lambda: None, lambda hidden, scenario: None, lambda scenario, depth: None, MultiHead]
)
def test_what_is_no_function_of_scenario_and_widths_is_refused(wrong):
    with pytest.raises(ConfigurationError, match=r"expected a function of \(scenario, hidden\)"):
        register_network("wrong")(wrong)
    assert "wrong" not in NETWORKS


def test_what_a_function_returns_is_looked_at():
    register_network("bare")(lambda scenario: nn.Linear(2, 2))
    with pytest.raises(
        ConfigurationError, match=r"What makes the network 'bare' returned a Linear; expected an .*MultiHead"
    ):
        NETWORKS["bare"].network(scenario(2), None)


def test_a_cell_that_is_run_again_registers_again():
    for bias in (0.0, 0.5):
        scope = {"register_network": register_network, "narrow": narrow, "__name__": "a notebook"}
        exec(f"@register_network('mine')\ndef mine(scenario):\n    return narrow(scenario, (3,)), {bias}", scope)
    assert NETWORKS["mine"].make is scope["mine"]


def test_what_a_function_does_wrong_is_told_with_its_line(tmp_path):
    @register_network("broken")
    def broken(scenario):
        return nn.Linear(scenario.width, 2)

    line = broken.__code__.co_firstlineno + 2
    (failed,) = execute(small_spec(network="broken", hidden=None), tmp_path).failed
    assert failed.reason.startswith(f"The network could not be made: line {line}: AttributeError: ")
    assert failed.reason.endswith(f"That was in broken of {__file__}.")
