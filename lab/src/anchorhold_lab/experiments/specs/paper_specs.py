"""The paper's runs: the settings that its tables and text give for each benchmark and measure."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from anchorhold.errors import ConfigurationError
from anchorhold.forms import FORMS
from anchorhold.guard.core import has_linear_term
from anchorhold.measures import MEASURES
from anchorhold.measures import measure as make_measure
from anchorhold.registry import names_of
from anchorhold_lab.experiments.specs.form_settings import form_as_named, said_settings
from anchorhold_lab.experiments.specs.scenario_kinds import find_scenario
from anchorhold_lab.experiments.specs.source_files import require_loaded
from anchorhold_lab.experiments.specs.spec import Spec
from anchorhold_lab.experiments.specs.usual_protocols import LARGE_BATCH, Protocol
from anchorhold_lab.training.fast.layer_holds import can_hold
from anchorhold_lab.training.fast.shared_steps import can_measure
from anchorhold_lab.training.protocol import Settings

_SETTINGS = {field.name for field in dataclasses.fields(Settings)}


def paper_spec(scenario: str, measure: str = "SOS", *, seed: int = 0, **changes: Any) -> Spec:
    """Return the paper's run of a measure on a benchmark; for scenarios that it does not have, what is usual there.

    >>> paper_spec("permuted-mnist", "SI", seed=3)
    >>> paper_spec("split-cifar", "SOS", batch_size=2048)          # its rows for large batches
    >>> paper_spec("permuted-mnist", "L2", strength=0.01, epochs=5)
    >>> paper_spec("permuted-mnist", "EWC", tolerance=0.1)         # which draws no weights anew, unless it is asked to
    >>> paper_spec("permuted-mnist", "EWC", form="rotated")        # whose spec says damping=0.001, as new forms have it

    Args:
        scenario: a name in :data:`~anchorhold_lab.experiments.SCENARIOS`.
        measure: a name in :func:`~anchorhold.measures.default_measures`.
        seed: the seed of everything random.
        changes: any field of :class:`Spec` or of its settings that is to be different.
    """
    require_loaded(changes.get("source"))
    with names_of(changes.get("source")):
        scenario, kind = find_scenario(scenario)  # an unknown name is refused with those that are near it,
        measure = MEASURES.find(measure)  # and so are these two
        beside = [name.partition(":")[0] for name in changes.get("watch", ())]
        made = [make_measure(name) for name in (measure, *beside)]
        # What looks at samples in steps has always been in the plain one, unless the other is asked for.
        seen = all(can_measure(each) and not each.needs.squares for each in made)
        chosen_form = FORMS.find(changes.get("form", "diagonal"))
        form_settings = said_settings(chosen_form, changes.get("form_settings", {}))
        kept_as = form_as_named(chosen_form, form_settings)
    protocol = kind.protocol
    own = {name: value for name, value in changes.items() if name not in _SETTINGS}
    unknown = sorted(set(own) - ({field.name for field in dataclasses.fields(Spec)} - {"settings"}))
    if unknown:
        raise ConfigurationError(
            f"paper_spec has no {', '.join(unknown)}; expected fields of Spec, or of Settings by their own names."
        )
    large = bool(protocol.large) and changes.get("batch_size") == LARGE_BATCH
    chosen = protocol.chosen_large if large else protocol.chosen
    others = [name for name in ("relative_strength", "tolerance") if own.get(name) is not None]
    if others and "strength" in own:
        raise ConfigurationError(
            f"strength={own['strength']!r} and {others[0]}={own[others[0]]!r}: expected one of both."
        )
    if measure not in chosen and "strength" not in own and not others:
        where = f"{measure!r} on {scenario!r}" + (f" at batch size {LARGE_BATCH}" if large else "")
        raise ConfigurationError(
            f"No strength is known for {where}; give one (strength= or relative_strength= in Python, --strength or "
            "--relative-strength on the command line), say how much may be lost (tolerance=, --tolerance), or search "
            "for one (anchorhold-lab search)."
        )
    strength, reinitialise = chosen.get(measure, (0.0, protocol.settings.reinitialise))
    strength = 0.0 if others else strength
    reinitialise = reinitialise and "tolerance" not in others  # of new weights, all is lost before the first step
    settings = {**(protocol.large if large else {}), "reinitialise": reinitialise}
    settings.update({name: value for name, value in changes.items() if name in _SETTINGS})
    given = dict(own.pop("watch_settings", {}))
    watched = {
        name: {**usual_settings(protocol, name, given.get(name, {}), large=large), **given.get(name, {})}
        for name in own.get("watch", ())
    }
    asked = own.pop("measure_settings", {})
    leaning = has_linear_term(kept_as, own.get("anchor", "last"), gradient_term=own.get("gradient_term", False))
    folds, jointly = own.get("batch_norm") == "fold", settings.get("trains") == "jointly"
    by_itself, compresses = settings.get("consolidate", "tasks") != "tasks", bool(settings.get("compress"))
    held = can_hold(kept_as)
    follows = "tolerance" in others or own.get("incremental") == "class"
    if own.get("holds") or folds or jointly or leaning or follows or not held or not seen or by_itself or compresses:
        own.setdefault("engine", "plain")  # the fast one has no place for them
    usual: dict[str, Any] = {
        "strength": strength,
        "measure_settings": {**usual_settings(protocol, measure, asked, large=large), **asked},
        "watch_settings": {**given, **watched},
    }
    own["form_settings"] = form_settings
    return Spec(
        scenario, measure, seed=seed, settings=dataclasses.replace(protocol.settings, **settings), **usual | own
    )


def usual_settings(protocol: Protocol, measure: str, asked: Mapping[str, Any], *, large: bool) -> dict[str, Any]:
    """Return the settings that a measure has on a benchmark beside those that are asked for."""
    if measure in ("SI", "SIU", "SIB") and protocol.damping is not None:
        return {"damping": protocol.damping}
    if measure == "SOS" and protocol.follows_scripts:
        # As in the authors' scripts: v is not normalised, and α is 1 for large batches, not the exact α(b).
        windowed = asked.get("window") is not None  # which their scripts have not, and is always normalised
        return {"normalise": windowed, "alpha": 1.0 if large else 0.0}
    return {}
