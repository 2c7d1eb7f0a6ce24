"""A spec's fields on one level, as values that can be compared, printed and put into a table."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from anchorhold.measures import Measure
from anchorhold.registry import is_loaded
from anchorhold_lab.experiments.specs.differing import differing
from anchorhold_lab.experiments.specs.form_settings import every_setting
from anchorhold_lab.experiments.specs.spec import Spec


def fields_of(spec: Spec) -> dict[str, Any]:
    """Return everything that decides a run by name, those too that are left out of files while they are as usual.

    Settings of the protocol go by their own names, those of the measure by ``measure.damping``, and those of measures
    that only watch by ``watch.EWC.samples``.
    """
    fields = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    for nested in (
        "settings",
        "measure_settings",
        "watch_settings",
        "form_settings",
        "hold_settings",
        "tolerance_settings",
    ):
        del fields[nested]
    fields["hidden"] = "-".join(str(width) for width in spec.hidden or ())
    fields["watch"], fields["probes"] = " ".join(spec.watch), " ".join(spec.probes)
    fields["holds"] = " ".join(spec.holds)
    fields["sizes"], fields["order"] = (" ".join(f"{n:g}" for n in given) for given in (spec.sizes, spec.order))
    if spec.relative_strength is not None or spec.tolerance is not None:  # whose strength each run finds for itself
        fields["strength"] = None
    form_settings = dict(spec.form_settings)
    if spec.source is None or is_loaded(spec.source):
        protecting = _settings(spec.make_measure())
        watched = {name: _settings(measure) for name, measure in spec.make_watched().items()}
        form_settings = every_setting(form_settings, spec.make_form())
    else:  # what was written says all that can be known of measures whose file was not loaded
        protecting, watched = dict(spec.measure_settings), {name: dict(s) for name, s in spec.watch_settings.items()}
    beside = {"form": form_settings, "tolerance": spec.tolerance_settings, **spec.hold_settings}
    return {
        **fields,
        **dataclasses.asdict(spec.settings),
        **{f"measure.{name}": value for name, value in protecting.items()},
        **{f"{name}.{key}": value for name, settings in beside.items() for key, value in settings.items()},
        **{f"watch.{name}.{key}": value for name, settings in watched.items() for key, value in settings.items()},
    }


def _settings(measure: Measure) -> dict[str, Any]:
    return dict(sorted(dataclasses.asdict(measure).items()))


def differing_fields(specs: Iterable[Spec]) -> list[str]:
    """Return the names of all fields in which runs of one scenario differ.

    A measure's own settings count where runs of that measure differ in them; two measures have different ones as a
    matter of course.
    """
    return differing(fields_of(spec) for spec in specs)
