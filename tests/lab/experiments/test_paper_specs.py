"""The paper's runs, against its table of hyper-parameters, written here once more by hand."""

import pytest

import anchorhold
from anchorhold.errors import ConfigurationError
from anchorhold_lab.experiments import SCENARIOS, paper_spec

# algorithm: c and re-init on MNIST, c and re-init on CIFAR
TABLE = {
    "SI": (0.2, True, 5.0, True),
    "SIU": (2.0, True, 2.0, False),
    "SIB": (0.5, True, 5.0, True),
    "SOS": (1.0, True, 500.0, True),
    "MAS": (500.0, False, 200.0, True),
    "AF": (200.0, False, 1e3, True),
    "sqrtFisher": (2.0, False, 10.0, True),
    "EWC": (1e3, False, 5e4, True),
    "MAS-logits": (0.001, True, 0.1, True),
}


@pytest.mark.parametrize("name", TABLE)
def test_the_table(name):
    mnist, cifar = paper_spec("permuted-mnist", name), paper_spec("split-cifar", name)
    found = (mnist.strength, mnist.settings.reinitialise, cifar.strength, cifar.settings.reinitialise)
    assert found == TABLE[name]
    for spec, epochs, samples in ((mnist, 20, 1000), (cifar, 60, 500)):
        s = spec.settings
        assert (s.epochs, s.later_epochs, s.batch_size, s.samples) == (epochs, None, 256, samples)
        assert (s.optimizer, s.learning_rate) == ("adam", 0.001)
    assert (mnist.tasks, mnist.hidden, mnist.validation) == (10, (2000, 2000), 0.0)
    assert (cifar.tasks, cifar.hidden, cifar.validation) == (6, None, 0.1)


@pytest.mark.parametrize(("name", "mnist", "cifar"), [("SI", 1.0, 20.0), ("SOS", 10.0, 2000.0)])
def test_the_rows_for_large_batches(name, mnist, cifar):
    on_mnist = paper_spec("permuted-mnist", name, batch_size=2048)
    assert (on_mnist.strength, on_mnist.settings.reinitialise) == (mnist, True)
    assert (on_mnist.settings.learning_rate, on_mnist.settings.epochs) == (0.008, 20)
    on_cifar = paper_spec("split-cifar", name, batch_size=2048)
    assert (on_cifar.strength, on_cifar.settings.reinitialise) == (cifar, True)
    s = on_cifar.settings
    assert (s.learning_rate, s.epochs, s.later_epochs) == (0.001, 60, 600)


def test_settings_of_measures_that_the_text_gives():
    assert paper_spec("permuted-mnist", "SIB").measure_settings["damping"] == 0.1
    assert paper_spec("split-cifar", "SIB").measure_settings["damping"] == 0.001
    small, large = paper_spec("split-cifar", "SOS"), paper_spec("split-cifar", "SOS", batch_size=2048)
    assert (small.measure_settings["alpha"], large.measure_settings["alpha"]) == (0, 1)
    assert not small.measure_settings["normalise"]
    watched = paper_spec("split-cifar", "SI", watch=("SIU", "SOS", "EWC")).watch_settings
    assert watched["SIU"]["damping"] == 0.001 and not watched["SOS"]["normalise"]


def test_anything_can_be_changed():
    spec = paper_spec("split-cifar", "SI", seed=4, strength=7, epochs=2, tasks=3, measure_settings={"clamp": "total"})
    assert (spec.seed, spec.strength, spec.settings.epochs, spec.tasks) == (4, 7, 2, 3)
    assert dict(spec.measure_settings) == {"clamp": "total", "damping": 0.001}
    watching = paper_spec("split-cifar", "SI", watch=("SIU",), watch_settings={"SIU": {"clamp": "total"}})
    assert dict(watching.watch_settings["SIU"]) == {"clamp": "total", "damping": 0.001}
    with pytest.raises(ConfigurationError, match="not watched"):
        paper_spec("split-cifar", "SI", watch_settings={"SIU": {"clamp": "total"}})
    with pytest.raises(ConfigurationError, match="paper_spec has no epoch;"):
        paper_spec("split-cifar", "SI", epoch=2)
    with pytest.raises(ConfigurationError, match="No scenario is called 'cifar'"):
        paper_spec("cifar")


def test_a_strength_that_nobody_knows_is_asked_for():
    with pytest.raises(ConfigurationError, match="No strength is known for 'L2' on 'permuted-mnist'"):
        paper_spec("permuted-mnist", "L2")
    with pytest.raises(ConfigurationError, match="'EWC' on 'split-cifar' at batch size 2048"):
        paper_spec("split-cifar", "EWC", batch_size=2048)
    assert paper_spec("permuted-mnist", "L2", strength=0.5).strength == 0.5


@pytest.mark.parametrize("scenario", ["permuted-digits", "split-digits"])
def test_the_digits_have_every_measure(scenario):
    for name in anchorhold.measures.default_measures():
        assert paper_spec(scenario, name).strength > 0 or name == "fine-tune"


def test_every_scenario_has_a_baseline():
    assert all(paper_spec(name, "fine-tune").strength == 0 for name in SCENARIOS)
