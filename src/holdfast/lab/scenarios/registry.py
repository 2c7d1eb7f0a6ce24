"""The scenarios that a spec can name: which data they need, how they are made, and which network learns them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.errors import ConfigurationError
from holdfast.lab.data import Dataset
from holdfast.lab.networks import MultiHead, cnn, mlp
from holdfast.lab.scenarios import Scenario, permuted, split, split_cifar


@dataclass(frozen=True)
class ScenarioKind:
    """One benchmark, and what is usual for it."""

    datasets: tuple[str, ...]
    """The data sets that it needs, by name."""
    make: Callable[[Sequence[Dataset], int, int, float, int], Scenario]
    """Makes it from the data sets, the number of tasks, the seed, the share for validation and that split's seed."""
    tasks: int
    """How many tasks it usually has."""
    possible_tasks: range
    validation: float = 0.0
    """The share of the training samples that is kept back if nothing else is asked for."""
    hidden: tuple[int, ...] | None = None
    """The usual widths of the network's hidden layers; ``None`` where the network is the paper's CNN."""
    seeded: bool = False
    """Whether a run's seed decides the tasks; where it does not, runs can share them."""

    def scenario(
        self, datasets: Mapping[str, Dataset], *, tasks: int, seed: int, validation: float, validation_seed: int
    ) -> Scenario:
        """Return the tasks."""
        return self.make([datasets[name] for name in self.datasets], tasks, seed, validation, validation_seed)

    def network(self, scenario: Scenario, hidden: tuple[int, ...] | None) -> MultiHead:
        """Return a network that fits the tasks; the run draws its weights."""
        if hidden is None:
            return cnn(scenario.classes, scenario.heads)
        return mlp(scenario.input_shape[0], hidden, scenario.classes, scenario.heads)


def _permuted(data: Sequence[Dataset], tasks: int, seed: int, validation: float, validation_seed: int) -> Scenario:
    return permuted(data[0], tasks, seed=seed, validation=validation, validation_seed=validation_seed)


def _pairs(data: Sequence[Dataset], tasks: int, seed: int, validation: float, validation_seed: int) -> Scenario:
    """Return tasks of two classes each; their order is fixed, so the seed plays no part."""
    del seed
    return split(data[0], 2, tasks, flat=True, validation=validation, validation_seed=validation_seed)


def _cifar(data: Sequence[Dataset], tasks: int, seed: int, validation: float, validation_seed: int) -> Scenario:
    """Return the paper's six tasks or more; their order is fixed, so the seed plays no part."""
    del seed
    return split_cifar(data[0], data[1], tasks, validation=validation, validation_seed=validation_seed)


SCENARIOS: dict[str, ScenarioKind] = {
    "permuted-mnist": ScenarioKind(("MNIST",), _permuted, 10, range(1, 1001), hidden=(2000, 2000), seeded=True),
    # The paper keeps 10 % back in test runs too.
    "split-cifar": ScenarioKind(("CIFAR-10", "CIFAR-100"), _cifar, 6, range(2, 12), validation=0.1),
    "split-mnist": ScenarioKind(("MNIST",), _pairs, 5, range(1, 6), hidden=(256, 256)),
    "permuted-digits": ScenarioKind(("digits",), _permuted, 5, range(1, 1001), hidden=(1000,), seeded=True),
    "split-digits": ScenarioKind(("digits",), _pairs, 5, range(1, 6), hidden=(100, 100)),
}
"""Every scenario by name. The digits come along with holdfast; the others need their data sets."""


def scenario_kind(name: str) -> ScenarioKind:
    """Return a scenario by name, or say which there are."""
    if not isinstance(name, str):
        raise ConfigurationError(
            f"The scenario is a {type(name).__name__}; expected a name, one of {', '.join(SCENARIOS)}. A scenario of "
            'your own is registered first: see "A scenario of your own" in docs/experiments.md.'
        )
    if name not in SCENARIOS:
        raise ConfigurationError(f"No scenario is called {name!r}; there are {', '.join(SCENARIOS)}.")
    return SCENARIOS[name]
