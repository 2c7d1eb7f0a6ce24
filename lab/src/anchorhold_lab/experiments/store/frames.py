"""A store as pandas tables."""

import warnings
from typing import Any

import pandas as pd

from anchorhold.errors import AnchorholdWarning
from anchorhold_lab.experiments.specs.spec import Spec
from anchorhold_lab.experiments.specs.spec_fields import fields_of
from anchorhold_lab.experiments.store.run_results import Entry, Result
from anchorhold_lab.experiments.store.store import Store

_CURVES = ("id", "scenario", "measure", "strength", "seed", "learned", "task", "accuracy")
_OUTCOME = (
    *("average_accuracy", "forgetting", "backward_transfer", "forward_transfer"),
    *("training_seconds", "total_seconds", "side_by_side", "resumed", "state_digest", "device", "commit"),
    *("finished_at", "found_strength", "worst_kl", "failures", "reason"),
)


def runs_frame(store: Store) -> pd.DataFrame:
    """Return one row for every run that was ever begun, in the order of the store's entries.

    What an unfinished one lacks is missing, and a damaged one has its reason and what can be read of it; there is a
    warning about it too.
    """
    rows: list[dict[str, Any]] = []
    for entry in store.entries():
        row: dict[str, Any] = {"id": entry.id, "status": entry.status}
        if entry.spec is not None:
            row |= fields_of(entry.spec)
        _warn_of(entry)
        row |= {} if entry.result is None else _outcome(entry.result)
        if entry.damage:
            row["reason"] = entry.damage
        else:
            row["failures"] = len(entry.failures)
            row["reason"] = entry.failures[-1].reason if entry.failures and entry.result is None else None
        rows.append(row)
    # A measure without settings leaves the fields that all runs have.
    always = ("id", "status", *fields_of(Spec("split-digits", "fine-tune")), *_OUTCOME)
    columns = dict.fromkeys([*always, *(name for row in rows for name in row)])
    return pd.DataFrame(rows, columns=list(columns))


def curves_frame(store: Store) -> pd.DataFrame:
    """Return one row for each accuracy: on which task, and after how many tasks had been learned (0: untrained)."""
    rows = []
    for entry in store.entries():
        _warn_of(entry)
        if entry.result is None:
            continue
        result, spec = entry.result, entry.result.spec
        name = (spec.id, spec.scenario, spec.measure, spec.strength, spec.seed)
        for learned, accuracies in enumerate((result.untrained, *result.matrix)):
            rows += [(*name, learned, task, accuracy) for task, accuracy in enumerate(accuracies, start=1)]
    return pd.DataFrame(rows, columns=list(_CURVES))


def _warn_of(entry: Entry) -> None:
    """Say which files of a run cannot be used."""
    if entry.damage:
        warnings.warn(entry.damage, AnchorholdWarning, stacklevel=4)


def _outcome(result: Result) -> dict[str, Any]:
    return {
        **result.metrics,
        "training_seconds": result.training_seconds,
        "total_seconds": result.total_seconds,
        "side_by_side": result.side_by_side,
        "resumed": result.resumed,
        "state_digest": result.state_digest,
        "device": result.device,
        "commit": result.commit,
        **{f"{name}_version": version for name, version in result.versions.items()},
        "finished_at": pd.Timestamp(result.finished_at),
        "found_strength": result.found_strength,
        "worst_kl": result.worst_kl,
    }
