"""From a run's files to its row."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anchorhold.errors import ConfigurationError
from anchorhold.forms import FORMS
from anchorhold.holds import HOLDS
from anchorhold.measures import MEASURES
from anchorhold.registry import is_loaded
from anchorhold_lab.experiments.specs.canonical import frozen
from anchorhold_lab.experiments.specs.paper_specs import paper_spec
from anchorhold_lab.experiments.specs.scenario_kinds import SCENARIOS
from anchorhold_lab.experiments.specs.spec import Spec
from anchorhold_lab.experiments.specs.spec_fields import fields_of
from anchorhold_lab.experiments.store.listing.rows import Figures, Row
from anchorhold_lab.experiments.store.run_results import Entry, Result
from anchorhold_lab.experiments.store.store import Store
from anchorhold_lab.networks import NETWORKS

_BESIDE = ("holds", "network", "form", "source")
"""What is unusual wherever there is any, though nothing be known of what is usual."""


class RowMaker:
    """Makes rows of a store's runs; those with equal settings share one object.

    Args:
        folder: the store's.
    """

    def __init__(self, folder: Path) -> None:
        self._store = Store(folder)
        self._settings: dict[tuple[tuple[str, Any], ...], dict[str, Any]] = {}
        self._usual: dict[tuple[str, str, int], dict[str, Any]] = {}

    def row(self, run: str) -> tuple[Row, bool]:
        """Return a run's row, and whether any process would read the same from these files."""
        entry = self._store.entry(run)
        return self.row_of(entry), not entry.damage and entry.spec is not None and _is_known_everywhere(entry.spec)

    def row_of(self, entry: Entry) -> Row:
        """Return the row of what was read of a run."""
        spec = entry.spec if entry.result is None else entry.result.spec
        figures = None if entry.result is None else Figures.of(entry.result)
        if spec is None:
            return Row(entry.id, entry.status, {}, None, (), figures, entry.damage)
        setting = {name: frozen(value) for name, value in fields_of(spec).items() if name != "seed"}
        shared = self._settings.setdefault(tuple(setting.items()), setting)
        return Row(entry.id, entry.status, shared, spec.seed, self._unusual(spec, shared), figures, entry.damage)

    def _unusual(self, spec: Spec, setting: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the names of all in which a run is not what ``anchorhold-lab run`` makes without any option."""
        usual: dict[str, Any] = {}
        if spec.source is None:
            about = spec.scenario, spec.measure, spec.settings.batch_size
            if about not in self._usual:
                self._usual[about] = _usual(*about)
            usual = self._usual[about]
        if not usual:
            return tuple(name for name in _BESIDE if setting[name] not in ("", None, "diagonal"))
        absent = object()
        differing = [name for name, value in setting.items() if usual.get(name, absent) != value]
        return tuple(name for name in differing if name != "strength")


def rows_of_results(results: list[Result]) -> list[Row]:
    """Return the rows of results that are at hand."""
    maker = RowMaker(Path())
    return [maker.row_of(Entry(result.spec.id, "finished", result.spec, result, ())) for result in results]


def _usual(scenario: str, measure: str, batch_size: int) -> dict[str, Any]:
    """Return the fields of the usual run; large batches have others, and are themselves unusual."""
    try:
        usual = paper_spec(scenario, measure, strength=0.0)
        there = paper_spec(scenario, measure, strength=0.0, batch_size=batch_size)
    except ConfigurationError:  # where a measure and a scenario's own usual settings do not go together
        return {}
    return fields_of(there) | {"batch_size": usual.settings.batch_size}


def _is_known_everywhere(spec: Spec) -> bool:
    """Whether a spec means the same in every process.

    It does where all that it names is of the library or the lab, or in a file that was not loaded here. What a program
    registers by itself is unknown to others, which cannot read the run.
    """
    if spec.source is not None:
        return not is_loaded(spec.source)
    measures = [MEASURES[name.partition(":")[0]] for name in (spec.measure, *spec.watch)]
    kind = SCENARIOS[spec.scenario]
    network = NETWORKS[spec.network or kind.network]
    named = [*measures, kind.make, network.make, FORMS[spec.form], *(HOLDS[name] for name in spec.holds)]
    modules = [getattr(thing, "func", thing).__module__ for thing in named]
    return all(module.partition(".")[0] in ("anchorhold", "anchorhold_lab") for module in modules)
