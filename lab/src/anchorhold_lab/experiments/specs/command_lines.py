"""The command that makes some runs: what ``anchorhold-lab run`` is to be told for them, and no more than that."""

import dataclasses
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from anchorhold.errors import ConfigurationError
from anchorhold.measures import measure
from anchorhold_lab.experiments.specs.form_settings import unsaid
from anchorhold_lab.experiments.specs.paper_specs import usual_settings
from anchorhold_lab.experiments.specs.spec import Spec
from anchorhold_lab.experiments.specs.usual_protocols import LARGE_BATCH

_SETTINGS = {
    "epochs": "--epochs",
    "later_epochs": "--later-epochs",
    "batch_size": "--batch-size",
    "learning_rate": "--lr",
    "optimizer": "--optimizer",
    "samples": "--samples",
    "trains": "--trains",
    "consolidate": "--consolidate",
    "rate_decay": "--rate-decay",
    "compress": "--compress",
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
    "engine": "--engine",
}


def command_of(specs: Sequence[Spec]) -> str:
    """Return the command that makes runs which differ in their seeds alone.

    >>> command_of([paper_spec("split-mnist", "EWC", seed=seed) for seed in range(3)])
    'anchorhold-lab run split-mnist -m EWC -c 1000 --seeds 3'
    """
    first = specs[0]
    kinds = {repr({**spec.to_dict(), "seed": 0}) for spec in specs}
    if len(kinds) > 1 or not _can_be_told(first):
        raise ConfigurationError(
            "No single command makes these runs; expected runs that differ in their seeds alone, judged by test "
            "samples, with nothing that has no option."
        )
    words = ["anchorhold-lab", "run", first.scenario, "-m", first.measure, *_strength(first), *_seeds(specs)]
    words += [*_settings(first), *_fields(first)]
    words += [word for hold in first.holds for word in ("--hold", hold)]
    words += ["--gradient-term"] * first.gradient_term + ["--implicit"] * first.implicit
    words += [word for probe in first.probes for word in ("--probe", probe)]
    words += [word for assignment in _assignments(first) for word in ("--set", assignment)]
    return shlex.join(words)


def _can_be_told(spec: Spec) -> bool:
    """Whether every field of a spec has an option."""
    kept_back = spec.validation == spec.scenario_kind.validation and spec.validation_seed == 0
    in_halves = spec.settings.second_batch != "drawn"
    return spec.source is None and spec.judge_by == "test" and kept_back and not in_halves and not spec.watch


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
    """Yield what else is not as usual."""
    kind, defaults = spec.scenario_kind, {field.name: field.default for field in dataclasses.fields(Spec)}
    if spec.hidden not in (None, kind.hidden):
        yield from ("--hidden", _listed(spec.hidden or ()))
    for name in ("sizes", "order"):
        if getattr(spec, name):
            yield from (f"--{name}", _listed(getattr(spec, name)))
    for name, option in _FIELDS.items():
        value = getattr(spec, name)
        if value not in (None, kind.tasks if name == "tasks" else defaults[name]):
            yield from (option, _said(value))
    if spec.engine == "fast" and spec.make_measure().needs.squares:  # which takes the plain one, unless it is asked
        yield from ("--engine", "fast")


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
    protocol = spec.scenario_kind.protocol
    large = bool(protocol.large) and spec.settings.batch_size == LARGE_BATCH
    usual = usual_settings(protocol, spec.measure, spec.measure_settings, large=large)
    known = {**measure(spec.measure).settings(), **usual}
    for name, value in spec.measure_settings.items():
        if known.get(name) != value:
            yield f"{name}={_said(value)}"
    form_settings = {**spec.form_settings, **unsaid(spec.form_settings, spec.form)}
    places: dict[str, Mapping[str, Any]] = {"form": form_settings, **spec.hold_settings}
    places["tolerance"] = spec.tolerance_settings
    for place, settings in places.items():
        for name, value in settings.items():
            yield f"{place}.{name}={_said(value)}"


def _listed(values: Iterable[object]) -> str:
    return ",".join(map(_said, values))


def _said(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
