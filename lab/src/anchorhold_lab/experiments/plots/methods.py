"""Finished runs as methods to be compared: what protects, at some strengths, each with some seeds."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anchorhold.errors import ConfigurationError
from anchorhold_lab.analysis.repetitions import Estimate, estimate
from anchorhold_lab.experiments.specs.differing import differing
from anchorhold_lab.experiments.specs.method_names import method_name
from anchorhold_lab.experiments.specs.spec import Spec
from anchorhold_lab.experiments.specs.spec_fields import fields_of
from anchorhold_lab.experiments.store.run_results import Result

MOST = 10
"""Methods in one picture: more colours nobody tells apart."""

_NAMED = ("scenario", "judge_by", "seed", "measure", "form", "holds", "implicit", "trains")
_STRENGTHS = ("strength", "relative_strength", "tolerance")
_NO_PART = ("engine", "watch", "probes")
"""What has no part in what comes out, but for rounding."""


@dataclass(frozen=True)
class Setting:
    """Runs of one method at one strength, which differ in the seed alone."""

    results: tuple[Result, ...]

    @property
    def strength(self) -> float | None:
        """c; of strengths that each seed found for itself their geometric mean, and ``None`` where there is none."""
        spec = self.results[0].spec
        if spec.relative_strength is None and spec.tolerance is None:
            return spec.strength or None
        found = [result.found_strength for result in self.results if result.found_strength]
        return math.exp(math.fsum(map(math.log, found)) / len(found)) if found else None

    @property
    def says(self) -> str:
        """How strong it is, as it was asked for."""
        spec = self.results[0].spec
        if spec.tolerance is not None:
            return f"{spec.tolerance:g} nats"
        return f"s = {spec.relative_strength:g}" if spec.relative_strength is not None else f"c = {spec.strength:g}"

    def over_seeds(self, figure: Callable[[Result], float]) -> Estimate:
        """Return the mean of some figure over the seeds."""
        return estimate(figure(result) for result in self.results)


@dataclass(frozen=True)
class Method:
    """Runs that are protected in one way."""

    name: str
    settings: tuple[Setting, ...]
    """The weakest first."""

    @property
    def best(self) -> Setting:
        """The setting of the best mean accuracy over all tasks."""
        return max(self.settings, key=lambda setting: setting.over_seeds(lambda run: run.average_accuracy).mean)

    @property
    def says(self) -> str:
        """Its name, with the setting that lines are drawn of, where there are several."""
        if len(self.settings) == 1:
            return self.name
        return f"{self.name}, {self.best.says} (best of {len(self.settings)})"


def methods_of(results: Sequence[Result]) -> list[Method]:
    """Return runs by what protects them, or say why they cannot be in one picture."""
    _refuse_unlike(results)
    named: dict[str, list[Result]] = {}
    for result in results:
        how = " with a tolerance" if result.spec.tolerance is not None else ""
        named.setdefault(f"{method_name(result.spec)}{how}", []).append(result)
    found = [method for name, runs in named.items() for method in _told_apart(name, runs)]
    if len(found) > MOST:
        raise ConfigurationError(
            f"{len(found)} methods in one picture ({', '.join(method.name for method in found)}); expected at most "
            f"{MOST}, whose colours can be told apart. Choose some by --measure or --where."
        )
    return found


def _refuse_unlike(results: Sequence[Result]) -> None:
    if not results:
        raise ConfigurationError("No finished run to draw; expected at least one.")
    for name, option in (("scenario", "--scenario"), ("judge_by", "--where judge_by=")):
        values = sorted({str(getattr(result.spec, name)) for result in results})
        if len(values) > 1:
            one = f"{option} {values[0]}" if option.startswith("--s") else f"{option}{values[0]}"
            raise ConfigurationError(
                f"Runs with {name} {' and '.join(values)} have nothing to be compared in one picture; expected one of "
                f"them: {one}."
            )


def _told_apart(name: str, results: Sequence[Result]) -> list[Method]:
    """Return the methods among runs that share a name, with all that they differ in beside how strongly."""
    fields = [{k: v for k, v in fields_of(result.spec).items() if not k.startswith("watch")} for result in results]
    beside = [key for key in differing(fields) if key not in (*_NAMED, *_STRENGTHS, *_NO_PART)]
    groups: dict[str, list[Result]] = {}
    for result, own in zip(results, fields, strict=True):
        more = [key if own[key] is True else f"{key} {own[key]}" for key in beside if own.get(key)]
        groups.setdefault(", ".join([name, *more]), []).append(result)
    return [Method(each, _settings(runs)) for each, runs in groups.items()]


def _settings(results: Sequence[Result]) -> tuple[Setting, ...]:
    groups: dict[tuple[object, ...], dict[int, Result]] = {}
    for result in results:
        # Looking at a run has no part in it: with other eyes on it, it is the same run and counts once.
        groups.setdefault(_strength(result.spec), {}).setdefault(result.spec.seed, result)
    found = [Setting(tuple(runs.values())) for runs in groups.values()]
    return tuple(sorted(found, key=lambda setting: setting.strength or 0.0))


def _strength(spec: Spec) -> tuple[object, ...]:
    return tuple(getattr(spec, name) for name in _STRENGTHS)
