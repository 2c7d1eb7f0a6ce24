"""The command that makes some runs: what ``holdfast run`` is to be told for them, and no more than that."""

import dataclasses
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.errors import ConfigurationError
from holdfast.lab.experiments.specs.paper_specs import paper_spec
from holdfast.lab.experiments.specs.spec import Spec

_SETTINGS = {
    "epochs": "--epochs",
    "later_epochs": "--later-epochs",
    "batch_size": "--batch-size",
    "learning_rate": "--lr",
    "optimizer": "--optimizer",
    "samples": "--samples",
    "trains": "--trains",
    "consolidate": "--consolidate",
}
_FIELDS = {
    "tasks": "--tasks",
    "network": "--network",
    "form": "--form",
    "anchor": "--anchor",
    "batch_norm": "--batch-norm",
    "tolerance": "--tolerance",
    "kept": "--kept",
    "incremental": "--incremental",
    "precision": "--precision",
}


def command_of(specs: Sequence[Spec]) -> str:
    """Return the command that makes runs which differ in their seeds alone.

    >>> command_of([paper_spec("split-mnist", "EWC", seed=seed) for seed in range(3)])
    'holdfast run split-mnist -m EWC -c 1000 --seeds 3'
    """
    first = specs[0]
    kinds = {repr({**spec.to_dict(), "seed": 0}) for spec in specs}
    if len(kinds) > 1 or first.source is not None or first.judge_by != "test":
        raise ConfigurationError("No single command makes these runs; expected runs that differ in their seeds alone.")
    words = ["holdfast", "run", first.scenario, "-m", first.measure, *_strength(first), *_seeds(specs)]
    words += [*_settings(first), *_fields(first)]
    words += [word for hold in first.holds for word in ("--hold", hold)]
    words += ["--gradient-term"] * first.gradient_term + ["--implicit"] * first.implicit
    words += [word for probe in first.probes for word in ("--probe", probe)]
    words += [word for name in first.watch for word in ("--watch", name)]
    words += [word for assignment in _assignments(first) for word in ("--set", assignment)]
    return shlex.join(words)


def _settings(spec: Spec) -> Iterator[str]:
    """Yield what of the protocol is not the scenario's."""
    settings, protocol = spec.settings, spec.scenario_kind.protocol
    usual = protocol.settings
    # A batch size of its own may come with more that is usual, so that what is not has to be said.
    other_batches = settings.batch_size != usual.batch_size
    for name, option in _SETTINGS.items():
        value = getattr(settings, name)
        said = value != getattr(usual, name) or (other_batches and name in ("epochs", "learning_rate"))
        if said and value is not None:
            yield from (option, _said(value))
    if settings.optimizer == "sgd" and settings.momentum != usual.momentum:
        yield from ("--momentum", _said(settings.momentum))
    _, drawn_anew = protocol.chosen.get(spec.measure, (0.0, usual.reinitialise))
    if settings.reinitialise != drawn_anew and settings.trains != "anew":
        yield "--reinit" if settings.reinitialise else "--no-reinit"


def _fields(spec: Spec) -> Iterator[str]:
    """Yield what else is not as usual; the engine where another would be taken."""
    usual = paper_spec(spec.scenario, "fine-tune")
    if spec.hidden != usual.hidden and spec.hidden is not None:
        yield from ("--hidden", ",".join(map(str, spec.hidden)))
    for name, option in _FIELDS.items():
        value = getattr(spec, name)
        if value != getattr(usual, name) and value is not None:
            yield from (option, _said(value))
    if spec.engine == "plain" and _could_be_fast(spec):
        yield from ("--engine", "plain")


def _could_be_fast(spec: Spec) -> bool:
    try:
        dataclasses.replace(spec, engine="fast")
    except ConfigurationError:
        return False
    return True


def _strength(spec: Spec) -> list[str]:
    if spec.relative_strength is not None:
        return ["--relative-strength", _said(spec.relative_strength)]
    if spec.measure == "fine-tune" or spec.tolerance is not None:
        return []
    return ["-c", _said(spec.strength)]


def _seeds(specs: Sequence[Spec]) -> list[str]:
    seeds = [spec.seed for spec in specs]
    if seeds == list(range(len(seeds))):
        return ["--seeds", str(len(seeds))]
    return [word for seed in seeds for word in ("--seed", str(seed))]


def _assignments(spec: Spec) -> Iterator[str]:
    """Yield settings of the measure that are not as usual, and all of forms, holds and the tolerance."""
    beside: dict[str, Any] = {"batch_size": spec.settings.batch_size, "strength": spec.strength, "engine": "plain"}
    known = paper_spec(spec.scenario, spec.measure, **beside).measure_settings
    for name, value in spec.measure_settings.items():
        if known.get(name) != value:
            yield f"{name}={_said(value)}"
    places: dict[str, Mapping[str, Any]] = {"form": spec.form_settings, **spec.hold_settings}
    places["tolerance"] = spec.tolerance_settings
    for place, settings in places.items():
        for name, value in settings.items():
            yield f"{place}.{name}={_said(value)}"


def _said(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
