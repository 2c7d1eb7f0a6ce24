"""The scenarios that a spec can name: their tasks, the network that learns them, and how that is usually done.

All three are here, with the specs, since a name stands for all three: whoever registers a scenario says at once what is
usual for it. The tasks themselves are made in :mod:`anchorhold_lab.scenarios`, which knows nothing of training.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from anchorhold.errors import ConfigurationError
from anchorhold.registry import Registry, registering
from anchorhold_lab.data import READERS, Dataset
from anchorhold_lab.experiments.specs import usual_protocols
from anchorhold_lab.experiments.specs.source_files import told_in_a_line
from anchorhold_lab.experiments.specs.usual_protocols import Protocol, protocol_of
from anchorhold_lab.networks import NETWORKS
from anchorhold_lab.scenarios import Kind, Scenario, permuted, split, split_cifar
from anchorhold_lab.scenarios.kept_samples import split_once
from anchorhold_lab.scenarios.tasks import hold_out
from anchorhold_lab.training.protocol import Settings

F = TypeVar("F", bound=Callable[..., Scenario])

_GIVEN = ("datasets", "tasks", "seed", "validation", "validation_seed")
_MANY = range(1, 1001)


@dataclass(frozen=True)
class ScenarioKind:
    """One benchmark, and what is usual for it."""

    make: Callable[..., Scenario]
    """Makes it, from those of ``datasets`` (by name), ``tasks``, ``seed``, ``validation`` and ``validation_seed`` that
    it takes, each by keyword."""
    tasks: int
    """How many tasks it usually has."""
    possible_tasks: range
    datasets: tuple[str, ...] = ()
    """The data sets that it needs, by name."""
    validation: float = 0.0
    """The share of the training samples that is kept back if nothing else is asked for."""
    network: str = "mlp"
    """The network that usually learns it, by name."""
    hidden: tuple[int, ...] | None = None
    """The usual widths of that network's hidden layers; ``None`` where it has none to choose."""
    protocol: Protocol = field(default_factory=Protocol)
    """How it is usually learned, and how strongly each measure protects then."""
    incremental: Kind | None = None
    """Which of the three kinds of continual learning it is as it stands, where that is known."""
    counted_by_pixel: bool = False
    """Whether tasks made of one pixel an image, with any seed, have as many samples as the whole ones."""

    @property
    def __wrapped__(self) -> Callable[..., Scenario]:
        """What was registered, by which the registry tells whether it is registered again."""
        return self.make

    @property
    def takes(self) -> tuple[str, ...]:
        """What it is made from: all that its function has as arguments."""
        return tuple(inspect.signature(self.make).parameters)

    @property
    def seeded(self) -> bool:
        """Whether a run's seed decides the tasks; where it does not, runs can share them."""
        return "seed" in self.takes

    def scenario(
        self, datasets: Mapping[str, Dataset], *, tasks: int, seed: int, validation: float, validation_seed: int
    ) -> Scenario:
        """Return the tasks."""
        asked = {
            "datasets": {name: datasets[name] for name in self.datasets},
            "tasks": tasks,
            "seed": seed,
            "validation": validation,
            "validation_seed": validation_seed,
        }
        made = _made(self.make, {name: asked[name] for name in self.takes})
        if "tasks" not in self.takes:
            made = dataclasses.replace(made, tasks=made.tasks[:tasks])
        if len(made) != tasks:
            raise ConfigurationError(
                f"The scenario that {self.make.__name__} returned has {len(made)} tasks; expected {tasks}."
            )
        return made if "validation" in self.takes else _with_validation(made, validation, validation_seed)


SCENARIOS: Registry[ScenarioKind] = Registry("scenario")
"""Every scenario by name. The digits come along with anchorhold; the others need their data sets."""


def find_scenario(name: str) -> tuple[str, ScenarioKind]:
    """Return a scenario's name and what it stands for, or say which are near it."""
    if not isinstance(name, str):
        raise ConfigurationError(
            f"The scenario is a {type(name).__name__}; expected a name, one of {', '.join(SCENARIOS)}. A scenario of "
            'your own is registered first: see "A scenario of your own" in docs/experiments.md.'
        )
    return SCENARIOS.find(name), SCENARIOS[name]


