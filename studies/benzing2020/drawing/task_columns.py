"""Figures of importance over the tasks of a benchmark: one row a run, one column a task."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anchorhold_lab.analysis import Estimate, estimate
from anchorhold_lab.experiments import Spec
from studies.benzing2020.findings import NotMeasuredError, Results
from studies.benzing2020.needed_runs import control_runs, correlation_runs, runs_at_their_rate, unclamped_runs
from studies.benzing2020.presets import Benchmark, Variant

Table = NDArray[np.float64]


def correlations(results: Results, benchmark: Benchmark, a: str, b: str, *, when: str = "after") -> Table:
    """Return the Pearson correlation of two measures, before or after rescaling."""
    return _table(_entries(results, benchmark), lambda entry: _pair(entry["correlations"][when], a, b))


def control_correlations(results: Results, control: Variant) -> Table:
    """Return the correlation of SI with SOS in one of Figure 1's controls."""
    seen = results.observed(control_runs(results.preset, control), "importances")
    return _table([run["tasks"] for run in seen], lambda entry: _pair(entry["correlations"]["after"], "SI", "SOS"))


def first_task_correlations(results: Results, specs: Sequence[Spec], a: str, b: str) -> Table:
    """Return the correlation of two measures after the first task of some runs."""
    seen = results.observed(specs, "importances")
    return _table([run["tasks"][:1] for run in seen], lambda entry: _pair(entry["correlations"]["after"], a, b))


def unclamped_correlations(results: Results, benchmark: Benchmark, a: str, b: str) -> Table:
    """Return the correlation of two measures in the runs that are watched as the authors' figures have it."""
    seen = results.observed(unclamped_runs(results.preset, benchmark), "importances")
    return _table([run["tasks"] for run in seen], lambda entry: _pair(entry["correlations"]["after"], a, b))


def sums_at_their_rate(results: Results) -> dict[str, Table]:
    """Return SI's and SIU's sums on CIFAR, the full gradient's and the decrease in loss, at the authors' rate."""
    specs = runs_at_their_rate(results.preset)
    sums = [run["tasks"] for run in results.observed(specs, "importances")]
    paths = [run["tasks"] for run in results.observed(specs, "path")]
    return {
        "SI": _table(sums, lambda entry: entry["raw_sums"]["SI"]),
        "SIU": _table(sums, lambda entry: entry["raw_sums"]["SIU"]),
        "full gradient": _table(paths, lambda entry: entry["full_path"]),
        "decrease in loss": _table(paths, lambda entry: entry["loss_before"] - entry["loss_after"]),
    }


def correlations_without_top(results: Results, benchmark: Benchmark, a: str, b: str, share: str) -> Table:
    """Return the correlation before rescaling, without the given share of weights with the highest SIU."""
    return _table(_entries(results, benchmark), lambda entry: _pair(entry["without_top"][share], a, b))


def raw_sums(results: Results, benchmark: Benchmark, measure: str) -> Table:
    """Return a measure's sum over all protected weights, before rescaling."""
    return _table(_entries(results, benchmark), lambda entry: entry["raw_sums"][measure])


def negative_shares(results: Results, benchmark: Benchmark, measure: str) -> Table:
    """Return the share of weights whose importance is negative before rescaling."""
    return _table(_entries(results, benchmark), lambda entry: entry["negative"][measure])


def full_paths(results: Results, benchmark: Benchmark) -> Table:
    """Return the path integral with the full gradient, over the protected weights."""
    return _table(_path_entries(results, benchmark), lambda entry: entry["full_path"])


def head_paths(results: Results, benchmark: Benchmark) -> Table:
    """Return the same over the weights that are not protected: those of the heads, where tasks have their own."""
    runs = _path_entries(results, benchmark)
    if any("head_path" not in entry for tasks in runs for entry in tasks):
        raise NotMeasuredError("the heads' part of the path was not looked at yet when these runs were made")
    return _table(runs, lambda entry: entry["head_path"])


def loss_decreases(results: Results, benchmark: Benchmark) -> Table:
    """Return by how much the task's loss fell while it was learned."""
    return _table(_path_entries(results, benchmark), lambda entry: entry["loss_before"] - entry["loss_after"])


def each_task(table: Table) -> list[Estimate]:
    """Return mean and standard error over the runs, for each task."""
    return [estimate(column.tolist()) for column in table.T]


def _entries(results: Results, benchmark: Benchmark) -> list[list[dict[str, Any]]]:
    return [run["tasks"] for run in results.observed(correlation_runs(results.preset, benchmark), "importances")]


def _path_entries(results: Results, benchmark: Benchmark) -> list[list[dict[str, Any]]]:
    return [run["tasks"] for run in results.observed(correlation_runs(results.preset, benchmark), "path")]


def _table(runs: Sequence[Sequence[dict[str, Any]]], value: Callable[[dict[str, Any]], float]) -> Table:
    return np.array([[value(entry) for entry in tasks] for tasks in runs], dtype=np.float64)


def _pair(found: dict[str, float], a: str, b: str) -> float:
    """Return the correlation of two measures, in whichever order it was noted."""
    return found[f"{a}|{b}"] if f"{a}|{b}" in found else found[f"{b}|{a}"]
