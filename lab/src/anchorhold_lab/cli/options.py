"""From what was typed to the specs of runs."""

import ast
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import anchorhold
from anchorhold.errors import ConfigurationError, shortened
from anchorhold.forms import FORMS
from anchorhold.holds import HOLDS
from anchorhold.registry import find_name, simplified
from anchorhold_lab.experiments import SCENARIOS, Spec, paper_spec
from anchorhold_lab.experiments.specs.spec import USUAL_KEPT

Number = TypeVar("Number", int, float)

_DIGITS_OF_WIDTHS = 9
_NOTHING = "fine-tune"
"""The measure that protects nothing."""
_STRENGTHS = {
    "strength": "--strength",
    "relative_strength": "--relative-strength",
    "tolerance": "--tolerance",
}
"""What has options of its own."""


_AS_TYPED = (
    *("tasks", "epochs", "later_epochs", "batch_size", "optimizer", "momentum", "rate_decay", "samples", "compress"),
    *("network", "precision", "engine", "anchor", "incremental", "batch_norm"),
)
"""Options whose values are a spec's own."""


def specs_of(
    scenario: str,
    *,
    measures: Sequence[str],
    seeds: Sequence[int],
    strengths: Sequence[str],
    relative_strengths: Sequence[str] = (),
    watch: Sequence[str],
    assignments: Sequence[str],
    changes: Mapping[str, Any],
) -> list[Spec]:
    """Return a spec for every measure and seed.

    Args:
        scenario: which tasks.
        measures: which measures protect, each in runs of its own.
        seeds: which seeds, each in runs of its own.
        strengths: how strongly to protect, ``5`` or ``SI=5``.
        relative_strengths: the same in units of the importance of the first task, ``0.03`` or ``SI=0.03``.
        watch: which measures only observe.
        assignments: settings of measures, ``name=value`` or ``measure.name=value``.
        changes: fields of a spec or of its settings, by name; ``None`` leaves one as it usually is.
    """
    scenario = SCENARIOS.find(scenario)
    known = anchorhold.measures.default_measures()
    measures = list(dict.fromkeys(find_name("measure", name, known) for name in measures))
    watch = list(dict.fromkeys(find_name("measure", name, known) for name in watch))
    settings = settings_of_measures(assignments, measures, watch)
    strength = strengths_of(strengths, measures)
    relative = strengths_of(relative_strengths, measures, "--relative-strength")
    if both := sorted(set(strength) & set(relative)):
        raise ConfigurationError(
            f"--strength and --relative-strength for {both[0]}: expected one or the other. The relative one finds the "
            "strength at the end of the first task."
        )
    asked = asked_for(changes)
    tolerance: dict[str, Any] = {n: asked.pop(n) for n in ("tolerance", "tolerance_settings") if n in asked}
    if tolerance and (strong := [*strength, *relative]):
        raise ConfigurationError(
            f"--tolerance {tolerance['tolerance']:g} beside a strength for {strong[0]}: expected one or the other. The "
            "strength follows the tolerance."
        )
    if tolerance and set(measures) == {_NOTHING}:
        raise ConfigurationError(f"--tolerance {tolerance['tolerance']:g}: {_NOTHING} protects nothing; try --kept.")
    if tolerance and asked.get("kept") == 0:
        raise ConfigurationError(
            f"--tolerance {tolerance['tolerance']:g} --kept 0: a tolerance is measured on kept samples. Expected a "
            f"number above 0, or none for {USUAL_KEPT}."
        )
    if tolerance:  # of all runs, so that they learn from the same samples
        asked.setdefault("kept", USUAL_KEPT)
    found = []
    for measure in measures:
        # A measure that protects need not be watched as well.
        beside = tuple(name for name in watch if name != measure)
        own: dict[str, Any] = {
            "watch": beside,
            "watch_settings": {name: settings[name] for name in beside if settings[name]},
        }
        own["measure_settings"] = settings[measure]
        if measure in strength:
            own["strength"] = strength[measure]
        if measure in relative:
            own["relative_strength"] = relative[measure]
        if measure != _NOTHING:
            own |= tolerance
        found += [paper_spec(scenario, measure, seed=seed, **own, **asked) for seed in seeds]
    return found


