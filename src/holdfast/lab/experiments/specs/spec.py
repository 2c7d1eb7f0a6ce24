"""What a run is: everything that decides its result, in one frozen value whose hash is its name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

from holdfast.errors import ConfigurationError
from holdfast.lab.analysis.probes.registry import make_probe
from holdfast.lab.data import Dataset
from holdfast.lab.experiments.specs.canonical import FrozenDict, digest_of
from holdfast.lab.networks import MultiHead
from holdfast.lab.scenarios import Scenario
from holdfast.lab.scenarios.registry import scenario_kind
from holdfast.lab.training.observer import Observer
from holdfast.lab.training.precision import Precision
from holdfast.lab.training.protocol import Settings
from holdfast.measures import Measure, measure
from holdfast.settings import check_fields, written

LAYOUT = 1
"""Part of every hash; a new one means that results under the old names no longer mean the same."""

JudgeBy = Literal["test", "validation"]
EngineName = Literal["fast", "plain"]


@dataclass(frozen=True)
class Spec:
    """A run. What is left out is filled in at once, so two specs that mean the same are equal and have the same id.

    Args:
        scenario: a name in :data:`~holdfast.lab.experiments.SCENARIOS`.
        measure: the measure that protects, by its name in :func:`holdfast.measures`.
        strength: c, how strongly it protects.
        measure_settings: the measure's own settings, such as ``{"damping": 0.001}``.
        watch: measures that only observe, by name. A measure can watch twice with different settings under names such
            as ``"AF:large"``: the measure, a colon, and anything.
        watch_settings: their settings, by the names in ``watch``.
        probes: what else is looked at during the run, such as ``"importances"`` or ``"path:500"``; see
            :mod:`holdfast.lab.analysis.probes.registry`.
        tasks: how many tasks; the scenario's usual number by default.
        hidden: the widths of the network's hidden layers; the scenario's usual ones by default.
        seed: the seed of everything random: pixel orders, weights, batches, dropout.
        settings: how each task is learned.
        judge_by: which samples accuracies are measured on: the test samples, or those kept back for validation.
        validation: the share of the training samples that is kept back; the scenario's usual one by default, and 0.1
            where a run is judged by validation and the scenario usually keeps none.
        validation_seed: the seed of that split, apart from the run's, so that runs can be compared.
        precision: of matrix products and convolutions.
        engine: the fast engine, or the plain loop.
    """

    scenario: str
    measure: str = "SOS"
    strength: float = 1.0
    measure_settings: Mapping[str, Any] = field(default_factory=dict)
    watch: tuple[str, ...] = ()
    watch_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    probes: tuple[str, ...] = ()
    tasks: int | None = None
    hidden: tuple[int, ...] | None = None
    seed: int = 0
    settings: Settings = field(default_factory=Settings)
    judge_by: JudgeBy = "test"
    validation: float | None = None
    validation_seed: int = 0
    precision: Precision = "fp32"
    engine: EngineName = "fast"

    def __post_init__(self) -> None:
        self._check_choices()
        self._fill_in_scenario()
        self._fill_in_measures()
        self._check_probes()

    @cached_property
    def id(self) -> str:
        """The run's name: 16 hexadecimal digits, the same wherever and whenever the spec is made."""
        return digest_of(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as plain values, ready for JSON."""
        values = written(self)
        values["measure_settings"] = dict(self.measure_settings)
        values["watch"], values["probes"] = list(self.watch), list(self.probes)
        values["watch_settings"] = {name: dict(settings) for name, settings in self.watch_settings.items()}
        values["hidden"] = None if self.hidden is None else list(self.hidden)
        values["settings"] = written(self.settings)
        return {"layout": LAYOUT, **values}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> "Spec":
        """Return the spec of :meth:`to_dict`; a key too few or too many is refused."""
        if "layout" in given and given["layout"] != LAYOUT:  # first, since another layout has other keys
            raise ConfigurationError(f"The spec has layout {given['layout']!r}; this holdfast reads layout {LAYOUT}.")
        check_fields(given, cls, "The spec", more=["layout"])
        values = {key: value for key, value in given.items() if key != "layout"}
        check_fields(values["settings"], Settings, "The spec's settings")
        hidden = values["hidden"]
        values.update(
            settings=Settings(**values["settings"]),
            watch=tuple(values["watch"]),
            probes=tuple(values["probes"]),
            hidden=None if hidden is None else tuple(hidden),
        )
        return cls(**values)

    def make_measure(self) -> Measure:
        """Return the measure that protects."""
        return measure(self.measure, **self.measure_settings)

    def make_watched(self) -> dict[str, Measure]:
        """Return the measures that only observe, by the names they have here."""
        return {name: _watching(name, self.watch_settings[name]) for name in self.watch}

    def make_probes(self) -> dict[str, Observer]:
        """Return what else looks at the run."""
        return dict(make_probe(text, seed=self.seed) for text in self.probes)

    def make_scenario(self, datasets: Mapping[str, Dataset]) -> Scenario:
        """Return the tasks, from the data sets that the scenario needs."""
        assert self.tasks is not None and self.validation is not None  # filled in at the start
        return scenario_kind(self.scenario).scenario(
            datasets,
            tasks=self.tasks,
            seed=self.seed,
            validation=self.validation,
            validation_seed=self.validation_seed,
        )

    def make_network(self, scenario: Scenario) -> MultiHead:
        """Return the network that learns them."""
        return scenario_kind(self.scenario).network(scenario, self.hidden)

    def _check_choices(self) -> None:
        for name, allowed in (("judge_by", JudgeBy), ("precision", Precision), ("engine", EngineName)):
            _require(getattr(self, name) in get_args(allowed), name, getattr(self, name), f"one of {get_args(allowed)}")
        for name in ("seed", "validation_seed"):
            _require(_is_count(getattr(self, name), 0), name, getattr(self, name), "a whole number, 0 or more")
        is_number = isinstance(self.strength, int | float) and not isinstance(self.strength, bool)
        # The penalty's gradient has a factor 2c, which has to fit into the weights' own floats.
        _require(is_number and 0 <= self.strength <= 1e38, "strength", self.strength, "a number from 0 to 1e38")

    def _fill_in_scenario(self) -> None:
        kind = scenario_kind(self.scenario)
        tasks = kind.tasks if self.tasks is None else self.tasks
        expected = f"{kind.possible_tasks[0]} to {kind.possible_tasks[-1]} for {self.scenario}"
        _require(_is_count(tasks, 1) and tasks in kind.possible_tasks, "tasks", tasks, expected)
        hidden = kind.hidden if self.hidden is None else tuple(self.hidden)
        if kind.hidden is None:
            expected = f"none: {self.scenario} is learned by the paper's CNN, which has no hidden layers to choose"
            _require(hidden is None, "hidden", hidden, expected)
        else:
            widths = hidden or ()
            _require(
                bool(widths) and all(_is_count(w, 1) for w in widths), "hidden", hidden, "one or more positive widths"
            )
        share = self.validation
        if share is None:
            share = kind.validation or (0.1 if self.judge_by == "validation" else 0.0)
        _require(isinstance(share, int | float) and 0 <= share < 1, "validation", share, "a share from 0 up to 1")
        if self.judge_by == "validation" and share == 0:
            raise ConfigurationError("judge_by='validation' and validation=0: nothing is kept back to judge by.")
        self._set(tasks=tasks, hidden=hidden, validation=share)

    def _fill_in_measures(self) -> None:
        unknown = sorted(set(self.watch_settings) - set(self.watch))
        if unknown:
            raise ConfigurationError(f"watch_settings for {unknown}, which are not watched: watch={self.watch}.")
        protecting = measure(self.measure, **self.measure_settings)
        watched: dict[str, Measure] = {}
        for given in self.watch:
            found = _watching(given, self.watch_settings.get(given, {}))
            name = given if ":" in given else found.name
            if name in (protecting.name, *watched):
                raise ConfigurationError(
                    f"measure={self.measure!r} and watch={self.watch} name a measure twice; expected each of them "
                    f"once, or a name of its own for the second, such as '{found.name}:again'."
                )
            watched[name] = found
        self._set(
            measure=protecting.name,
            measure_settings=_settings_of(protecting),
            watch=tuple(sorted(watched)),
            watch_settings=FrozenDict({name: _settings_of(found) for name, found in watched.items()}),
        )

    def _check_probes(self) -> None:
        names = [make_probe(text, seed=self.seed)[0] for text in self.probes]
        _require(len(set(names)) == len(names), "probes", self.probes, "each of them once")

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


def _watching(name: str, settings: Mapping[str, Any]) -> Measure:
    """Return a watching measure; what follows a colon in its name is only a name."""
    return measure(name.partition(":")[0], **settings)


def _settings_of(made: Measure) -> FrozenDict:
    """Return all settings of a measure, the usual ones too."""
    return FrozenDict({name: value for name, value in made.settings().items() if name != "kind"})


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _require(condition: bool, name: str, given: object, expected: str) -> None:
    if not condition:
        raise ConfigurationError(f"{name}={given!r}: expected {expected}.")