def register_scenario(
    name: str,
    *,
    tasks: int,
    possible_tasks: range | None = None,
    datasets: Sequence[str] = (),
    validation: float = 0.0,
    network: str = "mlp",
    hidden: Sequence[int] = (100, 100),
    settings: Settings | None = None,
    strengths: Mapping[str, float] | None = None,
) -> Callable[[F], F]:
    """Let a scenario of one's own be asked for by name: in a spec, a search and on the command line.

    >>> @register_scenario("blobs", tasks=3)
    ... def blobs(tasks, seed):
    ...     return scenario_of([(points(task, seed), points(task, seed + 1)) for task in range(tasks)])

    What is decorated is a function that returns a :class:`~anchorhold_lab.scenarios.Scenario`. It is given, by keyword,
    those of these that it has as arguments, and may have no others:

    - ``datasets``: the data sets that ``datasets=`` names, by name.
    - ``tasks``: how many tasks it is to have. Without this argument it always has the same ones, of which the first few
      can be asked for.
    - ``seed``: the run's seed. Without it the tasks are the same for all seeds. Draw from
      ``torch.Generator().manual_seed(seed)``, so that a run can be repeated.
    - ``validation`` and ``validation_seed``: the share of the training samples to keep back, and the seed of that
      split. Without them, anchorhold does it.

    Args:
        name: what it is called from now on.
        tasks: how many tasks it usually has.
        possible_tasks: how many it can have; 1 to 1000 by default, or up to the usual number where ``tasks`` is not
            among the function's arguments.
        datasets: the data sets that it needs: ``"digits"``, ``"MNIST"``, ``"CIFAR-10"`` or ``"CIFAR-100"``.
        validation: the share of the training samples that is kept back if nothing else is asked for.
        network: the network that usually learns it, by name; register one of your own before.
        hidden: the usual widths of its hidden layers, if it has any to choose.
        settings: how its tasks are usually learned; :class:`~anchorhold_lab.training.Settings` as they are by default.
        strengths: how strongly measures protect there, by name, for :func:`paper_spec` and the command line. A measure
            that is not among them is given a strength each time, or one is searched for.
    """

    def wrap(make: F) -> ScenarioKind:
        takes = _checked_arguments(name, make, datasets)
        usual = NETWORKS.find(network)
        whole = isinstance(tasks, int) and not isinstance(tasks, bool)
        _require(whole, name, "tasks", tasks, "a whole number")
        usually_possible = _MANY if "tasks" in takes else range(1, tasks + 1)
        possible = usually_possible if possible_tasks is None else possible_tasks
        _require(tasks in possible, name, "tasks", tasks, f"a number in {possible}")
        widths = all(isinstance(width, int) and width >= 1 for width in hidden) and bool(hidden)
        _require(widths, name, "hidden", hidden, "one or more positive widths")
        share_fits = isinstance(validation, int | float) and 0 <= validation < 1
        _require(share_fits, name, "validation", validation, "a share from 0 up to, but not, 1")
        _require(isinstance(settings, Settings | None), name, "settings", settings, "anchorhold_lab.training.Settings")
        return ScenarioKind(
            make,
            tasks,
            possible,
            tuple(datasets),
            validation,
            usual,
            tuple(hidden) if NETWORKS[usual].takes_hidden else None,
            protocol_of(settings or Settings(), strengths or {}),
        )

    return registering(SCENARIOS, name, wrap)


def _checked_arguments(name: str, make: object, datasets: Sequence[str]) -> tuple[str, ...]:
    """Return which of the things that can be given a function takes, or say what is wrong with it."""
    if not inspect.isfunction(make):
        raise ConfigurationError(f"register_scenario({name!r}) was given {make!r}; expected a function.")
    arguments = inspect.signature(make).parameters
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    wrong = [str(one) for one in arguments.values() if one.name not in _GIVEN or one.kind not in by_keyword]
    if wrong:
        raise ConfigurationError(
            f"The scenario {name!r} is made by a function with the arguments {', '.join(wrong)}; expected none but "
            f"{', '.join(_GIVEN)}."
        )
    known = ("digits", *READERS)
    unknown = [each for each in datasets if each not in known]
    if isinstance(datasets, str) or unknown or bool(datasets) != ("datasets" in arguments):
        raise ConfigurationError(
            f"The scenario {name!r} has datasets={datasets!r}; expected some of {', '.join(known)} in a tuple where "
            "its function has an argument called datasets, and none where it has not."
        )
    if ("validation" in arguments) != ("validation_seed" in arguments):
        raise ConfigurationError(
            f"The scenario {name!r} is made by a function with one of the arguments validation and validation_seed; "
            "expected both, or neither, and anchorhold keeps samples back by itself."
        )
    return tuple(arguments)