def changes_of(typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a spec that both ``run`` and ``search`` have options for, by what was typed.

    Args:
        typed: the arguments of either command, by name.
    """
    return {name: typed[name] for name in _AS_TYPED} | {
        "sizes": numbers_of("--sizes", typed["sizes"], float, "shares with commas between them, such as 1,0.1"),
        "order": numbers_of("--order", typed["order"], int, "numbers of tasks with commas between them, such as 2,0,1"),
        "learning_rate": typed["lr"],
        "consolidate": consolidation_of(typed["consolidate"]),
        "hidden": widths_of(typed["hidden"]),
        "gradient_term": typed["gradient_term"] or None,
        "implicit": typed["implicit"] or None,
    }


def asked_for(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes that were asked for: those that are not ``None``."""
    asked = {name: value for name, value in changes.items() if value is not None}
    if "epochs" in asked:  # for all tasks, also where later ones usually have another number
        asked.setdefault("later_epochs", None)
    if "momentum" in asked and asked.get("optimizer") != "sgd":
        raise ConfigurationError(f"--momentum {asked['momentum']}: Adam has none; expected --optimizer sgd beside it.")
    return asked


def strengths_of(given: Iterable[str], measures: Sequence[str], option: str = "--strength") -> dict[str, float]:
    """Return the strengths that were asked for, by measure: ``SI=5``, or ``5`` where only one measure protects."""
    protecting = [name for name in measures if name != _NOTHING]
    found: dict[str, float] = {}
    for text in given:
        place, sign, number = text.rpartition("=")
        name = find_name("chosen measure", place, measures) if sign else ", ".join(protecting)
        if not sign and len(protecting) > 1:
            short = "-c" if option == "--strength" else option
            example = " ".join(f"{short} {each}={number}" for each in protecting)
            raise ConfigurationError(
                f"{option} {text} for {name}, whose strengths are of different sizes; expected one for each, such as "
                f"{example}."
            )
        if name in ("", _NOTHING):
            raise ConfigurationError(f"{option} {text}: {_NOTHING} protects nothing, so it has no strength.")
        if name in found:
            raise ConfigurationError(
                f"{option} {text}: {name} has one already, {found[name]:g}; expected one for each measure. To "
                "compare strengths, run them one after the other into one store, or let `anchorhold-lab search` choose."
            )
        try:
            found[name] = float(number)
        except ValueError:
            raise ConfigurationError(f"{option} {text}: expected a number, or MEASURE=NUMBER.") from None
    return found


def settings_of_measures(
    assignments: Iterable[str], measures: Sequence[str], watched: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Return the settings that were asked for, for each measure.

    ``damping=0.01`` is for every measure that protects, ``SIU.damping=0.01`` for that one, be it only watching.
    """
    found: dict[str, dict[str, Any]] = {name: {} for name in (*measures, *watched)}
    for assignment in assignments:
        place, sign, value = assignment.partition("=")
        if not sign or not place or not value:
            raise ConfigurationError(f"--set {assignment!r}: expected NAME=VALUE or MEASURE.NAME=VALUE.")
        measure, _, setting = place.rpartition(".")
        holds = {simplified(name): name for name in HOLDS}
        if measure and simplified(measure) in holds and simplified(measure) not in map(simplified, found):
            raise ConfigurationError(
                f"--set {assignment}: {measure} is a hold, and these runs have none of that name; expected "
                f"--hold {holds[simplified(measure)]} beside it."
            )
        if simplified(measure) == "tolerance":
            raise ConfigurationError(f"--set {assignment} without a tolerance; expected --tolerance NATS beside it.")
        if setting in _STRENGTHS:
            of_it = f"{measure}={value}" if measure else value
            raise ConfigurationError(
                f"--set {assignment}: how strongly to protect is no setting of a measure; expected "
                f"{_STRENGTHS[setting]} {of_it}."
            )
        for name in [find_name("chosen measure", measure, found)] if measure else measures:
            known = dataclasses.asdict(anchorhold.measures.default_measures()[name])
            if not known:
                raise ConfigurationError(f"--set {assignment}: {name} has no settings.")
            setting = find_name(f"setting of {name}", setting, known)
            found[name][setting] = _checked(name, setting, _value_of(value), known[setting])
    return found


class FormAndHolds(NamedTuple):
    """What was asked for beside the measures."""

    fields: dict[str, Any]
    """The fields of a spec that it makes different."""
    left: list[str]
    """The settings that are of measures."""


def form_and_holds(
    form: str | None, holds: Sequence[str], assignments: Sequence[str], tolerance: float | None = None
) -> FormAndHolds:
    """Return the form, the holds and the tolerance that were asked for, with those of the settings that are theirs.

    ``form.damping=0.1`` is of the form, and ``asymmetric.factor=2`` of the hold of that name.
    """
    chosen = list(dict.fromkeys(find_name("hold", name, HOLDS) for name in holds))
    places = {simplified(name): name for name in (*chosen, "form", *(["tolerance"] if tolerance is not None else []))}
    settings: dict[str, dict[str, Any]] = {name: {} for name in places.values()}
    left = []
    for assignment in assignments:
        place, sign, value = assignment.partition("=")
        owner, _, setting = place.rpartition(".")
        if sign and simplified(owner) in places:
            settings[places[simplified(owner)]][setting] = _value_of(value)
        else:
            left.append(assignment)
    fields: dict[str, Any] = {}
    if form is not None or settings["form"]:
        fields["form"] = find_name("form", form or "diagonal", FORMS)
    if settings["form"]:
        fields["form_settings"] = settings["form"]
    if tolerance is not None:
        fields["tolerance"], fields["tolerance_settings"] = tolerance, settings["tolerance"]
    if chosen:
        fields["holds"] = tuple(chosen)
        fields["hold_settings"] = {name: settings[name] for name in chosen if settings[name]}
    return FormAndHolds(fields, left)


def widths_of(text: str | None) -> tuple[int, ...] | None:
    """Return the widths of hidden layers, from a text such as ``100,100``."""
    if text is None:
        return None
    parts = text.split(",")
    # Digits enough for any layer that fits into memory, and few enough for Python to read.
    if not all(part.strip().isdecimal() and len(part.strip()) <= _DIGITS_OF_WIDTHS and int(part) for part in parts):
        raise ConfigurationError(
            f"--hidden {shortened(text)}: expected widths with commas between them, such as 100,100."
        )
    return tuple(int(part) for part in parts)


def numbers_of(
    option: str, text: str | None, kind: Callable[[str], Number], expected: str
) -> tuple[Number, ...] | None:
    """Return numbers of a kind, from a text with commas between them; whether they make sense, the spec says."""
    try:
        return None if text is None else tuple(kind(part) for part in text.split(","))
    except ValueError:
        raise ConfigurationError(f"{option} {shortened(text)}: expected {expected}.") from None


def consolidation_of(text: str | None) -> str | int | None:
    """Return when to consolidate: a number of steps as such, and words as they are."""
    return int(text) if text is not None and text.isdecimal() and len(text) <= _DIGITS_OF_WIDTHS else text


def seeds_of(count: int | None, given: Sequence[int]) -> list[int]:
    """Return the seeds, from a number of them or from a list."""
    if count is not None and given:
        raise ConfigurationError(f"--seeds {count} and --seed {given[0]}: expected one or the other.")
    return list(dict.fromkeys(given)) if given else list(range(count or 1))


def _checked(name: str, setting: str, value: Any, usual: Any) -> Any:
    """Return a value of the kind that a setting takes."""
    wrong = ConfigurationError(
        f"--set {setting}={value}: {name} takes another kind of value there, such as its usual {usual}."
    )
    if isinstance(usual, bool) and not isinstance(value, bool):
        raise wrong
    try:
        anchorhold.measures.measure(name, **{setting: value})
    except ConfigurationError as error:
        # Whether a number of the right kind makes sense may depend on other settings; the spec checks them together.
        if isinstance(error.__cause__, TypeError):
            raise wrong from error
    return value


def _value_of(text: str) -> Any:
    """Return a number, truth value or ``None`` as such, and everything else as text."""
    try:
        value = ast.literal_eval({"true": "True", "false": "False", "none": "None"}.get(text.lower(), text))
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # the last two of thousands of brackets
        return text
    return value if value is None or isinstance(value, int | float | str) else text
