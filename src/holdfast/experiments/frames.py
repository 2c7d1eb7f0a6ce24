"""A store as pandas tables."""

from typing import Any

from holdfast.errors import MissingExtraError
from holdfast.experiments.results import Result
from holdfast.experiments.spec import Spec
from holdfast.experiments.store import Store

try:
    import pandas as pd
except ImportError as error:
    raise MissingExtraError(
        "Results come as tables of pandas, which is not installed: pip install 'holdfast[experiments]'"
    ) from error

_CURVES = ("id", "scenario", "measure", "strength", "seed", "learned", "task", "accuracy")


def runs_frame(store: Store) -> pd.DataFrame:
    """Return one row for every run that was ever begun; what an unfinished one lacks is missing."""
    rows = []
    for run in store.ids():
        result = store.get(run)
        failures = store.failures(run)
        row: dict[str, Any] = {"id": run, "status": store.status(run), **_described(store.spec(run))}
        if result is not None:
            row.update(_outcome(result))
        row["failures"] = len(failures)
        row["reason"] = failures[-1].reason if failures and result is None else None
        rows.append(row)
    return pd.DataFrame(rows)


def curves_frame(store: Store) -> pd.DataFrame:
    """Return one row for each accuracy: on which task, and after how many tasks had been learned (0: untrained)."""
    rows = []
    for result in store.results():
        spec = result.spec
        name = (spec.id, spec.scenario, spec.measure, spec.strength, spec.seed)
        for learned, accuracies in enumerate((result.untrained, *result.matrix)):
            rows += [(*name, learned, task, accuracy) for task, accuracy in enumerate(accuracies, start=1)]
    return pd.DataFrame(rows, columns=list(_CURVES))


def _described(spec: Spec) -> dict[str, Any]:
    """Return a spec's fields, with those of its settings beside them, and those of its measure under ``measure.``."""
    fields = spec.to_dict()
    settings, measure_settings = fields.pop("settings"), fields.pop("measure_settings")
    del fields["layout"], fields["watch_settings"]
    fields["watch"] = " ".join(spec.watch)
    fields["hidden"] = "-".join(str(width) for width in spec.hidden or ())
    return {**fields, **settings, **{f"measure.{name}": value for name, value in measure_settings.items()}}


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
    }
