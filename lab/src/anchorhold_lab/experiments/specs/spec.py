"""What a run is: everything that decides its result, in one frozen value whose hash is its name."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar, get_args

from anchorhold.errors import ConfigurationError, shortened
from anchorhold.forms import FORMS, Form
from anchorhold.guard.arguments.checked_arguments import checked_anchor, checked_implicit, checked_tolerance
from anchorhold.guard.arguments.strengths import checked_relative_strength
from anchorhold.guard.core import AnchorKind, has_linear_term
from anchorhold.holds import HOLDS, Hold, hold
from anchorhold.measures import MEASURES, FineTune, Measure, measure
from anchorhold.registry import Registry, is_loaded, names_of
from anchorhold.retention import Tolerance
from anchorhold.retention.controller import checked_nats
from anchorhold.settings import added, check_fields, written
from anchorhold_lab.analysis.probes.registry import make_probe
from anchorhold_lab.data import Dataset
from anchorhold_lab.experiments.specs.canonical import FrozenDict, digest_of
from anchorhold_lab.experiments.specs.fast_engine import beyond_fast
from anchorhold_lab.experiments.specs.form_settings import form_as_named
from anchorhold_lab.experiments.specs.scenario_kinds import SCENARIOS, ScenarioKind, find_scenario
from anchorhold_lab.experiments.specs.source_files import is_source_digest, missing_source, told_in_a_line
from anchorhold_lab.networks import NETWORKS, MultiHead
from anchorhold_lab.scenarios import Kind, Scenario, of_kind
from anchorhold_lab.scenarios.kept_samples import set_aside
from anchorhold_lab.scenarios.unlike_tasks import in_order, with_sizes
from anchorhold_lab.training.options.bounds import check_unprotected
from anchorhold_lab.training.options.halves import check_halves
from anchorhold_lab.training.options.posteriors import check_coreset, check_restart, variational_hold
from anchorhold_lab.training.options.precision import Precision
from anchorhold_lab.training.options.two_columns import check_columns
from anchorhold_lab.training.protocol import Settings
from anchorhold_lab.training.telling.observer import Observer

LAYOUT = 1
"""Part of every hash; a new one means that results under the old names no longer mean the same."""

T = TypeVar("T")
JudgeBy = Literal["test", "validation"]
EngineName = Literal["fast", "plain"]

_USUAL_STRENGTH = 1.0
USUAL_KEPT = 300
"""Samples of each task that are kept where there is a tolerance: on digits, what was lost of others of their kind was
within a third of it (``results/tolerance.md``)."""


@dataclass(frozen=True)
class Spec:
    """A run. What is left out is filled in at once, so two specs that mean the same are equal and have the same id.

    Args:
        scenario: a name in :data:`~anchorhold_lab.experiments.SCENARIOS`.
        measure: the measure that protects, by its name in :func:`~anchorhold.measures.default_measures`.
        strength: c, how strongly it protects; 0 where a relative strength or a tolerance decides.
        measure_settings: the measure's own settings, such as ``{"damping": 0.001}``.
        watch: measures that only observe, by name. A measure can watch twice with different settings under names such
            as ``"AF:large"``: the measure, a colon, and anything.
        watch_settings: their settings, by the names in ``watch``.
        probes: what else is looked at during the run, such as ``"importances"`` or ``"path:500"``; see
            :mod:`anchorhold_lab.analysis.probes.registry`.
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
        network: a name in :data:`~anchorhold_lab.networks.NETWORKS`; the scenario's usual one by default.
        form: in which space importance is kept, by its name in :data:`anchorhold.forms.FORMS`.
        form_settings: its settings. Those that are not said are what they were when runs were first named, and no
            damping for forms of layers, whatever the library's defaults are by now, which
            :func:`~anchorhold_lab.experiments.paper_spec` says for new runs.
        holds: what pulls beside the guard's own hold, by their names in :data:`anchorhold.holds.HOLDS`.
        hold_settings: their settings, by name.
        anchor: what weights are held to, ``"last"`` or ``"mean"``; see :class:`anchorhold.Guard`.
        gradient_term: whether the gradients of the tasks' losses are part of the hold; see there.
        batch_norm: what becomes of batch norms' running statistics, ``"freeze"``, ``"fold"`` or nothing; see there.
        implicit: whether the hold is applied after each step, which no strength can make diverge; see there.
        relative_strength: s, of which the first task makes the strength, instead of one; see there.
        tolerance: how much may be lost of any task by the end of the last one, in nats a sample, instead of a strength,
            which follows it: each task after the first may use an equal part. See there, and ``kept``.
        tolerance_settings: how it is followed, such as ``{"aim": 2.0}``: settings of :class:`anchorhold.Tolerance`.
        kept: how many samples of each task are kept once it is learned, to see by them what is left of it: training
            samples that are set aside, so that nothing trains on them or measures importance from them; 300 with a
            tolerance, none by default. Runs are compared with others of the same ``kept``, which learn from as many.
        incremental: which of the three kinds of continual learning the tasks are learned as, ``"task"``, ``"domain"``
            or ``"class"``, where it is not the scenario's own; see :func:`~anchorhold_lab.scenarios.of_kind`.
        sizes: the share of its training samples that each task has, such as (1, 0.1), which tasks have by turns; all of
            them by default.
        order: the order in which the tasks are learned, by their numbers from 0; as the scenario has them by default.
        source: the digest of the file that registers what is named here, such as the scenario, which
            :func:`~anchorhold_lab.experiments.load_source` has loaded. It is found by itself. A spec that is read where
            that file was not loaded is as it was written, and says so when its tasks are asked for.
    """

    scenario: str
    measure: str = "SOS"
    strength: float = _USUAL_STRENGTH
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
    network: str | None = added(None)
    form: str = added("diagonal")
    form_settings: Mapping[str, Any] = added(FrozenDict({}))
    holds: tuple[str, ...] = added(())
    hold_settings: Mapping[str, Mapping[str, Any]] = added(FrozenDict({}))
    anchor: AnchorKind = added("last")  # noqa: RUF009 (a field, as its docstring says)
    gradient_term: bool = added(False)
    batch_norm: str | None = added(None)
    implicit: bool = added(False)
    relative_strength: float | None = added(None)
    tolerance: float | None = added(None)
    tolerance_settings: Mapping[str, Any] = added(FrozenDict({}))
    kept: int = added(0)
    incremental: Kind | None = added(None)  # noqa: RUF009 (likewise)
    sizes: tuple[float, ...] = added(())
    order: tuple[int, ...] = added(())
    source: str | None = added(None)

    def __post_init__(self) -> None:
        self._check_choices()
        if self.source is not None and not is_loaded(self.source):
            self._check_as_written()
            return
        with names_of(self.source) as sources:
            self._fill_in_scenario()
            self._fill_in_measures()
            self._fill_in_form_and_holds()
            self._check_probes()
            check_unprotected(self.settings.trains, self.make_measure(), (*self.holds, *self.watch, *self.probes))
            check_halves(self.settings.second_batch, [self.make_measure(), *self.make_watched().values()])
            check_columns(self.settings.compress, self._every_measure().values(), (*self.holds, *self.probes))
        if len(sources) > 1:
            raise ConfigurationError(
                f"scenario={self.scenario!r}, network={self.network!r}, measure={self.measure!r}, form={self.form!r}, "
                f"holds={self.holds} and watch={self.watch} are registered by {len(sources)} files "
                f"({', '.join(sorted(sources))}); expected one file for all that a run is made from."
            )
        self._set(source=next(iter(sources), None))

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
        for name in ("form_settings", "tolerance_settings"):
            if name in values:
                values[name] = dict(getattr(self, name))
        for name in ("holds", "sizes", "order"):
            if name in values:
                values[name] = list(getattr(self, name))
        if "hold_settings" in values:
            values["hold_settings"] = {name: dict(settings) for name, settings in self.hold_settings.items()}
        return {"layout": LAYOUT, **values}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> "Spec":
        """Return the spec of :meth:`to_dict`; a key too few or too many is refused."""
        if "layout" in given and given["layout"] != LAYOUT:  # first, since another layout has other keys
            raise ConfigurationError(f"The spec has layout {given['layout']!r}; this anchorhold reads layout {LAYOUT}.")
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
        for name in ("holds", "sizes", "order"):
            if isinstance(values.get(name), list):
                values[name] = tuple(values[name])
        return cls(**values)

    def make_measure(self) -> Measure:
        """Return the measure that protects."""
        return self._measure(self.measure, self.measure_settings)

    def make_watched(self) -> dict[str, Measure]:
        """Return the measures that only observe, by the names they have here."""
        return {name: self._measure(name, self.watch_settings[name]) for name in self.watch}

    def make_form(self) -> Form:
        """Return the form in which importance is kept."""
        self._named(FORMS, self.form)
        with names_of(self.source):
            return form_as_named(self.form, self.form_settings)

    def make_holds(self) -> list[Hold]:
        """Return what pulls beside the guard's own hold, new for every run."""
        for name in self.holds:
            self._named(HOLDS, name)
        with names_of(self.source):
            return [hold(name, **self.hold_settings.get(name, {})) for name in self.holds]

    def make_tolerance(self) -> Tolerance | None:
        """Return how much may be lost, and how that is followed."""
        if self.tolerance is None:
            return None
        try:
            return Tolerance(self.tolerance, **self.tolerance_settings)
        except TypeError as error:
            raise ConfigurationError(
                f"tolerance_settings={dict(self.tolerance_settings)}: expected settings of anchorhold.Tolerance, "
                "every, damping, start or aim."
            ) from error

    def make_probes(self) -> dict[str, Observer]:
        """Return what else looks at the run."""
        return dict(make_probe(text, seed=self.seed) for text in self.probes)

    def make_scenario(self, datasets: Mapping[str, Dataset]) -> Scenario:
        """Return the tasks, from the data sets that the scenario needs."""
        assert self.tasks is not None and self.validation is not None  # filled in at the start
        made = self.scenario_kind.scenario(
            datasets,
            tasks=self.tasks,
            seed=self.seed,
            validation=self.validation,
            validation_seed=self.validation_seed,
        )
        made = with_sizes(made, self.sizes, self.validation_seed) if self.sizes else made
        made = in_order(made, self.order) if self.order else made
        if self.incremental is not None:  # last, since a head grows in the order in which tasks come
            made = of_kind(made, self.incremental)
        return set_aside(made, self.kept, self.validation_seed) if self.kept else made

    def make_network(self, scenario: Scenario) -> MultiHead:
        """Return the network that learns them."""
        kind = self._named(NETWORKS, self.network or self.scenario_kind.network)
        with told_in_a_line("The network", kind.make):
            return kind.network(scenario, self.hidden)

    @property
    def scenario_kind(self) -> ScenarioKind:
        """What the scenario's name stands for."""
        return self._named(SCENARIOS, self.scenario)

    def _measure(self, name: str, settings: Mapping[str, Any]) -> Measure:
        self._named(MEASURES, name.partition(":")[0])
        with names_of(self.source):
            return _watching(name, settings)

    def _named(self, registry: Registry[T], name: str) -> T:
        """Return what a name stands for, or say which file would have to be loaded for that."""
        with names_of(self.source):
            if self.source is not None and not is_loaded(self.source) and name not in registry:
                raise missing_source(self.source, f"Run {self.id} with the {registry.kind} {name!r}")
            return registry[name]

    def _check_choices(self) -> None:
        for name, allowed in (("judge_by", JudgeBy), ("precision", Precision), ("engine", EngineName)):
            _require(getattr(self, name) in get_args(allowed), name, getattr(self, name), f"one of {get_args(allowed)}")
        known = (None, "freeze", "fold")
        _require(self.batch_norm in known, "batch_norm", self.batch_norm, "'freeze', 'fold' or None")
        for name in ("seed", "validation_seed"):
            _require(_is_count(getattr(self, name), 0), name, getattr(self, name), "a whole number, 0 or more")
        # The penalty's gradient has a factor 2c, which has to fit into the weights' own floats.
        expected = "a number from 0 to 1e38 (by patterns of names, Guard(strength={...}) alone takes them)"
        _require(_is_number(self.strength) and 0 <= self.strength <= 1e38, "strength", self.strength, expected)
        self._check_how_strongly()
        _require(
            self.source is None or is_source_digest(self.source),
            "source",
            self.source,
            "16 hexadecimal digits, or None",
        )

    def _check_how_strongly(self) -> None:
        """Refuse more than one way to say how strongly to protect, and fill in what comes with them."""
        ways = {"relative_strength": self.relative_strength, "tolerance": self.tolerance}
        if self.strength not in (0.0, _USUAL_STRENGTH):
            ways = {"strength": self.strength, **ways}
        given = [f"{name}={shortened(value)}" for name, value in ways.items() if value is not None]
        if len(given) > 1:
            raise ConfigurationError(f"{' and '.join(given)}: expected one of both.")
        if self.relative_strength is not None:
            self._set(relative_strength=checked_relative_strength(self.relative_strength), strength=0.0)
        self._set(tolerance_settings=FrozenDict(self.tolerance_settings))
        if self.tolerance is None and self.tolerance_settings:
            raise ConfigurationError(f"tolerance_settings={dict(self.tolerance_settings)} without a tolerance.")
        _require(_is_count(self.kept, 0), "kept", self.kept, "a whole number, 0 or more")
        if self.tolerance is not None:
            nats = checked_nats(self.tolerance)
            self._set(tolerance=nats, strength=0.0, kept=self.kept or USUAL_KEPT)
            self.make_tolerance()
        if self.kept and self.settings.trains != "sequentially":
            raise ConfigurationError(
                f"kept={self.kept} with trains={self.settings.trains!r}, by which nothing is to be kept; leave it out."
            )

    def _check_as_written(self) -> None:
        """Check what can be checked of a spec whose names only its file can explain: that nothing is left out."""
        written_out = (
            all(isinstance(name, str) for name in (self.scenario, self.measure, self.network or ""))
            and _is_count(self.tasks, 1)
            and (self.hidden is None or _are_widths(self.hidden))
            and _is_share(self.validation)
            and set(self.watch_settings) == set(self.watch)
        )
        if not written_out:
            raise missing_source(self.source or "", f"A spec with scenario={self.scenario!r} that is not complete")
        self._check_probes()
        self._set(
            measure_settings=FrozenDict(self.measure_settings),
            watch_settings=_frozen(self.watch_settings),
            form_settings=FrozenDict(self.form_settings),
            hold_settings=_frozen(self.hold_settings),
        )

    def _fill_in_scenario(self) -> None:
        name, kind = find_scenario(self.scenario)
        tasks = kind.tasks if self.tasks is None else self.tasks
        expected = f"{kind.possible_tasks[0]} to {kind.possible_tasks[-1]} for {name}"
        _require(_is_count(tasks, 1) and tasks in kind.possible_tasks, "tasks", tasks, expected)
        chosen = NETWORKS.find(self.network or kind.network)
        network = NETWORKS[chosen]
        hidden = None if self.hidden is None else tuple(self.hidden)
        if network.takes_hidden:
            hidden = kind.hidden if hidden is None else hidden
            _require(_are_widths(hidden), "hidden", hidden, "one or more positive widths")
        else:
            expected = f"none: {name} is learned by {network.called}, which has no hidden layers to choose"
            _require(hidden is None, "hidden", hidden, expected)
        share = self.validation
        if share is None:
            share = kind.validation or (0.1 if self.judge_by == "validation" else 0.0)
        _require(_is_share(share), "validation", share, "a share from 0 up to 1")
        if self.judge_by == "validation" and share == 0:
            raise ConfigurationError("judge_by='validation' and validation=0: nothing is kept back to judge by.")
        # The usual network is the same run whether it is named or not.
        other = None if chosen == kind.network else chosen
        known = (None, *get_args(Kind))
        _require(self.incremental in known, "incremental", self.incremental, "'task', 'domain', 'class' or None")
        incremental = None if self.incremental == kind.incremental else self.incremental
        self._set(incremental=incremental)
        self._set(scenario=name, tasks=tasks, hidden=hidden, validation=share, network=other)
        self._fill_in_unlike_tasks(tasks)

    def _fill_in_unlike_tasks(self, tasks: int) -> None:
        """Check sizes and order; what changes nothing is the same run as one that does not say it."""
        are_shares = _are_all(self.sizes, lambda share: _is_number(share) and 0 < share <= 1)
        expected = f"a tuple of shares above 0 and up to 1, at most one for each of {tasks} tasks"
        _require(are_shares and len(self.sizes) <= tasks, "sizes", self.sizes, expected)
        sizes = tuple(itertools.islice(itertools.cycle(self.sizes), tasks if self.sizes else 0))
        are_numbers = _are_all(self.order, lambda number: _is_count(number, 0))
        expected = f"a tuple of each of the tasks 0 to {tasks - 1} once, or of none"
        _require(are_numbers and sorted(self.order) in ([], list(range(tasks))), "order", self.order, expected)
        order = tuple(self.order)
        self._set(
            sizes=() if all(share == 1 for share in sizes) else sizes,
            order=() if order == tuple(range(tasks)) else order,
        )

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

    def _fill_in_form_and_holds(self) -> None:
        """Find the form and the holds, try to make them, and refuse an engine that cannot do with them."""
        chosen, holds = FORMS.find(self.form), tuple(HOLDS.find(name) for name in self.holds)
        given = {HOLDS.find(name): settings for name, settings in self.hold_settings.items()}
        _require(len(set(holds)) == len(holds), "holds", self.holds, "each of them once")
        _require(set(given) <= set(holds), "hold_settings", self.hold_settings, f"settings of the holds {holds}")
        self._set(
            form=chosen,
            form_settings=FrozenDict(self.form_settings),
            holds=holds,
            hold_settings=_frozen({name: settings for name, settings in given.items() if settings}),
        )
        made = form_as_named(chosen, self.form_settings)
        protecting = measure(self.measure, **self.measure_settings)
        made.check(protecting)
        if self.relative_strength is not None and isinstance(protecting, FineTune):
            raise ConfigurationError(
                f"relative_strength={self.relative_strength:g} with {self.measure}, which finds no importance that it "
                "could be relative to. Leave it out."
            )
        checked_tolerance(self.make_tolerance(), {}, protecting, self.anchor, self.batch_norm)
        checked_anchor(self.anchor, protecting, gradient_term=self.gradient_term)
        leaning = has_linear_term(made, self.anchor, gradient_term=self.gradient_term)
        checked_implicit(self.implicit, made, self.batch_norm, has_linear_term=leaning)
        if self.implicit and not made.elementwise and self.settings.optimizer != "sgd":
            raise ConfigurationError(
                f"implicit=True in the form {made} with optimizer={self.settings.optimizer!r}, which moves each weight "
                "by a rate of its own; expected optimizer='sgd', the form 'diagonal', or implicit=False."
            )
        for name in holds:
            hold(name, **self.hold_settings.get(name, {})).check(made)
        distributions = variational_hold(self.make_holds())
        check_coreset(distributions, keeps=self.kept > 0)
        check_restart(distributions, self.settings.consolidate)
        if self.settings.consolidate != "tasks" and self.tolerance is not None:
            raise ConfigurationError(
                f"tolerance={self.tolerance:g} with consolidate={self.settings.consolidate!r}: what may be lost is "
                "shared out over tasks, of whose ends it is not told. Expected consolidate='tasks', or a strength."
            )
        beyond = beyond_fast(self, made, self._every_measure(), has_linear_term=leaning)
        if self.engine == "fast" and (what := next(beyond, None)):
            raise ConfigurationError(f"engine='fast' with {what}, which it cannot do with; expected engine='plain'.")

    def _every_measure(self) -> dict[str, Measure]:
        """Return the measure that protects and those that watch."""
        watched = {name: _watching(name, self.watch_settings[name]) for name in self.watch}
        return {self.measure: measure(self.measure, **self.measure_settings), **watched}

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


def _frozen(settings: Mapping[str, Mapping[str, Any]]) -> FrozenDict:
    return FrozenDict({name: FrozenDict(given) for name, given in settings.items()})


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < 1


def _are_widths(value: Sequence[object] | None) -> bool:
    return bool(value) and all(_is_count(width, 1) for width in value or ())


def _are_all(values: object, fits: Callable[[Any], bool]) -> bool:
    return isinstance(values, Sequence) and not isinstance(values, str) and all(map(fits, values))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _require(condition: bool, name: str, given: object, expected: str) -> None:
    if not condition:
        raise ConfigurationError(f"{name}={shortened(given)}: expected {expected}.")