def _require(condition: bool, scenario: str, name: str, given: object, expected: str) -> None:
    if not condition:
        raise ConfigurationError(f"The scenario {scenario!r} has {name}={given!r}; expected {expected}.")


def _made(make: Callable[..., Scenario], asked: Mapping[str, object]) -> Scenario:
    """Return what another's function makes."""
    with told_in_a_line("The scenario", make):
        made: object = make(**asked)
    if not isinstance(made, Scenario):
        raise ConfigurationError(
            f"{make.__name__} returned a {type(made).__name__}; expected an anchorhold_lab.scenarios.Scenario, such as "
            "scenario_of makes."
        )
    return made


def _with_validation(scenario: Scenario, share: float, seed: int) -> Scenario:
    """Keep a share of the training samples back; those that tasks share are split once."""
    if any(task.stored_validation is not None for task in scenario.tasks):
        raise ConfigurationError(
            f"The scenario {scenario.name!r} keeps samples back by itself, however many are asked for. Take "
            "validation and validation_seed as arguments of its function, or leave it to anchorhold."
        )
    tasks = [
        dataclasses.replace(task, stored_train=train, stored_validation=kept)
        for task, (train, kept) in split_once(scenario, lambda samples: hold_out(samples, share, seed))
    ]
    return dataclasses.replace(scenario, tasks=tuple(tasks))


def _permuted(
    datasets: Mapping[str, Dataset], tasks: int, seed: int, validation: float, validation_seed: int
) -> Scenario:
    (dataset,) = datasets.values()
    return permuted(dataset, tasks, seed=seed, validation=validation, validation_seed=validation_seed)


def _pairs(datasets: Mapping[str, Dataset], tasks: int, validation: float, validation_seed: int) -> Scenario:
    """Return tasks of two classes each, in a fixed order."""
    (dataset,) = datasets.values()
    return split(dataset, 2, tasks, flat=True, validation=validation, validation_seed=validation_seed)


def _cifar(datasets: Mapping[str, Dataset], tasks: int, validation: float, validation_seed: int) -> Scenario:
    """Return the paper's six tasks or more, in a fixed order."""
    cifar10, cifar100 = datasets.values()
    return split_cifar(cifar10, cifar100, tasks, validation=validation, validation_seed=validation_seed)


_BUILT_IN = {
    "permuted-mnist": ScenarioKind(
        _permuted, 10, _MANY, ("MNIST",), hidden=(2000, 2000), protocol=usual_protocols.PERMUTED_MNIST
    ),
    "split-cifar": ScenarioKind(
        _cifar,
        6,
        range(2, 12),
        ("CIFAR-10", "CIFAR-100"),
        validation=0.1,  # which the paper keeps back in test runs too
        network="cnn",
        protocol=usual_protocols.SPLIT_CIFAR,
    ),
    "split-mnist": ScenarioKind(
        _pairs, 5, range(1, 6), ("MNIST",), hidden=(256, 256), protocol=usual_protocols.SPLIT_MNIST
    ),
    "permuted-digits": ScenarioKind(_permuted, 5, _MANY, ("digits",), hidden=(1000,), protocol=usual_protocols.DIGITS),
    "split-digits": ScenarioKind(  # little is forgotten there, whatever the strength
        _pairs, 5, range(1, 6), ("digits",), hidden=(100, 100), protocol=usual_protocols.DIGITS
    ),
}
for _name, _kind in _BUILT_IN.items():
    _incremental: Kind = "domain" if _kind.make is _permuted else "task"
    SCENARIOS.register(_name, dataclasses.replace(_kind, counted_by_pixel=True, incremental=_incremental))
